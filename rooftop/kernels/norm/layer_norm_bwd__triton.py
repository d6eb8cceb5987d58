"""dx, dweight and dbias of layer_norm over the rows of [R, C]. Contract: rooftop/ops/layer_norm.py; kernels and configs:
rooftop/kernels/_device/norms_bwd.py"""

from __future__ import annotations

from rooftop.kernels._device.norms_bwd import Config, backward

supports, choose, configs, launches, scratch = backward(centre=True)
__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]
