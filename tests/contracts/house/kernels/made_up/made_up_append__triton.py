"""made_up_append, a program a block of 256."""

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
def _append(cache, new, n, start, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(cache + start + at, tl.load(new + at, at < n), at < n)


def launches(p: Problem, c: Config) -> list[Launch]:
    n, start = p["new"].numel, int(p.option("at")) * p["cache"].shape[1]
    return [Launch(_append, (triton.cdiv(n, c.block),), {"cache": "cache", "new": "new", "n": n, "start": start, "BLOCK": c.block})]
