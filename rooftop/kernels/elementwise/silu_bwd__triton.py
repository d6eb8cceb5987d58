"""dx = dy · s (1 + x (1 - s)). Contract: rooftop/ops/silu.py; floor and configs: rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

import triton

from rooftop.kernels._device.activations import silu_slope
from rooftop.kernels.elementwise._pointwise import Config, pointwise


@triton.jit
def _silu_bwd(dy, x):  # type: ignore[no-untyped-def]
    return dy * silu_slope(x)


supports, choose, configs, launches = pointwise(("dy", "x"), ("dx",), lambda p: _silu_bwd)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
