"""Which rows softmax__long__cuda_sm80.cu supports, and how they are divided among blocks: rooftop/kernels/norm/_row_groups.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels.norm import _row_groups


def _rows(p: Problem) -> _row_groups.LongRows:
    return _row_groups.of(p, p["x"], [p["x"], p["y"]], read=1, kept=0, words=2)


def supports(p: Problem, head: Head) -> str | None:
    return _row_groups.refuses(_rows(p), p["x"])


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _row_groups.choose(_rows(p)) or {}


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _row_groups.configs(_rows(p))


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return {"mail": _row_groups.mail(_rows(p), config["blocks"])}


def zeroed(p: Problem, config: Any, head: Head) -> tuple[str, ...]:
    return ("mail",)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    r = _rows(p)
    template = (DTYPES[p["x"].dtype].cuda, config["vectors"], config["stages"], config["lag"], str(r.aligned).lower())
    return [_row_groups.launch(r, config, f"softmax_long<{', '.join(map(str, template))}>", *head.arguments(p, config))]
