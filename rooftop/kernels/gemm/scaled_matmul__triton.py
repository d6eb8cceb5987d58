"""out = scale_a · scale_b · a b + bias of fp8 or int8, for every stride, address and size. Contract: rooftop/ops/scaled_matmul.py.

Kernel: rooftop/kernels/gemm/_tiles_8bit.py"""

from __future__ import annotations

from rooftop.kernels.gemm._tiles_8bit import Config, choose, configs, launches, supports

__all__ = ["Config", "choose", "configs", "launches", "supports"]
