"""da = dy · b · gelu'(a), db = dy · gelu(a), of two tensors or the halves of one. Contract: rooftop/ops/geglu.py; floor and configs:
rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

import triton

from rooftop.kernels._device.activations import gelu, gelu_slope
from rooftop.kernels.elementwise._geglu_tanh import gelu_tanh_or_zero, gelu_tanh_slope_or_zero
from rooftop.kernels.elementwise._pointwise import Config, gated


@triton.jit
def _exact(dy, a, b):  # type: ignore[no-untyped-def]
    return dy * b * gelu_slope(a), dy * gelu(a)


@triton.jit
def _tanh(dy, a, b):  # type: ignore[no-untyped-def]
    return dy * b * gelu_tanh_slope_or_zero(a), dy * gelu_tanh_or_zero(a)


supports, choose, configs, launches = gated(
    ("dy", "a", "b"), ("da", "db"), lambda p: _tanh if p.option("approximate") == "tanh" else _exact
)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
