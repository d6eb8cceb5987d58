"""Which rows layer_norm__staged__cuda_sm80.cu takes, and how they are shared out: rooftop/kernels/_device/staged_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import row_configs, staged_rows

ROWS = ("x", "y")


def supports(p: Problem, head: Head) -> str | None:
    return staged_rows.refuses(p, ROWS)


def prefers(p: Problem, head: Head) -> int:
    """Odd rows and those that leave lanes of a warp idle, as far as instructions decide. By a model: rows in registers take some 260 instructions of a warp
    for a row of 66 elements on an H200 (layer_norm: 0.24 of the roof), this about 40."""
    x = p["x"]
    odd = x.shape[1] * x.itemsize % 16 != 0
    few = x.shape[1] * x.itemsize <= 256 and not row_configs.power_of_two(p)
    return 3 if (odd or few) and x.nbytes >= 32 << 20 and not supports(p, head) and p.get("residual") is None else -1


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return staged_rows.choose(p)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return staged_rows.configs(p)
