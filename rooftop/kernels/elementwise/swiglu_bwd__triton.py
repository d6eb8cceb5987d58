"""da = dy · b · silu'(a), db = dy · silu(a), of two tensors or the halves of one. Contract: rooftop/ops/swiglu.py; floor and configs:
rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

import triton

from rooftop.kernels._device.activations import silu, silu_slope
from rooftop.kernels.elementwise._pointwise import Config, gated


@triton.jit
def _swiglu_bwd(dy, a, b):  # type: ignore[no-untyped-def]
    return dy * b * silu_slope(a), dy * silu(a)


supports, choose, configs, launches = gated(("dy", "a", "b"), ("da", "db"), lambda p: _swiglu_bwd)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
