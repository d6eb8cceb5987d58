"""y = x / sqrt(mean(x²) + eps) · weight, one program a row, held whole in registers."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem

IDEA = "The whole row in registers: read once, written once. Sixteen elements per thread, up to 32 warps."
PREDICT = {"speedup": 1.3}
LIMIT = "Within 2 % of a copy; rows of more than 32768 columns do not fit the registers of one program."


@triton.jit
def _rms_norm(x, w, y, C, xs, ys, eps, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    v = tl.load(x + row * xs + column, column < C, other=0).to(tl.float32)
    v *= tl.div_rn(1.0, tl.sqrt_rn(tl.sum(v * v, 0) / C + eps))
    if w is not None:
        v *= tl.load(w + column, column < C, other=0).to(tl.float32)
    tl.store(y + row * ys + column, v.to(y.dtype.element_ty), column < C)


@dataclass(frozen=True)
class Config:
    columns: int
    warps: int


def supports(p: Problem) -> str | None:
    if p.extra or p.get("residual") is not None or p.get("bias") is not None:
        return "this rung adds nothing before and nothing after"
    if p["x"].numel == 0:
        return "there is nothing to compute"
    return None if p["x"].shape[1] <= 32768 else "a row must fit the registers of one program: at most 32768 columns"


def choose(p: Problem) -> Config:
    wide = 1 << (p["x"].shape[1] - 1).bit_length()
    return Config(wide, max(1, min(32, wide // 512)))


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["x"].shape
    args = {"x": "x", "w": "weight", "y": "y", "C": columns, "xs": p["x"].strides[0], "ys": p["y"].strides[0], "eps": float(p.option("eps"))}
    return [Launch(_rms_norm, (rows,), {**args, "COLUMNS": config.columns}, config.warps)]
