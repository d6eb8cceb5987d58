"""dx, dweight and dbias of rms_norm and layer_norm over the rows of [R, C]: rooftop/kernels/norm/_bwd_triton.py"""

from __future__ import annotations

from rooftop.kernels.norm._bwd_triton import Config, choose, configs, launches, scratch, supports

OPS = ("rms_norm_bwd", "layer_norm_bwd")
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]
