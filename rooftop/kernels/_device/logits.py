"""What the forward and the backward of cross_entropy share in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice


@triton.jit
def capped(v, cap, PRECISE: tl.constexpr):  # type: ignore[no-untyped-def]
    """cap · tanh(v / cap). PRECISE: to float32's last digits, which 16-bit logits do not have."""
    u = v / cap
    if PRECISE:
        return cap * libdevice.tanh(u)
    e = tl.exp(-2 * tl.abs(u))
    t = (1 - e) / (1 + e)
    return cap * tl.where(u < 0, -t, t)
