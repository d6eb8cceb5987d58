"""y = layer_norm(x + residual) · weight + bias over the rows of [R, C]. Contract: rooftop/ops/layer_norm.py; kernels and configs:
rooftop/kernels/_device/norms.py"""

from __future__ import annotations

from rooftop.kernels._device.norms import Config, forward

supports, choose, configs, launches, scratch = forward(centre=True)
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]
