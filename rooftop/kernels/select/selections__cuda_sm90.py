"""Which problems selections__cuda_sm90.cu takes: the k-th element of a row, or the mask of the first k. Plan: _smem_select.py"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels.select import _smem_select, _top_k


def supports(p: Problem, head: Head) -> str | None:
    if p.op == "topk_mask" and int(p.option("k")) == 0:
        return "there is nothing to select"
    return _smem_select.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _smem_select.choose(p)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    largest = p.op == "topk_mask" and bool(p.option("largest"))
    to = (None, None, "out") if p.op == "topk_mask" else ("value", "index", None)
    return _smem_select.launches(p, config, int(p.option("k")), _top_k.sense(largest, str(p.option("nan"))), *to)
