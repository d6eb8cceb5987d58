"""Two partial attention results merged: a program weights a few rows by their normalisers. Contract: rooftop/ops/merge_attention.py

Each tensor is read once; the kernel is memory-bound."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Problem, pow2
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._tiles import LOG2E


@triton.jit(do_not_specialize=["S", "ROWS"])
def _merge(a, lse_a, b, lse_b, out, lse, S, H, ROWS, ab, as_, ah, bb, bs, bh, ob, os, oh, D: tl.constexpr, SIZE: tl.constexpr,
           BLOCK: tl.constexpr,
           PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK of the ROWS = B · S · H rows, heads first. Strides of batch, token and head for a, b and out."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = row < ROWS
    head = row % H
    token = row // H % S
    batch = row // H // S
    at = (batch * H + head) * S + token
    x = tl.load(lse_a + at, mask=there, other=0.0)
    y = tl.load(lse_b + at, mask=there, other=0.0)
    top = tl.maximum(x, y)
    base = tl.where(top == float("-inf"), 0.0, top)
    of_a = tl.exp2((x - base) * LOG2E)
    of_b = tl.exp2((y - base) * LOG2E)
    total = of_a + of_b
    tl.store(lse + at, base + tl.log2(total) / LOG2E, mask=there)
    total = tl.where(total == 0, 1.0, total)
    d = tl.arange(0, SIZE)
    inside = there[:, None] & (d < D)[None, :]
    first = tl.load(a + (batch * ab + token * as_ + head * ah)[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(b + (batch * bb + token * bs + head * bh)[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    first = tl.where((x == float("-inf"))[:, None], 0.0, first)  # a part that sees no key may hold NaN
    second = tl.where((y == float("-inf"))[:, None], 0.0, second)
    made = first * (of_a / total)[:, None] + second * (of_b / total)[:, None]
    tl.store(out + (batch * ob + token * os + head * oh)[:, None] + d[None, :], made.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Config:
    """Rows of a program, and its warps."""

    block: int
    warps: int


def supports(p: Problem) -> str | None:
    if any(p[n].dtype not in ("f32", "f16", "bf16") for n in "ab"):
        return f"takes f32, f16 and bf16; given {p['a'].dtype} and {p['b'].dtype}"
    if p["a"].numel == 0:
        return "there is nothing to merge"
    return None


def choose(p: Problem) -> Config:
    """16 bytes a thread and tensor."""
    m = p["a"]
    size = max(16, pow2(m.shape[3]))
    return Config(max(1, 128 * 16 // m.itemsize // size), 4)


def configs(p: Problem) -> list[Config]:
    c = choose(p)
    return [Config(n * c.block, w) for n in (1, 2, 4) for w in (4, 8)]


def launches(p: Problem, config: Config) -> list[Launch]:
    batch, tokens, heads, size = p["a"].shape
    rows = batch * tokens * heads
    early = p.device.pdl
    strides = {**shared.strides(p, "a", "a"), **shared.strides(p, "b", "b"), **shared.strides(p, "o", "out")}
    args = {
        "a": "a", "lse_a": "lse_a", "b": "b", "lse_b": "lse_b", "out": "out", "lse": "lse", "S": tokens, "H": heads, "ROWS": rows,
        **{"as_" if n == "as" else n: v for n, v in strides.items()}, "D": size, "SIZE": max(16, pow2(size)), "BLOCK": config.block,
        "PDL": early,
    }
    return [Launch(_merge, (-(-rows // config.block),), args, config.warps, pdl=early)]
