"""dx = 2 x dy. Contract: rooftop/ops/square.py; floor and configs: rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

import triton

from rooftop.kernels.elementwise._pointwise import Config, pointwise


@triton.jit
def _square_bwd(dy, x):  # type: ignore[no-untyped-def]
    return 2 * x * dy


supports, choose, configs, launches = pointwise(("dy", "x"), ("dx",), lambda p: _square_bwd)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
