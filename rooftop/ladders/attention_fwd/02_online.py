"""out = softmax(scale · q kᵀ) v in tiles: online softmax over the tiles of keys, and no score leaves the registers."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem

IDEA = "A program processes a tile of queries and loops over the keys. Each row keeps its maximum and its sum (online softmax); when the maximum grows, sum \
and result are rescaled."
PREDICT = {"speedup": 8.0}
LIMIT = "Every tile is masked and every tile is visited, half of them for nothing; natural exponentials need one more multiplication each."


@triton.jit
def _forward(q, k, v, out, lse, scale, SQ, SK, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, ob, os, oh, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
             BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, CAUSAL: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * BM
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    rows = row + tl.arange(0, BM)
    d = tl.arange(0, SIZE)
    dv = tl.arange(0, SIZE_V)
    token = rows.to(tl.int64)
    mine = tl.load(q + batch * qb + head * qh + token[:, None] * qs + d[None, :], mask=(rows < SQ)[:, None] & (d < D)[None, :], other=0.0)
    k += batch * kb + head // GROUP * kh
    v += batch * vb + head // GROUP * vh
    acc = tl.zeros((BM, SIZE_V), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, SK, BN):
        columns = start + tl.arange(0, BN)
        at = columns.to(tl.int64)
        keys = tl.load(k + at[None, :] * ks + d[:, None], mask=(columns < SK)[None, :] & (d < D)[:, None], other=0.0)
        z = tl.dot(mine, keys) * scale
        inside = (columns < SK)[None, :]
        if CAUSAL:
            inside = inside & (columns[None, :] <= rows[:, None] + (SK - SQ))
        z = tl.where(inside, z, float("-inf"))
        new = tl.maximum(top, tl.max(z, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(z - base[:, None])
        shrink = tl.exp(top - base)
        total = total * shrink + tl.sum(p, 1)
        values = tl.load(v + at[:, None] * vs + dv[None, :], mask=(columns < SK)[:, None] & (dv < DV)[None, :], other=0.0)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None])
        top = new
    tl.store(lse + (batch * H + head) * SQ + token, top + tl.log(total), mask=rows < SQ)
    acc = acc / tl.where(total == 0, 1.0, total)[:, None]
    to = out + batch * ob + head * oh + token[:, None] * os + dv[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=(rows < SQ)[:, None] & (dv < DV)[None, :])


@dataclass(frozen=True)
class Config:
    BM: int = 64
    BN: int = 64
    warps: int = 4
    stages: int = 2


def supports(p: Problem) -> str | None:
    given = [n for n, m in p.tensors if m is not None and n not in ("q", "k", "v", "out", "lse")]
    if given or p.option("softcap") or p.option("dropout_p") or p.option("left") != -1 or p.option("right") not in (-1, 0):
        return "this ladder takes plain and causal attention"
    if p["q"].dtype not in ("f16", "bf16"):
        return f"this ladder takes f16 and bf16; given {p['q'].dtype}"
    if p["q"].numel == 0 or p["k"].numel == 0:
        return "there is nothing to compute"
    if max(p["q"].shape[3], p["v"].shape[3]) > 128:
        return "this rung takes heads of at most 128 columns"
    return None


def choose(p: Problem) -> Config:
    return Config()


def _width(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def launches(p: Problem, config: Config) -> list[Launch]:
    batch, queries, heads, size = p["q"].shape
    keys, key_heads, size_v = p["k"].shape[1], p["k"].shape[2], p["v"].shape[3]
    tensors = {"q": p["q"], "k": p["k"], "v": p["v"], "o": p["out"]}
    strides = {f"{letter}{s}": m.strides[i] for letter, m in tensors.items() for i, s in enumerate("bsh")}
    args = {"q": "q", "k": "k", "v": "v", "out": "out", "lse": "lse", "scale": "scale", "SQ": queries, "SK": keys, "H": heads, "GROUP": heads // key_heads,
            **strides, "D": size, "DV": size_v, "BM": config.BM, "BN": config.BN, "SIZE": _width(size), "SIZE_V": _width(size_v),
            "CAUSAL": p.option("right") == 0}
    return [Launch(_forward, (-(-queries // config.BM), heads, batch), args, config.warps, config.stages)]
