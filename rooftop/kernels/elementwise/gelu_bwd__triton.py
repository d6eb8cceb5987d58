"""dx = dy · (Φ(x) + x Φ'(x)). Contract: rooftop/ops/gelu.py; floor and configs: rooftop/kernels/_device/pointwise.py"""

from __future__ import annotations

import triton

from rooftop.kernels._device.activations import gelu_slope, gelu_tanh_slope
from rooftop.kernels._device.pointwise import Config, pointwise


@triton.jit
def _exact(dy, x):  # type: ignore[no-untyped-def]
    return dy * gelu_slope(x)


@triton.jit
def _tanh(dy, x):  # type: ignore[no-untyped-def]
    return dy * gelu_tanh_slope(x)


supports, choose, configs, launches = pointwise(("dy", "x"), ("dx",), lambda p: _tanh if p.option("approximate") == "tanh" else _exact)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
