"""y = x². Contract: rooftop/ops/square.py; floor and configs: rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

import triton

from rooftop.kernels.elementwise._pointwise import Config, pointwise


@triton.jit
def _square(x):  # type: ignore[no-untyped-def]
    return x * x


supports, choose, configs, launches = pointwise(("x",), ("y",), lambda p: _square)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
