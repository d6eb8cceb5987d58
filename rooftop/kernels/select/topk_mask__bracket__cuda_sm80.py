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


def prefers(p: Problem, head: Head) -> int:
    """Where more than a small part of a row is selected, and one wave of clusters does not hold all rows. If few elements of a long row are selected, writing
    their bytes of the mask one by one costs less than a second read of the row."""
    n = _top_k.rows_of(p)[1]
    return _splitter_rows.prefers(p, min(int(p.option("k")), n - int(p.option("k"))))


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _splitter_rows.choose(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return _splitter_rows.scratch(p, config)


def zeroed(p: Problem, config: Mapping[str, Any], head: Head) -> tuple[str, ...]:
    return _splitter_rows.zeroed(config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    order = _top_k.sense(bool(p.option("largest")), str(p.option("nan")))
    return _splitter_rows.launches(p, config, int(p.option("k")), order, None, None, "out")
