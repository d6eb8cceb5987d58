"""Which rows norms_bwd__staged__cuda_sm80.cu supports, and how they are divided among blocks and lanes: rooftop/kernels/norm/_bwd_staged.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _bwd_staged
from rooftop.kernels.norm._register_rows import centred


def supports(p: Problem, head: Head) -> str | None:
    return _bwd_staged.refuses(p)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _bwd_staged.choose(p, centre=centred(p))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _bwd_staged.configs(p)


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return _bwd_staged.scratch(p, config)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _bwd_staged.launches(p, config, head, centre=centred(p))
