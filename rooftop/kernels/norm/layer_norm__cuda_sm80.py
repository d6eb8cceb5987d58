"""Which rows layer_norm__cuda_sm80.cu supports, and how many threads and vectors a row gets: rooftop/kernels/_device/row_configs.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import row_configs

TENSORS = ("x", "residual", "weight", "bias", "y", "s")


def supports(p: Problem, head: Head) -> str | None:
    return row_configs.refuses(p)


def prefers(p: Problem, head: Head) -> int:
    """The preference among kernels that support the call (the highest runs): 2 if it is the fastest, else 0. Measured on an H200 against the kernel chosen
    before: 1.0 to 1.17 times as fast. Slower, so 0: with a residual (0.94), for a power of two of columns in float32 (0.97) or in tensors under 64 MiB (0.90
    to 0.94), and for rows of more than 8192 columns that are not 16-byte aligned (0.92)."""
    x = p["x"]
    little, off = x.nbytes < 64 << 20, x.shape[1] * x.itemsize % 16 and x.shape[1] > 8192
    if row_configs.refuses(p) or p.get("residual") is not None or off or (row_configs.power_of_two(p) and (little or x.itemsize == 4)):
        return 0
    return 2


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return row_configs.choose(row_configs.of(p, TENSORS))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return row_configs.configs(row_configs.of(p, TENSORS))
