"""y = silu(a) · b, a and b two tensors or the halves of one. Contract: rooftop/ops/swiglu.py; floor and configs:
rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

import triton

from rooftop.kernels._device.activations import silu
from rooftop.kernels.elementwise._pointwise import Config, gated


@triton.jit
def _swiglu(a, b):  # type: ignore[no-untyped-def]
    return silu(a) * b


supports, choose, configs, launches = gated(("a", "b"), ("y",), lambda p: _swiglu)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
