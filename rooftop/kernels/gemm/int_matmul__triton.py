"""out = a b of int8 in int32, for every stride, address and size. Contract: rooftop/ops/int_matmul.py. Kernel:
rooftop/kernels/gemm/_tiles_8bit.py"""

from __future__ import annotations

from rooftop.kernels.gemm._tiles_8bit import Config, choose, configs, launches, supports

__all__ = ["Config", "choose", "configs", "launches", "supports"]
