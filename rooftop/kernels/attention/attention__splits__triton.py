"""Attention under `rooftop.invariant()`: prefill, chunks and decoding add the same splits of keys in the same order. Contract:
rooftop/ops/attention.py

The keys of a sequence are cut at multiples of SPLIT, whatever the batch and the number of queries. Within a split a query sees tiles of BN
keys in order, with a maximum and a sum of their own (online softmax, base 2); then the split joins what came before it. A program either
walks over all splits of its queries and joins them itself, or computes one split, and a second launch joins them: by the same function, in
the same order. A split or a tile of which a query sees nothing changes no bit, so that neither the capacity of a cache nor other queries of
the tile matter.

The queries of the heads that share a key head are rows of one tile. wgmma has 64 rows an instruction, so that a tile of 128 rows gives a
row the bits of a tile of 64. Joining costs some 4 % of the arithmetic of a prefill; few sequences with fewer splits than multiprocessors
leave some idle, where attention__decode__triton.py splits the keys further."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._tiles import LOG2E, seen, sequence, tanh

DEMANDS = {"spills": 64}  # the sums of a split and of all before it are both registers: 56 and 64 bytes on sm_80 and sm_89, 8 on sm_90
SPLIT = 1024  # keys
PACKED = 16  # heads of a tile at most


@triton.jit
def _join(acc, top, total, more, high, count):  # type: ignore[no-untyped-def]
    """Two parts of the keys of each row as one: sums of weighted values [R, DV], the maxima and the sums of the weights [R]. The products
    are contracted by name, so that no compiler chooses which."""
    new = tl.maximum(top, high)
    base = tl.where(new == float("-inf"), 0.0, new)
    old = tl.exp2(top - base)
    fresh = tl.exp2(high - base)
    total = tl.fma(total, old, count * fresh)
    acc = tl.fma(acc, tl.broadcast_to(old[:, None], acc.shape), more * fresh[:, None])
    return acc, new, total


@triton.jit
def _walk(acc, top, total, q, k, v, bias, mask, table, begin, end, rows, heads, rows_in, low, high, keys, position, factor, cap, slope, kb,
          ks, vb, vs, zh, zs, zk, mh, ms, mk, PAGES, D: tl.constexpr, DV: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr,
          SIZE_V: tl.constexpr, PAGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
          WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tiles of keys from `begin` to `end`, multiples of BN. WHOLE: their rows see all keys. factor, cap and slope are of each row. Sums of
    products are contracted by name, so that no compiler chooses which."""
    PLAIN: tl.constexpr = not (CAP or ALIBI or bias is not None or mask is not None)
    # Else the last product of a score and the maximum taken off would be contracted where no mask lies between them, and only there.
    MASKED: tl.constexpr = not (WHOLE and PLAIN)
    d = tl.arange(0, SIZE)
    dv = tl.arange(0, SIZE_V)
    for start in range(begin, end, BN):
        columns = start + tl.arange(0, BN)
        columns_in = columns < keys
        real = columns_in
        if PAGE:
            page = tl.load(table + columns // PAGE, mask=columns_in, other=0).to(tl.int64)
            real = (page >= 0) & (page < PAGES) & columns_in
            page = tl.where(real, page, 0)
            k_at = k + (page * kb + (columns % PAGE).to(tl.int64) * ks)[None, :] + d[:, None]
            v_at = v + (page * vb + (columns % PAGE).to(tl.int64) * vs)[:, None] + dv[None, :]
        else:
            k_at = k + columns.to(tl.int64)[None, :] * ks + d[:, None]
            v_at = v + columns.to(tl.int64)[:, None] * vs + dv[None, :]
        if MASKED or SIZE != D or PAGE:
            kt = tl.load(k_at, mask=real[None, :] & (d < D)[:, None], other=0.0)
        else:
            kt = tl.load(k_at)
        z = tl.dot(q, kt.to(q.dtype))
        if not PLAIN:
            if WHOLE:  # so that bias and mask are loaded in vectors
                there = rows_in[:, None]
            else:
                there = rows_in[:, None] & columns_in[None, :]
            if CAP:
                z = tanh(z * cap[:, None])
            z = z * factor[:, None]
            if bias is not None:
                at = heads.to(tl.int64)[:, None] * zh + rows.to(tl.int64)[:, None] * zs + columns.to(tl.int64)[None, :] * zk
                z = tl.fma(tl.load(bias + at, mask=there, other=0.0).to(tl.float32), tl.full(z.shape, LOG2E, tl.float32), z)
            if ALIBI:
                away = tl.abs(columns[None, :] - (rows[:, None] + position)).to(tl.float32)
                z = tl.fma(away, tl.broadcast_to(slope[:, None] * -LOG2E, z.shape), z)
            if mask is not None:
                at = heads.to(tl.int64)[:, None] * mh + rows.to(tl.int64)[:, None] * ms + columns.to(tl.int64)[None, :] * mk
                z = tl.where(tl.load(mask + at, mask=there, other=0) != 0, z, float("-inf"))
        if PAGE:
            z = tl.where(real[None, :] | (columns >= keys)[None, :], z, float("nan"))
        if MASKED:
            inside = seen(rows[:, None], columns[None, :], position, keys, LEFT, RIGHT)
            if low is not None:
                inside = inside & (columns[None, :] >= low[:, None]) & (columns[None, :] < high[:, None])
            z = tl.where(inside, z, float("-inf"))
        if PLAIN:
            new = tl.maximum(top, tl.max(z, 1) * factor)  # a NaN passes through the exponentials
            base = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(tl.fma(z, tl.broadcast_to(factor[:, None], z.shape), -base[:, None]))
        else:
            new = tl.maximum(top, tl.max(z, 1))
            base = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(z - base[:, None])
        shrink = tl.exp2(top - base)
        total = tl.fma(total, shrink, tl.sum(p, 1))
        acc = acc * shrink[:, None]
        if MASKED or SIZE_V != DV or PAGE:
            vt = tl.load(v_at, mask=real[:, None] & (dv < DV)[None, :], other=0.0)
        else:
            vt = tl.load(v_at)
        acc = tl.dot(p.to(q.dtype), vt.to(q.dtype), acc)
        top = new
    return acc, top, total


@triton.jit(do_not_specialize=["SQ", "SK", "N", "PAGES"])
def _splits(q, k, v, bias, mask, slopes, sinks, key_begin, key_end, cu_q, cu_k, table, lengths, q_scale, k_scale, v_scale, out, lse, parts,
            tops, totals, scale, softcap, SQ, SK, N, PAGES, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, ob, os, oh, zb, zh, zs, zk, mb,
            mh, ms, mk, ab, tb, qg, kg, vg, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr,
            SIZE_V: tl.constexpr, PAGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, HEADS: tl.constexpr,
            SPLIT: tl.constexpr, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (t · PARTS + part, h, b): tile t of the queries of HEADS heads; with PARTS > 1 its split `part` alone, whose sums, maxima and
    weights go to parts [B, H, SQ, PARTS, DV], tops and totals [B, H, SQ, PARTS]. Strides as in attention__triton.py."""
    QUERIES: tl.constexpr = BM // HEADS
    tile = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    if RIGHT >= 0:
        tile = tl.num_programs(0) // PARTS - 1 - tile
    key_head = tl.program_id(1) * HEADS // GROUP
    batch = tl.program_id(2).to(tl.int64)
    if cu_q is not None:
        first, count, first_key, keys, row, there = sequence(tile, cu_q, cu_k, N, SQ, SK, QUERIES)
    else:
        first, count, first_key, keys, row, there = 0, SQ, 0, SK, tile * QUERIES, True
    if lengths is not None:
        keys = tl.minimum(tl.maximum(tl.load(lengths + batch).to(tl.int32), 0), SK)
    position = keys - count
    r = tl.arange(0, BM)
    rows = row + r // HEADS
    heads = tl.program_id(1) * HEADS + r % HEADS
    rows_in = (rows < count) & (r < QUERIES * HEADS)
    last_row = tl.minimum(row + QUERIES, count) - 1
    token = first + rows.to(tl.int64)
    d = tl.arange(0, SIZE)
    dv = tl.arange(0, SIZE_V)
    q_at = q + batch * qb + heads.to(tl.int64)[:, None] * qh + token[:, None] * qs + d[None, :]
    tile_q = tl.load(q_at, mask=rows_in[:, None] & (d < D)[None, :], other=0.0).to(out.dtype.element_ty)
    k += key_head.to(tl.int64) * kh
    v += key_head.to(tl.int64) * vh
    if PAGE:
        table += batch * tb
    else:
        k += batch * kb + tl.cast(first_key, tl.int64) * ks
        v += batch * vb + tl.cast(first_key, tl.int64) * vs
    ALIBI: tl.constexpr = slopes is not None
    scales = tl.zeros((BM,), tl.float32) + scale
    slope = scales
    if bias is not None:
        bias += batch * zb
    if mask is not None:
        mask += batch * mb
    if ALIBI:
        slope = tl.load(slopes + batch * ab + heads, mask=rows_in, other=0.0)
    if q_scale is not None:
        scales *= tl.load(q_scale + heads * qg, mask=rows_in, other=1.0)
    if k_scale is not None:
        scales *= tl.load(k_scale + key_head * kg)
    cap = scales
    factor = scales * LOG2E
    if CAP:
        cap = scales / softcap
        factor = tl.zeros((BM,), tl.float32) + softcap * LOG2E

    begin = 0
    whole = 0
    if LEFT >= 0:
        begin = tl.maximum(row + position - LEFT, 0)
        whole = tl.maximum(last_row + position - LEFT, 0)
    stop = keys
    edge = keys
    if RIGHT >= 0:
        stop = tl.maximum(tl.minimum(keys, last_row + position + RIGHT + 1), 0)
        edge = tl.maximum(tl.minimum(keys, row + position + RIGHT + 1), 0)
    low = None
    high = None
    if key_begin is not None:
        at = batch * SQ + token
        low = tl.load(key_begin + at, mask=rows_in, other=SK).to(tl.int32)
        high = tl.load(key_end + at, mask=rows_in, other=0).to(tl.int32)
        begin = tl.maximum(begin, tl.min(low))
        stop = tl.minimum(stop, tl.max(high))
        whole = tl.maximum(whole, tl.max(tl.where(rows_in, low, 0)))
        edge = tl.minimum(edge, tl.maximum(tl.min(tl.where(rows_in, high, SK)), 0))
    begin = tl.minimum(begin, SK) // BN * BN
    whole = tl.maximum((tl.minimum(whole, SK) + BN - 1) // BN * BN, begin)
    end = (tl.maximum(stop, 0) + BN - 1) // BN * BN
    if count <= row:
        end = begin
    whole_end = tl.maximum(edge // BN * BN, whole)
    from_split = begin // SPLIT
    to_split = tl.maximum((end + SPLIT - 1) // SPLIT, from_split)
    if PARTS > 1:
        from_split = part
        to_split = part + 1

    sums = tl.zeros((BM, SIZE_V), tl.float32)
    most = tl.full((BM,), float("-inf"), tl.float32)
    weights = tl.zeros((BM,), tl.float32)
    if sinks is not None:  # before the first split
        sink = tl.load(sinks + heads, mask=rows_in & there & (part == 0), other=float("-inf")).to(tl.float32) * LOG2E
        most = sink
        weights = tl.where(most == float("-inf"), 0.0, 1.0)
    for split in range(from_split, to_split):
        left = split * SPLIT
        right = left + SPLIT
        acc = tl.zeros((BM, SIZE_V), tl.float32)
        top = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        if LEFT >= 0 or key_begin is not None:
            acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, mask, table, tl.maximum(begin, left),
                                    tl.minimum(tl.minimum(whole, end), right), rows, heads, rows_in, low, high, keys, position, factor, cap,
                                    slope, kb, ks, vb, vs, zh, zs, zk, mh, ms, mk, PAGES, D, DV, BN, SIZE, SIZE_V, PAGE, LEFT, RIGHT, CAP,
                                    ALIBI, False)
        acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, mask, table, tl.maximum(whole, left),
                                tl.minimum(tl.minimum(whole_end, end), right), rows, heads, rows_in, low, high, keys, position, factor, cap,
                                slope, kb, ks, vb, vs, zh, zs, zk, mh, ms, mk, PAGES, D, DV, BN, SIZE, SIZE_V, PAGE, LEFT, RIGHT, CAP,
                                ALIBI, True)
        acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, mask, table, tl.maximum(whole_end, left), tl.minimum(end, right), rows,
                                heads, rows_in, low, high, keys, position, factor, cap, slope, kb, ks, vb, vs, zh, zs, zk, mh, ms, mk,
                                PAGES, D, DV, BN, SIZE, SIZE_V, PAGE, LEFT, RIGHT, CAP, ALIBI, False)
        sums, most, weights = _join(sums, most, weights, acc, top, total)

    number = (batch * H + heads) * SQ + token
    if PARTS > 1:
        number = number * PARTS + part
        tl.store(parts + number[:, None] * DV + dv[None, :], sums, mask=rows_in[:, None] & (dv < DV)[None, :])
        tl.store(tops + number, most, mask=rows_in)
        tl.store(totals + number, weights, mask=rows_in)
    else:
        o_at = out + batch * ob + heads.to(tl.int64)[:, None] * oh + token[:, None] * os + dv[None, :]
        _finish(sums, most, weights, o_at, rows_in[:, None] & (dv < DV)[None, :], lse + number, rows_in, v_scale, key_head * vg)


@triton.jit
def _finish(sums, most, weights, o_at, o_in, lse_at, rows_in, v_scale, scale_at):  # type: ignore[no-untyped-def]
    tl.store(lse_at, (most + tl.log2(weights)) / LOG2E, mask=rows_in)
    norm = 1.0 / tl.where(weights == 0, 1.0, weights)
    if v_scale is not None:
        norm = norm * tl.load(v_scale + scale_at)
    tl.store(o_at, (sums * norm[:, None]).to(o_at.dtype.element_ty), mask=o_in)


@triton.jit
def _join_splits(parts, tops, totals, v_scale, out, lse, SQ, H, GROUP, ob, os, oh, vg, DV: tl.constexpr, SIZE_V: tl.constexpr,
                 PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The splits of one query of one head, in order."""
    row = tl.program_id(0) + tl.arange(0, 1)
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    number = (batch * H + head) * SQ + row.to(tl.int64)
    dv = tl.arange(0, SIZE_V)
    there = (row < SQ)[:, None] & (dv < DV)[None, :]
    at = number * PARTS
    sums = tl.load(parts + at[:, None] * DV + dv[None, :], mask=there, other=0.0)
    most = tl.load(tops + at)
    weights = tl.load(totals + at)
    for i in range(1, PARTS):
        more = tl.load(parts + (at + i)[:, None] * DV + dv[None, :], mask=there, other=0.0)
        sums, most, weights = _join(sums, most, weights, more, tl.load(tops + at + i), tl.load(totals + at + i))
    o_at = out + batch * ob + head.to(tl.int64) * oh + row.to(tl.int64)[:, None] * os + dv[None, :]
    _finish(sums, most, weights, o_at, there, lse + number, row < SQ, v_scale, head // GROUP * vg)


@dataclass(frozen=True)
class Config:
    """Rows of a tile (queries times heads), keys of a tile, warps, pipeline stages, and whether each split is a program of its own."""

    BM: int
    BN: int
    warps: int
    stages: int
    apart: bool = False


def supports(p: Problem) -> str | None:
    if reason := shared.refused(p, (), eight=True, ranges=True):
        return reason
    if max(p["q"].shape[0], p["q"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    return None


def _size(p: Problem) -> int:
    return max(pow2(p["q"].shape[3]), pow2(p["v"].shape[3]), 16)


def _heads(p: Problem) -> int:
    """Heads of a tile: the largest divisor of those that share a key head."""
    group = p["q"].shape[2] // max(p["k"].shape[2], 1)
    return max(n for n in range(1, PACKED + 1) if group % n == 0)


def _tiles(p: Problem, config: Config) -> int:
    return shared.tiles(p, config.BM // _heads(p))


def _splits_of(p: Problem) -> int:
    return -(-shared.room(p) // SPLIT)


def choose(p: Problem) -> Config:
    """The tile of keys follows from the size of a head alone. The sums of a tile's splits and of a split are registers: 64 rows of 128 columns
    leave room for a second program on a multiprocessor; 256 columns are divided among eight warps of 128 rows. Programs for each split where
    tiles are fewer than multiprocessors."""
    size, small = _size(p), p.device.shared_per_block < 160 * 1024
    tiled = sum(m.itemsize for n in ("bias", "mask") if (m := p.get(n)) is not None) > 0
    bn = 32 if size > 128 and (small or tiled) else 64
    stages = 2 if small or size > 128 else 3
    few = p["q"].shape[1] * _heads(p) <= 64
    config = Config(64, bn, 4, stages) if few or (not tiled and size <= 128) else Config(128, bn, 8, stages)
    blocks = _tiles(p, config) * (p["q"].shape[2] // _heads(p)) * p["q"].shape[0]
    return Config(config.BM, bn, config.warps, stages, _splits_of(p) > 1 and blocks < 2 * p.device.sms)


for_any_rows = choose


def configs(p: Problem) -> list[Config]:
    return [choose(p)]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    if not config.apart:
        return {}
    batch, queries, heads, _ = p["q"].shape
    shape = (batch, heads, queries, _splits_of(p))
    return {"parts": Meta((*shape, p["v"].shape[3]), "f32"), "tops": Meta(shape, "f32"), "totals": Meta(shape, "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    q, k, v = p["q"], p["k"], p["v"]
    batch, queries, heads, size = q.shape
    packed, slopes, pages = shared.packed(p), p.get("alibi_slopes"), p.get("page_table")
    parts, group = _splits_of(p) if config.apart else 1, heads // k.shape[2]

    def name(tensor: str) -> str | None:
        return tensor if p.get(tensor) is not None else None

    def apart(tensor: str) -> str | None:
        return tensor if config.apart else None

    result = {
        "parts": apart("parts"), "tops": apart("tops"), "totals": apart("totals"), "v_scale": name("v_scale"), "out": "out", "lse": "lse",
        "SQ": queries, "H": heads, "GROUP": group, **shared.strides(p, "o", "out"), "DV": v.shape[3],
        "SIZE_V": max(16, pow2(v.shape[3])), "PARTS": parts,
    }
    args = {
        "q": "q", "k": "k", "v": "v", "bias": name("bias"), "mask": name("mask"), "slopes": name("alibi_slopes"), "sinks": name("sinks"),
        "key_begin": name("key_begin"), "key_end": name("key_end"), "cu_q": name("cu_seqlens_q"), "cu_k": name("cu_seqlens_k"),
        "table": name("page_table"), "lengths": name("cache_lengths"), "q_scale": name("q_scale"), "k_scale": name("k_scale"),
        "scale": "scale", "softcap": shared.softcap(p), **result, "SK": shared.room(p), "N": p["cu_seqlens_q"].shape[0] - 1 if packed else 0,
        "PAGES": k.shape[0] if pages else 0, **shared.strides(p, "q", "q"), **shared.strides(p, "k", "k"), **shared.strides(p, "v", "v"),
        **shared.broadcast(p.get("bias")), **shared.broadcast(p.get("mask"), "m"),
        "ab": heads if slopes and len(slopes.shape) == 2 else 0, "tb": pages.strides[0] if pages else 0, **shared.scale_strides(p),
        "D": size, "BM": config.BM, "BN": config.BN, "SIZE": max(16, pow2(size)), "PAGE": k.shape[1] if pages else 0,
        **shared.windows(p), "CAP": float(p.option("softcap")) != 0, "HEADS": _heads(p), "SPLIT": SPLIT,
    }
    made = [Launch(_splits, (_tiles(p, config) * parts, heads // _heads(p), batch), args, config.warps, config.stages)]
    if parts > 1:
        more = {**result, "vg": args["vg"]}
        made.append(Launch(_join_splits, (queries, heads, batch), more, 4))
    return made


def explains(p: Problem, config: Config) -> str:
    how = "each a program of its own, joined by a second launch" if config.apart else "joined by the program that computes them"
    return f"splits of {SPLIT} keys, {how}; tiles of {config.BM} rows and {config.BN} keys"
