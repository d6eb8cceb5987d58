"""Which rows softmax__staged__cuda_sm80.cu takes, and how they are shared out: rooftop/kernels/_device/staged_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import row_configs, staged_rows

ROWS = ("x", "y")


def supports(p: Problem, head: Head) -> str | None:
    return staged_rows.refuses(p, ROWS)


def prefers(p: Problem, head: Head) -> int:
    """Rows of up to 128 elements of float32 and no power of two: each exponential is taken once here, twice where rows wait in registers, which makes 0.74 to
    0.77 of the roof there on an H200."""
    x = p["x"]
    short = x.itemsize == 4 and x.shape[1] <= 128 and not row_configs.power_of_two(p)
    return 3 if short and x.nbytes >= 32 << 20 and not supports(p, head) else -1


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return staged_rows.choose(p)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return staged_rows.configs(p)
