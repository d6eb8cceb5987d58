"""Which problems topk_mask__bracket__cuda_sm80.cu supports, and where it is to be preferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import bracketing, held_selecting, selecting


def supports(p: Problem, head: Head) -> str | None:
    if int(p.option("k")) == 0:
        return "there is nothing to select"
    if (reason := selecting.not_taken(p)) is not None:
        return reason
    return None if bracketing.plan(p) is not None else f"rows of at least {bracketing.LEAST} elements, whose bracket fits shared memory"


def prefers(p: Problem, head: Head) -> int:
    """Where more than a small part of a row is selected, and one wave of clusters does not hold all rows. Few of a long row are marked by fewer bytes written
    one by one than a second read of the row costs."""
    rows, n = selecting.rows_of(p)
    k = min(int(p.option("k")), n - int(p.option("k")))
    if k <= selecting.MOST and 16 * k <= n:
        return -1
    return -1 if rows * held_selecting.CLUSTER <= p.device.sms and held_selecting.not_taken(p) is None else 2


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    config = bracketing.plan(p)
    assert config is not None
    return config


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return bracketing.scratch(p, config)


def zeroed(p: Problem, config: Mapping[str, Any], head: Head) -> tuple[str, ...]:
    return bracketing.zeroed(config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    order = selecting.sense(bool(p.option("largest")), str(p.option("nan")))
    return bracketing.launches(p, config, int(p.option("k")), order, None, None, "out")
