"""Which rows layer_norm__cuda_sm80.cu takes, and how they are shared out among threads: rooftop/kernels/_device/row_configs.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import row_configs

TENSORS = ("x", "residual", "weight", "bias", "y", "s")


def supports(p: Problem, head: Head) -> str | None:
    return row_configs.refuses(p)


def prefers(p: Problem, head: Head) -> int:
    """Of all rows that it takes."""
    return 2 if row_configs.refuses(p) is None else 0


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return row_configs.choose(row_configs.of(p, TENSORS))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return row_configs.configs(row_configs.of(p, TENSORS))
