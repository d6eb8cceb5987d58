"""Which rows softmaxes__cuda_sm80.cu supports, and how they are divided among threads: rooftop/kernels/norm/_register_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels.norm import _register_rows


def _rows(p: Problem) -> _register_rows.Rows:
    return _register_rows.of(p, ("x", "y")) if not p.op.endswith("_bwd") else _register_rows.of(p, ("y", "dy", "dx"), held=2)


def supports(p: Problem, head: Head) -> str | None:
    return _register_rows.refuses(p["y"])


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _register_rows.choose(_rows(p))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _register_rows.configs(_rows(p))


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    log = p.op.startswith("log_")
    return [_register_rows.launch(p.op.removeprefix("log_"), p, config, head, _rows(p).least == 1, *[True] * log)]
