"""Which rows rms_norm__cuda_sm80.cu supports, and how many threads and vectors a row gets: rooftop/kernels/_device/row_configs.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import row_configs

TENSORS = ("x", "residual", "weight", "bias", "y", "s")


def supports(p: Problem, head: Head) -> str | None:
    return row_configs.refuses(p)


def prefers(p: Problem, head: Head) -> int:
    """Measured on an H200: as fast as the kernel chosen before, or faster, except with a residual (0.97) and at powers of two (0.90 to 0.99)."""
    return 0 if row_configs.refuses(p) or p.get("residual") is not None or row_configs.power_of_two(p) else 2


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return row_configs.choose(row_configs.of(p, TENSORS))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return row_configs.configs(row_configs.of(p, TENSORS))
