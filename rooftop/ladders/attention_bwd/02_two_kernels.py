"""dq, dk and dv in two kernels, which compute the weights again."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem

IDEA = "Weights are recomputed from the normaliser (lse) that the forward stored. A program has a tile of keys and loops over the queries for dk and dv; in a \
second kernel a program has a tile of queries and loops over the keys for dq. Tiles that no query sees are not visited."
PREDICT = {"speedup": 8.0}
LIMIT = "Seven products where five would suffice: both kernels compute scores, gradients of weights, and exponentials."


@triton.jit
def _delta(dout, out, dlse, delta, SQ, H, gb, gs, gh, ob, os, oh, DV: tl.constexpr, SIZE_V: tl.constexpr, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """[B, H, SQ]: sum_d dout · out - dlse, what a row of weights and their gradients have in common."""
    token = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    e = tl.arange(0, SIZE_V)
    inside = (token < SQ)[:, None] & (e < DV)[None, :]
    a = tl.load(dout + batch * gb + head * gh + token[:, None] * gs + e[None, :], mask=inside, other=0.0).to(tl.float32)
    b = tl.load(out + batch * ob + head * oh + token[:, None] * os + e[None, :], mask=inside, other=0.0).to(tl.float32)
    at = (batch * H + head) * SQ + token
    total = tl.sum(a * b, 1)
    if dlse is not None:
        total -= tl.load(dlse + at, mask=token < SQ, other=0.0)
    tl.store(delta + at, total, mask=token < SQ)


@triton.jit
def _keys(q, k, v, dout, lse, delta, dk, dv, scale, SQ, SK, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, gb, gs, gh, yb, ys, yh, wb, ws, wh,
          D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr,
          CAUSAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """dk and dv of a tile of keys. Scores are held transposed, so that they need not be turned for the products."""
    column = (tl.program_id(0)) * BN
    key_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    columns = column + tl.arange(0, BN)
    token = columns.to(tl.int64)
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    inside_k = (columns < SK)[:, None] & (d < D)[None, :]
    inside_v = (columns < SK)[:, None] & (e < DV)[None, :]
    keys = tl.load(k + batch * kb + key_head * kh + token[:, None] * ks + d[None, :], mask=inside_k, other=0.0)
    values = tl.load(v + batch * vb + key_head * vh + token[:, None] * vs + e[None, :], mask=inside_v, other=0.0)
    factor = scale * 1.4426950408889634
    begin = 0
    if CAUSAL:
        begin = tl.maximum(column - (SK - SQ), 0) // BM * BM
    to_k = tl.zeros((BN, SIZE), tl.float32)
    to_v = tl.zeros((BN, SIZE_V), tl.float32)
    for g in range(GROUP):
        head = key_head * GROUP + g
        line = (batch * H + head) * SQ
        for start in range(begin, SQ, BM):
            rows = start + tl.arange(0, BM)
            at = rows.to(tl.int64)
            there = rows < SQ
            mine = tl.load(q + batch * qb + head * qh + at[:, None] * qs + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0)
            flow = tl.load(dout + batch * gb + head * gh + at[:, None] * gs + e[None, :], mask=there[:, None] & (e < DV)[None, :], other=0.0)
            norm = tl.load(lse + line + at, mask=there, other=0.0) * 1.4426950408889634
            norm = tl.where(norm == float("-inf"), 0.0, norm)
            common = tl.load(delta + line + at, mask=there, other=0.0)
            inside = (columns < SK)[:, None] & there[None, :]
            if CAUSAL:
                inside = inside & (columns[:, None] <= rows[None, :] + (SK - SQ))
            p = tl.where(inside, tl.exp2(tl.dot(keys, tl.trans(mine)) * factor - norm[None, :]), 0.0)
            to_v = tl.dot(p.to(flow.dtype), flow, to_v)
            ds = (p * (tl.dot(values, tl.trans(flow)) - common[None, :])).to(mine.dtype)
            to_k = tl.dot(ds, mine, to_k)
    tl.store(dk + batch * yb + key_head * yh + token[:, None] * ys + d[None, :], (to_k * scale).to(dk.dtype.element_ty), mask=inside_k)
    tl.store(dv + batch * wb + key_head * wh + token[:, None] * ws + e[None, :], to_v.to(dv.dtype.element_ty), mask=inside_v)


@triton.jit
def _queries(q, k, v, dout, lse, delta, dq, scale, SQ, SK, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, gb, gs, gh, xb, xs, xh, D: tl.constexpr,
             DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr,
             CAUSAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """dq of a tile of queries."""
    row = tl.program_id(0) * BM
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    rows = row + tl.arange(0, BM)
    there = rows < SQ
    token = rows.to(tl.int64)
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    mine = tl.load(q + batch * qb + head * qh + token[:, None] * qs + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0)
    flow = tl.load(dout + batch * gb + head * gh + token[:, None] * gs + e[None, :], mask=there[:, None] & (e < DV)[None, :], other=0.0)
    at = (batch * H + head) * SQ + token
    norm = tl.load(lse + at, mask=there, other=0.0) * 1.4426950408889634
    norm = tl.where(norm == float("-inf"), 0.0, norm)
    common = tl.load(delta + at, mask=there, other=0.0)
    k += batch * kb + head // GROUP * kh
    v += batch * vb + head // GROUP * vh
    factor = scale * 1.4426950408889634
    stop = SK
    if CAUSAL:
        stop = tl.maximum(tl.minimum(SK, tl.minimum(row + BM, SQ) + (SK - SQ)), 0)
    to = tl.zeros((BM, SIZE), tl.float32)
    for start in range(0, stop, BN):
        columns = start + tl.arange(0, BN)
        key = columns.to(tl.int64)
        keys = tl.load(k + key[:, None] * ks + d[None, :], mask=(columns < SK)[:, None] & (d < D)[None, :], other=0.0)
        values = tl.load(v + key[:, None] * vs + e[None, :], mask=(columns < SK)[:, None] & (e < DV)[None, :], other=0.0)
        inside = there[:, None] & (columns < SK)[None, :]
        if CAUSAL:
            inside = inside & (columns[None, :] <= rows[:, None] + (SK - SQ))
        p = tl.where(inside, tl.exp2(tl.dot(mine, tl.trans(keys)) * factor - norm[:, None]), 0.0)
        ds = p * (tl.dot(flow, tl.trans(values)) - common[:, None])
        to = tl.dot(ds.to(keys.dtype), keys, to)
    to_at = dq + batch * xb + head * xh + token[:, None] * xs + d[None, :]
    tl.store(to_at, (to * scale).to(dq.dtype.element_ty), mask=there[:, None] & (d < D)[None, :])


@dataclass(frozen=True)
class Config:
    """Queries (BM) and keys (BN) of a tile in the kernel of the keys; the kernel of the queries has them the other way round."""

    BM: int = 32
    BN: int = 128
    warps: int = 8
    stages: int = 2


def supports(p: Problem) -> str | None:
    known = ("q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv")
    if any(m is not None and n not in known for n, m in p.tensors) or p.option("softcap") or p.option("dropout_p"):
        return "this ladder takes plain and causal attention"
    if p.option("left") != -1 or p.option("right") not in (-1, 0):
        return "this ladder takes plain and causal attention"
    if p["q"].dtype not in ("f16", "bf16"):
        return f"this ladder takes f16 and bf16; given {p['q'].dtype}"
    if p["q"].numel == 0 or p["k"].numel == 0:
        return "there is nothing to compute"
    if max(p["q"].shape[3], p["v"].shape[3]) > 128:
        return "this rung takes heads of at most 128 columns"
    if not p["lse"].contiguous or ((m := p.get("dlse")) is not None and not m.contiguous):
        return "lse and dlse must lie without gaps"
    return None


def choose(p: Problem) -> Config:
    return Config(warps=4) if max(p["q"].shape[3], p["v"].shape[3]) <= 64 else Config(BM=32 if p.device.arch >= 90 else 16)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    batch, queries, heads, _ = p["q"].shape
    return {"delta": Meta((batch, heads, queries), "f32")}


def _width(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def launches(p: Problem, config: Config) -> list[Launch]:
    batch, queries, heads, size = p["q"].shape
    keys, key_heads, size_v = p["k"].shape[1], p["k"].shape[2], p["v"].shape[3]

    def strides(letter: str, name: str) -> dict[str, int]:
        return {f"{letter}{s}": p[name].strides[i] for i, s in enumerate("bsh")}

    wide = {"DV": size_v, "SIZE_V": _width(size_v)}
    delta = {
        "dout": "dout", "out": "out", "dlse": "dlse" if p.get("dlse") else None, "delta": "delta", "SQ": queries, "H": heads, **strides("g", "dout"),
        **strides("o", "out"), **wide, "BM": 64,
    }
    args = {
        "q": "q", "k": "k", "v": "v", "dout": "dout", "lse": "lse", "delta": "delta", "scale": "scale", "SQ": queries, "SK": keys, "H": heads,
        "GROUP": heads // key_heads, **strides("q", "q"), **strides("k", "k"), **strides("v", "v"), **strides("g", "dout"), "D": size, "SIZE": _width(size),
        **wide, "CAUSAL": p.option("right") == 0,
    }
    to_keys = {"dk": "dk", "dv": "dv", **strides("y", "dk"), **strides("w", "dv"), "BM": config.BM, "BN": config.BN}
    to_queries = {"dq": "dq", **strides("x", "dq"), "BM": config.BN, "BN": config.BM}
    return [
        Launch(_delta, (-(-queries // 64), heads, batch), delta, 4),
        Launch(_keys, (-(-keys // config.BN), key_heads, batch), {**args, **to_keys}, config.warps, config.stages),
        Launch(_queries, (-(-queries // config.BN), heads, batch), {**args, **to_queries}, config.warps, config.stages),
    ]
