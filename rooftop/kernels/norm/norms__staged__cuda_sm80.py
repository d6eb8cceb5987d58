"""Which rows norms__staged__cuda_sm80.cu supports, and how they are divided among blocks and lanes: rooftop/kernels/norm/_fwd_staged.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels.norm import _fwd_staged
from rooftop.kernels.norm._register_rows import centred


def supports(p: Problem, head: Head) -> str | None:
    return _fwd_staged.refuses(p)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _fwd_staged.choose(p, centre=centred(p))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _fwd_staged.configs(p, centre=centred(p))
