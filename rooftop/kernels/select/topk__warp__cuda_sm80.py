"""Which rows topk__warp__cuda_sm80.cu takes, and its launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem
from rooftop.kernels.select import _top_k

FIRST, WARPS, MOST = 32, 4, 1024  # elements that are selected, one a lane; warps of a block; elements of a row


def supports(p: Problem, head: Head | None = None) -> str | None:
    k, n = int(p.option("k")), p["x"].shape[1]
    if not 1 <= k <= FIRST or n > MOST:
        return f"takes a k of 1 to {FIRST} and rows of at most {MOST} elements; given {k} and {n}"
    return _top_k.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    """Elements a lane, a multiple of two: one binary for similar rows."""
    return {"each": -(-p["x"].shape[1] // 64) * 2}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    rows, _ = _top_k.rows_of(p)
    x, lengths = _top_k.given(p)
    args: _top_k.Arguments = {
        **x, "rows": (rows, "u32"), **lengths, "k": (int(p.option("k")), "u32"),
        "sense": (_top_k.sense(bool(p.option("largest")), str(p.option("nan"))), "u32"), "values": ("values", "ptr"), "indices": ("indices", "ptr"),
    }
    return [_top_k.launch(p, f"first_of_rows<{DTYPES[p['x'].dtype].cuda}, {config['each']}>", -(-rows // WARPS), 32 * WARPS, args)]
