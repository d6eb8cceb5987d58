"""Which rows rms_norm_bwd__long__cuda_sm80.cu supports, and how they are divided among blocks: rooftop/kernels/norm/_bwd_long.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _bwd_long


def supports(p: Problem, head: Head) -> str | None:
    return _bwd_long.refuses(p, False)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _bwd_long.choose(p, False)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _bwd_long.configs(p, False)


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return _bwd_long.scratch(p, config, False)


def zeroed(p: Problem, config: Any, head: Head) -> tuple[str, ...]:
    return ("mail",)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _bwd_long.launches(p, config, head, False)
