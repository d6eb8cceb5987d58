"""The launch of sample__cuda_sm80.cu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels.select import _draw_rows
from rooftop.ops._ordering import LONGEST


def supports(p: Problem, head: Head) -> str | None:
    x = p["logits"]
    if x.shape[1] > 1 and x.strides[1] != 1:
        return "the elements of a row must be neighbours"
    if x.shape[1] >= LONGEST or x.shape[0] >= 2**31:
        return f"rows of at most {LONGEST} elements, fewer than 2^31 of them"
    return "there is nothing to draw" if x.shape[0] == 0 else None


def for_any_rows(p: Problem, head: Head) -> Mapping[str, Any]:
    """Under `rooftop.invariant()`: as always. Weights are whole numbers, whose sums have no order."""
    return {}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    return [_draw_rows.rows_launch(p, only=0)]
