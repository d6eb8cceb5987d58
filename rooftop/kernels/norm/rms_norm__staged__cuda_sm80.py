"""Which rows rms_norm__staged__cuda_sm80.cu supports, and how they are divided among blocks and lanes: rooftop/kernels/_device/norm_staged.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import norm_staged


def supports(p: Problem, head: Head) -> str | None:
    return norm_staged.refuses(p)


def prefers(p: Problem, head: Head) -> int:
    return norm_staged.prefers(p, centre=False)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return norm_staged.choose(p, centre=False)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return norm_staged.configs(p, centre=False)
