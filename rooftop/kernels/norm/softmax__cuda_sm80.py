"""Which rows softmax__cuda_sm80.cu supports, and how many threads and vectors a row gets: rooftop/kernels/norm/_register_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels.norm import _register_rows

TENSORS = ("x", "y")


def supports(p: Problem, head: Head) -> str | None:
    return _register_rows.refuses(p)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _register_rows.choose(_register_rows.of(p, TENSORS))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _register_rows.configs(_register_rows.of(p, TENSORS))
