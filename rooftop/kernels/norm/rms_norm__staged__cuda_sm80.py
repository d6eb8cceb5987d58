"""Which rows rms_norm__staged__cuda_sm80.cu supports, and how they are divided among blocks: rooftop/kernels/_device/staged_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import staged_rows

ROWS = ("x", "y")


def supports(p: Problem, head: Head) -> str | None:
    return staged_rows.refuses(p, ROWS)


def prefers(p: Problem, head: Head) -> int:
    """Preferred for odd rows of up to 128 elements, which are bound by instructions: rows in registers reach 0.63 of the roof at 83 elements of float32 on an
    H200, 0.85 of Liger. Predicted by a model only: this kernel is checked on an H200 and not timed yet."""
    x = p["x"]
    odd = x.shape[1] * x.itemsize % 16 != 0 and x.shape[1] <= 128
    return 3 if odd and x.nbytes >= 32 << 20 and not supports(p, head) and p.get("residual") is None else -1


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return staged_rows.choose(p)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return staged_rows.configs(p)
