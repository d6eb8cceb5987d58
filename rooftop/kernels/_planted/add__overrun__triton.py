"""Planted fault: the store has no mask, so the last program writes past the end. memcheck must find it."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem


@triton.jit
def overrun(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n))  # the fault


def supports(p: Problem) -> str | None:
    return None


def choose(p: Problem) -> dict[str, int]:
    return {"block": 1024}


def launches(p: Problem, config: dict[str, int]) -> list[Launch]:
    n, block = p["x"].numel, config["block"]
    return [Launch(kernel=overrun, grid=(-(-n // block),), args={"x": "x", "y": "y", "out": "out", "n": n, "BLOCK": block}, warps=4)]
