"""y = layer_norm(x + residual) · weight + bias over the rows of [R, C]. Contract: rooftop/ops/layer_norm.py; kernels and configs:
rooftop/kernels/norm/_fwd_triton.py"""

from __future__ import annotations

from rooftop.kernels.norm._fwd_triton import Config, forward

supports, choose, configs, launches, scratch = forward(centre=True)
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]
