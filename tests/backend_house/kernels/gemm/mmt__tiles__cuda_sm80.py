"""What the head of mmt__tiles__cuda_sm80.cu cannot say: the choice of rows, and as many launches as it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem

SHARE = 64  # rows of c that one launch computes


def supports(p: Problem, head: Head) -> str | None:
    return "rows of at most 4096 elements" if p["a"].shape[1] > 4096 else None


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return {"rows": 8 if p["c"].shape[0] % 8 == 0 else 2}


def configs(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    return [{"rows": n} for n in (1, 2, 4, 8, 16)]


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    rows, columns = p["c"].shape
    args, types = head.arguments(p, config)
    kernel = head.kernel_name("mmt<{rows}>", head.scope(p, config))
    return [
        Launch(kernel, (-(-columns // 32), -(-min(SHARE, rows - first) // config["rows"])), {**args, "first": first}, types=types, block=(32, config["rows"]))
        for first in range(0, rows, SHARE)
    ]
