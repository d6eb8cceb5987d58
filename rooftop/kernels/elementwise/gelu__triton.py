"""y = x · Φ(x). Contract: rooftop/ops/gelu.py; floor and configs: rooftop/kernels/_device/pointwise.py"""

from __future__ import annotations

from rooftop.kernels._device.activations import gelu, gelu_tanh
from rooftop.kernels._device.pointwise import Config, pointwise

supports, choose, configs, launches = pointwise(("x",), ("y",), lambda p: gelu_tanh if p.option("approximate") == "tanh" else gelu)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
