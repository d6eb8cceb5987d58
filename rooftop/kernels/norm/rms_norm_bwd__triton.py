"""dx, dweight and dbias of rms_norm over the rows of [R, C]. Contract: rooftop/ops/rms_norm.py; kernels and configs: rooftop/kernels/norm/_bwd_triton.py"""

from __future__ import annotations

from rooftop.kernels.norm._bwd_triton import Config, backward

supports, choose, configs, launches, scratch = backward(centre=False)
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]
