"""made_up_half for sm_90, a program a block of 256."""

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
def _half(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, (tl.load(x + at, at < n).to(tl.float32) * 0.5).to(out.dtype.element_ty), at < n)


def launches(p: Problem, c: Config) -> list[Launch]:
    n = p["x"].numel
    return [Launch(_half, (triton.cdiv(n, c.block),), {"x": "x", "out": "out", "n": n, "BLOCK": c.block})]
