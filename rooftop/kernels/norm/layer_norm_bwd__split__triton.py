"""dx, dweight and dbias of layer_norm of rows that are too long for a cluster. Contract: rooftop/ops/layer_norm.py; kernels:
rooftop/kernels/norm/_split_triton.py"""

from __future__ import annotations

from rooftop.kernels.norm._split_tiles import Config
from rooftop.kernels.norm._split_triton import backward

supports, choose, configs, scratch, launches = backward(centre=True)
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]
