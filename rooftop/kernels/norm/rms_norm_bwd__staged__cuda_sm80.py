"""Which rows rms_norm_bwd__staged__cuda_sm80.cu supports, and how they are divided among blocks and lanes: rooftop/kernels/_device/norm_staged_bwd.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import norm_staged_bwd


def supports(p: Problem, head: Head) -> str | None:
    return norm_staged_bwd.refuses(p)


def prefers(p: Problem, head: Head) -> int:
    return norm_staged_bwd.prefers(p)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return norm_staged_bwd.choose(p, centre=False)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return norm_staged_bwd.configs(p)


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return norm_staged_bwd.scratch(p, config)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return norm_staged_bwd.launches(p, config, head, centre=False)
