"""y and the sum with the residual of rms_norm and layer_norm over the rows of [R, C]: rooftop/kernels/norm/_fwd_triton.py"""

from __future__ import annotations

from rooftop.kernels.norm._fwd_triton import Config, choose, configs, launches, scratch, supports

OPS = ("rms_norm", "layer_norm")
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]
