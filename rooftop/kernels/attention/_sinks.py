"""The gradient of sinks, for every backward."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_sinks(sinks, lse, delta, dsinks, B, SQ, H, BLOCK: tl.constexpr, PADDED=None):  # type: ignore[no-untyped-def]
    """dsink = -sum of exp(sink - lse) · delta over the rows of its head. Rows of no sequence have lse -inf. PADDED: the rows of delta, if they
    are more."""
    head = tl.program_id(0)
    sink = tl.load(sinks + head).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for batch in range(B):
        row = (tl.cast(batch, tl.int64) * H + head) * SQ
        for start in range(0, SQ, BLOCK):
            at = start + tl.arange(0, BLOCK)
            norm = tl.load(lse + row + at, mask=at < SQ, other=float("-inf"))
            of_delta = row if PADDED is None else (tl.cast(batch, tl.int64) * H + head) * PADDED
            common = tl.load(delta + of_delta + at, mask=at < SQ, other=0.0)
            total -= tl.where(norm == float("-inf"), 0.0, tl.exp2((sink - norm) * 1.4426950408889634) * common)
    tl.store(dsinks + head, tl.sum(total, 0).to(dsinks.dtype.element_ty))
