"""Attention to a cache of latent vectors, whose first columns are the values. Contract: rooftop/ops/latent_attention.py

A token of 512 + 64 columns serves all heads, and a tile of tokens in shared memory serves both products: the scores from all of its columns,
the result from the first. So the cache is read once for a tile of rows, which are the heads and queries of a key head. Up to 16 rows meet
a tile in mma; more in tiles of 64 in wgmma, where two warpgroups hold half of the columns of the result each (128 registers a thread) and both
compute the scores, a quarter more arithmetic. 128 heads make 240 operations a byte, as many as an H200 has: then the products bound it, else
the read. The tokens of a sequence are divided among as many programs as fill the card; a second launch joins the parts."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention import _latent
from rooftop.kernels.attention._tiles import LOG2E, page_of

FEW, MANY = 16, 64  # rows of a tile


@triton.jit(do_not_specialize=["SQ", "SK", "PAGES"])
def _part(q, kv, table, lengths, kv_scale, out, lse, parts, norms, scale, SQ, SK, PAGES, H, GROUP, qb, qs, qh, kb, ks, kh, ob, os, oh, tb, kg,
          V: tl.constexpr, R: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, SIZE_V: tl.constexpr, SIZE_R: tl.constexpr, PAGE: tl.constexpr,
          PARTS: tl.constexpr, CAUSAL: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Part `program_id(0) % PARTS` of the tokens that tile `program_id(0) // PARTS` of the rows sees: out and lse if there is one part, else
    parts [B, H, SQ, PARTS, V] and norms [B, H, SQ, PARTS], in base 2. V and R: columns of a value, and of a key beyond those. Strides of batch,
    token and head."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    part = tl.program_id(0) % PARTS
    first = tl.program_id(0) // PARTS * M
    key_head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    keys = SK
    if lengths is not None:
        keys = tl.minimum(tl.maximum(tl.load(lengths + batch).to(tl.int32), 0), SK)
    position = keys - SQ
    row = first + tl.arange(0, M)
    rows_in = row < SQ * GROUP
    query = row // GROUP
    head = key_head * GROUP + row % GROUP
    dv = tl.arange(0, SIZE_V)
    dr = tl.arange(0, SIZE_R)
    q_at = q + batch * qb + query.to(tl.int64) * qs + head.to(tl.int64) * qh
    of_v = tl.load(q_at[:, None] + dv[None, :], mask=rows_in[:, None] & (dv < V)[None, :], other=0.0)
    of_r = of_v
    if R:
        of_r = tl.load(q_at[:, None] + V + dr[None, :], mask=rows_in[:, None] & (dr < R)[None, :], other=0.0)
    kv += key_head.to(tl.int64) * kh
    if PAGE:
        table += batch * tb
    else:
        kv += batch * kb
    factor = scale * LOG2E
    weight = 1.0
    if kv_scale is not None:
        weight = tl.load(kv_scale + key_head * kg)
        factor = factor * weight
    high = keys
    if CAUSAL:
        last = (tl.minimum(first + M, SQ * GROUP) - 1) // GROUP
        high = tl.maximum(tl.minimum(keys, position + last + 1), 0)
    each = tl.cdiv(tl.cdiv(high, BN), PARTS) * BN
    begin = part * each
    end = tl.minimum(begin + each, high)

    acc = tl.zeros((M, SIZE_V), tl.float32)
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    coming = 0
    if PAGE:
        coming = page_of(table, begin, end, BN, PAGE)
    for start in range(begin, end, BN):
        columns = start + tl.arange(0, BN)
        columns_in = columns < keys
        real = columns_in
        if PAGE:
            page = coming
            coming = page_of(table, start + BN, end, BN, PAGE)  # one iteration ahead: the cache then waits for no other load
            exists = (page >= 0) & (page < PAGES)
            real = columns_in & exists
            at = kv + tl.where(exists, page, 0) * kb + (columns % PAGE).to(tl.int64) * ks
        else:
            at = kv + columns.to(tl.int64) * ks
        c = tl.load(at[:, None] + dv[None, :], mask=real[:, None] & (dv < V)[None, :], other=0.0).to(of_v.dtype)
        z = tl.dot(of_v, tl.trans(c))
        if R:
            r = tl.load(at[:, None] + V + dr[None, :], mask=real[:, None] & (dr < R)[None, :], other=0.0).to(of_v.dtype)
            z = tl.dot(of_r, tl.trans(r), z)
        z = z * factor
        if PAGE:
            z = tl.where(real[None, :] | (columns >= keys)[None, :], z, float("nan"))
        seen = columns_in[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= position + query[:, None])
        z = tl.where(seen, z, float("-inf"))
        new = tl.maximum(top, tl.max(z, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(z - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(c.dtype), c, acc * shrink[:, None])
        top = new

    norm = top + tl.log2(total)
    acc = acc * (weight / tl.where(total == 0, 1.0, total))[:, None]
    number = (batch * H + head) * SQ + query
    inside = rows_in[:, None] & (dv < V)[None, :]
    if PARTS == 1:
        o_at = out + batch * ob + query.to(tl.int64) * os + head.to(tl.int64) * oh
        tl.store(o_at[:, None] + dv[None, :], acc.to(out.dtype.element_ty), mask=inside)
        tl.store(lse + number, norm / LOG2E, mask=rows_in)
    else:
        number = number * PARTS + part
        tl.store(parts + number[:, None] * V + dv[None, :], acc, mask=inside)
        tl.store(norms + number, norm, mask=rows_in)


@dataclass(frozen=True)
class Config:
    """Rows of a tile, tokens of a tile, warps, pipeline stages, and parts of the tokens of a sequence."""

    M: int
    BN: int
    warps: int
    stages: int
    parts: int


def supports(p: Problem) -> str | None:
    q, kv = p["q"], p["kv"]
    if q.dtype not in ("f16", "bf16") or kv.dtype not in (q.dtype, shared.EIGHT_BITS):
        return f"takes f16 and bf16, and kv of {shared.EIGHT_BITS}; given {q.dtype} and {kv.dtype}"
    if kv.dtype == shared.EIGHT_BITS and p.device.arch < 89:
        return f"Triton has {shared.EIGHT_BITS} from sm_89 on"
    if reason := _latent.refused(p):
        return reason
    if _held(p, FEW, 16, 2) > p.device.shared_per_block:
        return f"needs {_held(p, FEW, 16, 2)} bytes of shared memory"
    return None


def _held(p: Problem, m: int, bn: int, stages: int) -> int:
    """Bytes of shared memory: the queries, the tiles in flight and in use, in 16 bits where they are multiplied."""
    value, more = _latent.columns(p)
    size = max(16, pow2(value)) + (max(16, pow2(more)) if more else 0)
    coded = p["kv"].itemsize == 1
    return 2 * m * (size + bn) + bn * size * (stages * p["kv"].itemsize + 2 * coded)


def _resident(p: Problem, m: int, bn: int, stages: int) -> int:
    return max(1, (p.device.shared_per_block + 1024) // (_held(p, m, bn, stages) + 1024))


def choose(p: Problem) -> Config:
    """Tiles of 16 rows where that is all, else of 64; of 8 bits always of 64, as wgmma reads what was converted from shared memory. The longest
    tile of tokens of which two fit into shared memory, and as many stages as fit."""
    wgmma = p.device.arch == 90 and (_latent.rows(p) > FEW or p["kv"].itemsize == 1)
    m, warps = (MANY, 8) if wgmma else (FEW, 4)
    room, budget = max(16, pow2(_latent.room(p))), p.device.shared_per_block - 2048
    bn = next(n for n in (64, 32, 16) if (n == 16 or _held(p, m, n, 2) <= budget) and n <= max(room, 16))
    stages = max((s for s in (2, 3, 4) if _held(p, m, bn, s) <= budget), default=2)
    blocks, tiles = -(-_latent.rows(p) // m) * p["kv"].shape[2] * p["q"].shape[0], -(-_latent.room(p) // bn)
    slots = p.device.sms * _resident(p, m, bn, stages)
    return Config(m, bn, warps, stages, _latent.parts(blocks, slots, tiles, 2))


def configs(p: Problem) -> list[Config]:
    c = choose(p)
    found = [Config(m, bn, w, s, n) for n in (c.parts, 2 * c.parts) for m, w in ((FEW, 4), (FEW, 8), (MANY, 8)) for bn in (16, 32, 64) for s in (2, 3, 4)]
    return [x for x in found if x.parts <= _latent.SPLITS and _held(p, x.M, x.BN, x.stages) <= p.device.shared_per_block - 2048]


def for_any_rows(p: Problem) -> str:
    return "how the tokens are split follows from the number of sequences"


def explains(p: Problem, config: Config) -> str:
    return f"tiles of {config.M} rows and {config.BN} tokens, {config.parts} parts of the tokens of a sequence"


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return _latent.scratch(p, config.parts)


def launches(p: Problem, config: Config) -> list[Launch]:
    (value, more), early = _latent.columns(p), p.device.pdl
    args = {
        **_latent.arguments(p, config.parts), "kv": "kv", **shared.strides(p, "k", "kv"), "M": config.M, "BN": config.BN,
        "SIZE_V": max(16, pow2(value)), "SIZE_R": max(16, pow2(max(more, 1))), "PDL": early,
    }
    tiles = -(-_latent.rows(p) // config.M)
    grid = (tiles * config.parts, p["kv"].shape[2], p["q"].shape[0])
    return [Launch(_part, grid, args, config.warps, config.stages, pdl=early), *_latent.joined(p, config.parts)]
