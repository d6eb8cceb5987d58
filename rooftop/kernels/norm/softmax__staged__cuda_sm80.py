"""Which rows softmax__staged__cuda_sm80.cu supports, and how they are divided among blocks: rooftop/kernels/_device/staged_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import staged_rows

ROWS = ("x", "y")


def supports(p: Problem, head: Head) -> str | None:
    return staged_rows.refuses(p, ROWS)


def prefers(p: Problem, head: Head) -> int:
    """Checked, but not timed yet on any card: not chosen by default."""
    return -1


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return staged_rows.choose(p)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return staged_rows.configs(p)
