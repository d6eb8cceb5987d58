"""dx = dy · (Φ(x) + x Φ'(x)). Contract: rooftop/ops/gelu.py; floor and configs: rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Problem
from rooftop.kernels._device.activations import PEAK, gelu_slope, gelu_tanh_slope
from rooftop.kernels.elementwise._pointwise import Config, pointwise


@triton.jit
def _exact(dy, x):  # type: ignore[no-untyped-def]
    return dy * gelu_slope(x)


@triton.jit
def _tanh(dy, x):  # type: ignore[no-untyped-def]
    return dy * gelu_tanh_slope(x)


@triton.jit
def _short(dy, x):  # type: ignore[no-untyped-def]
    """With Φ as in gelu_fine."""
    y = tl.abs(x)
    p = 5.9754067385828225e-05 - 1.7356653543854073e-06 * y
    p = -0.0009169386381084332 + p * y
    p = 0.00845751245380599 + p * y
    p = -0.05386145716967388 + p * y
    p = -0.4585615975756573 + p * y
    p = -1.1512100265386889 + p * y
    return dy * (tl.abs(tl.where(x > 0, 1.0, 0.0) - tl.exp2(p * y - 1.0)) + x * (PEAK * tl.exp(-0.5 * x * x)))


def _function(p: Problem) -> Any:
    return _tanh if p.option("approximate") == "tanh" else _exact if p["x"].itemsize >= 4 else _short


supports, choose, configs, launches = pointwise(("dy", "x"), ("dx",), _function)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
