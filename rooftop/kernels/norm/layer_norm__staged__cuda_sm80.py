"""Which rows layer_norm__staged__cuda_sm80.cu supports, and how they are divided among blocks and lanes: rooftop/kernels/norm/_fwd_staged.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels.norm import _fwd_staged


def supports(p: Problem, head: Head) -> str | None:
    return _fwd_staged.refuses(p)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _fwd_staged.choose(p, centre=True)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _fwd_staged.configs(p, centre=True)
