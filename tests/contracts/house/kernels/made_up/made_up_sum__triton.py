"""made_up_sum, a program a block of 256."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem


@dataclass(frozen=True)
class Config:
    block: int = 256


def supports(p: Problem) -> str | None:
    return None


def choose(p: Problem) -> Config:
    return Config()


@triton.jit
def _sum(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


def launches(p: Problem, c: Config) -> list[Launch]:
    n = p["x"].numel
    return [Launch(_sum, (triton.cdiv(n, c.block),), {"x": "x", "y": "y", "out": "out", "n": n, "BLOCK": c.block})]
