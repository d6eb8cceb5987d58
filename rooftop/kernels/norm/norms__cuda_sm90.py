"""Which kernel of norms__cuda_sm90.cu runs, with which launch config: rooftop/kernels/norm/_fwd_sm90.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels.norm import _fwd_sm90
from rooftop.kernels.norm._register_rows import centred


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _fwd_sm90.choose(_fwd_sm90.of(p, centre=centred(p)))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _fwd_sm90.configs(_fwd_sm90.of(p, centre=centred(p)))


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _fwd_sm90.launches(p, config, head, centre=centred(p))
