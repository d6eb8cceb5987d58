"""Which rows norms_bwd__cuda_sm80.cu supports, and its launch configs: rooftop/kernels/norm/_bwd_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _bwd_rows


def supports(p: Problem, head: Head) -> str | None:
    return _bwd_rows.without_a_pivot(p) or _bwd_rows.refuses(p)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _bwd_rows.choose(p)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _bwd_rows.configs(p)


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return _bwd_rows.scratch(p, config)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _bwd_rows.launches(p, config, head)
