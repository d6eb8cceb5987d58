"""Which rows rms_norm__cuda_sm80.cu supports, and how many threads and vectors a row gets: rooftop/kernels/norm/_register_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels.norm import _register_rows

TENSORS = ("x", "residual", "weight", "bias", "y", "s")


def supports(p: Problem, head: Head) -> str | None:
    return _register_rows.refuses(p)


def prefers(p: Problem, head: Head) -> int:
    """Measured on an H200: as fast as the kernel chosen before, or faster, except with a residual (0.97) and at powers of two (0.90 to 0.99)."""
    return 0 if _register_rows.refuses(p) or p.get("residual") is not None or _register_rows.power_of_two(p) else 2


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _register_rows.choose(_register_rows.of(p, TENSORS))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _register_rows.configs(_register_rows.of(p, TENSORS))
