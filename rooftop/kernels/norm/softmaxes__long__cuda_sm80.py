"""Which rows softmaxes__long__cuda_sm80.cu supports, and how they are divided among blocks: rooftop/kernels/norm/_row_groups.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance
from rooftop.kernels.norm import _row_groups


def _rows(p: Problem) -> _row_groups.LongRows:
    if p.op == "softmax":
        return _row_groups.of(p, p["x"], [p["x"], p["y"]], read=1, kept=0, words=2)
    return _row_groups.of(p, p["y"], [p["y"], p["dy"], p["dx"]], read=2, kept=0, words=1)


def supports(p: Problem, head: Head | None = None) -> str | None:
    return _row_groups.refuses(_rows(p), p["y"])


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
    kernel = instance(f"{p.op}_long", DTYPES[p["y"].dtype].cuda, config["vectors"], config["stages"], config["lag"], r.aligned)
    return [_row_groups.launch(r, config, kernel, *head.arguments(p, config))]
