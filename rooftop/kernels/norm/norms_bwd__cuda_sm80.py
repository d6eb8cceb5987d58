"""Which rows norms_bwd__cuda_sm80.cu supports, and its launch configs: rooftop/kernels/norm/_bwd_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _bwd_rows
from rooftop.kernels.norm._register_rows import centred


def supports(p: Problem, head: Head) -> str | None:
    """16-bit statistics are computed in one pass about a pivot, an element of the row's first vector of 16 bytes. A row without a whole vector would have the
    pivot zero: if its elements are far from zero, cancellation would lose the digits of their spread."""
    s = p["s"]
    if centred(p) and s.itemsize == 2 and s.shape[1] < 15 and not _bwd_rows.of(p).aligned:
        return f"a row off 16 bytes must have at least 15 elements of 16 bits, a whole vector wherever it starts; given {s.shape[1]}"
    return _bwd_rows.refuses(p)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _bwd_rows.choose(p)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _bwd_rows.configs(p)


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return _bwd_rows.scratch(p, config)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _bwd_rows.launches(p, config, head, centre=centred(p))
