"""Which rows norms__long__cuda_sm80.cu supports, and how they are divided among blocks: rooftop/kernels/norm/_fwd_long.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _fwd_long
from rooftop.kernels.norm._register_rows import centred


def supports(p: Problem, head: Head) -> str | None:
    return _fwd_long.refuses(p, centred(p))


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _fwd_long.choose(p, centred(p))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _fwd_long.configs(p, centred(p))


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return _fwd_long.scratch(p, config, centred(p))


def zeroed(p: Problem, config: Any, head: Head) -> tuple[str, ...]:
    return ("mail",)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _fwd_long.launches(p, config, head, centred(p))
