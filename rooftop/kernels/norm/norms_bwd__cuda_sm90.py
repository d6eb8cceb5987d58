"""Which rows norms_bwd__cuda_sm90.cu supports, and its launch configs: rooftop/kernels/norm/_bwd_sm90.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _bwd_sm90
from rooftop.kernels.norm._register_rows import centred


def supports(p: Problem, head: Head) -> str | None:
    return _bwd_sm90.refuses(_bwd_sm90.of(p, centre=centred(p)))


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _bwd_sm90.choose(_bwd_sm90.of(p, centre=centred(p)))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _bwd_sm90.configs(_bwd_sm90.of(p, centre=centred(p)))


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return _bwd_sm90.scratch(p, config, centre=centred(p))


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _bwd_sm90.launches(p, config, head, centre=centred(p))
