"""Which problems selections__splitters__cuda_sm80.cu takes: the k-th element of a row, or the mask of the first k. Plan:
_splitter_rows.py"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.select import _splitter_rows, _top_k


def supports(p: Problem, head: Head) -> str | None:
    if p.op == "topk_mask" and int(p.option("k")) == 0:
        return "there is nothing to select"
    return _splitter_rows.refused(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _splitter_rows.choose(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return _splitter_rows.scratch(p, config)


def zeroed(p: Problem, config: Mapping[str, Any], head: Head) -> tuple[str, ...]:
    return _splitter_rows.zeroed(config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    largest = p.op == "topk_mask" and bool(p.option("largest"))
    to = (None, None, "out") if p.op == "topk_mask" else ("value", "index", None)
    return _splitter_rows.launches(p, config, int(p.option("k")), _top_k.sense(largest, str(p.option("nan"))), *to)
