"""Which rows layer_norm__staged__cuda_sm80.cu supports, and how they are divided among blocks: rooftop/kernels/_device/staged_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import row_configs, staged_rows

ROWS = ("x", "y")


def supports(p: Problem, head: Head) -> str | None:
    return staged_rows.refuses(p, ROWS)


def prefers(p: Problem, head: Head) -> int:
    """Preferred for odd rows of up to 256 elements, and for even rows of at most 192 bytes that are not a power of two. Both are bound by instructions: kept in
    registers, a row of 66 elements takes about 260 warp instructions and reaches 0.24 to 0.6 of the roof on an H200 (0.57 to 0.67 for even rows). This kernel
    takes about 40 by a model only: it is checked on an H200 and not timed yet."""
    x = p["x"]
    row = x.shape[1] * x.itemsize
    chosen = x.shape[1] <= 256 if row % 16 else row <= 192 and not row_configs.power_of_two(p)
    return 3 if chosen and x.nbytes >= 32 << 20 and not supports(p, head) and p.get("residual") is None else -1


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return staged_rows.choose(p)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return staged_rows.configs(p)
