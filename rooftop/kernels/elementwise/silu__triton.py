"""y = x · sigmoid(x). Contract: rooftop/ops/silu.py; floor and configs: rooftop/kernels/elementwise/_pointwise.py"""

from __future__ import annotations

from rooftop.kernels._device.activations import silu
from rooftop.kernels.elementwise._pointwise import Config, pointwise

supports, choose, configs, launches = pointwise(("x",), ("y",), lambda p: silu)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
