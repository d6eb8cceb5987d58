"""dx, dweight and dbias of layer_norm over the rows of [R, C]. Contract: rooftop/ops/layer_norm.py; kernels and configs:
rooftop/kernels/norm/_bwd_triton.py"""

from __future__ import annotations

from rooftop.kernels.norm._bwd_triton import Config, backward

supports, choose, configs, launches, scratch = backward(centre=True)
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]
