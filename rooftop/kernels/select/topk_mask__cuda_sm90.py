"""Which problems topk_mask__cuda_sm90.cu supports, and how rows are divided among blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels.select import _smem_select, _top_k


def supports(p: Problem, head: Head) -> str | None:
    if int(p.option("k")) == 0:
        return "there is nothing to select"
    return _smem_select.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _smem_select.choose(p)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    to = _top_k.sense(bool(p.option("largest")), str(p.option("nan")))
    return _smem_select.launches(p, config, int(p.option("k")), to, None, None, "out")
