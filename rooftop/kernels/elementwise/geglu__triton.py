"""y = gelu(a) · b, a and b two tensors or the halves of one. Contract: rooftop/ops/geglu.py; floor and configs:
rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

import triton

from rooftop.kernels._device.activations import gelu
from rooftop.kernels.elementwise._geglu_tanh import gelu_tanh_or_zero
from rooftop.kernels.elementwise._pointwise import Config, gated


@triton.jit
def _exact(a, b):  # type: ignore[no-untyped-def]
    return gelu(a) * b


@triton.jit
def _tanh(a, b):  # type: ignore[no-untyped-def]
    return gelu_tanh_or_zero(a) * b


supports, choose, configs, launches = gated(("a", "b"), ("y",), lambda p: _tanh if p.option("approximate") == "tanh" else _exact)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
