"""Which problems topk_mask__bracket__cuda_sm80.cu supports, and where it is to be preferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.select import _splitter_rows, _top_k


def supports(p: Problem, head: Head) -> str | None:
    if int(p.option("k")) == 0:
        return "there is nothing to select"
    return _splitter_rows.refused(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _splitter_rows.choose(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return _splitter_rows.scratch(p, config)


def zeroed(p: Problem, config: Mapping[str, Any], head: Head) -> tuple[str, ...]:
    return _splitter_rows.zeroed(config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    order = _top_k.sense(bool(p.option("largest")), str(p.option("nan")))
    return _splitter_rows.launches(p, config, int(p.option("k")), order, None, None, "out")
