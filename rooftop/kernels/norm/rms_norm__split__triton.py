"""rms_norm of rows that are too long for a cluster. Contract: rooftop/ops/rms_norm.py; kernels: rooftop/kernels/_device/norms_split.py"""

from __future__ import annotations

from rooftop.kernels._device.norms_split import forward
from rooftop.kernels._device.split_tiles import Config

supports, prefers, choose, configs, scratch, launches = forward(centre=False)
__all__ = ["Config", "choose", "configs", "launches", "prefers", "scratch", "supports"]
