"""FlashAttention-2 forward, portable, with every option of the contract. Contract: rooftop/ops/attention.py

A program computes a tile of queries of one head and loops over the keys that they see: first the tiles that all of its queries see whole,
then those at the edges, which are masked. The maximum and the sum are kept per row (online softmax), in base 2, with scale · log2(e) folded
into one FMA. The longest tiles of a causal call start first. Packed sequences: each program searches the bounds for its sequence. Pages:
each tile of keys looks up the pages of its tokens. 8 bits are converted to 16 in registers: that is exact, and the weights stay in 16
bits."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem, pow2
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._tiles import LOG2E, kept, numbered, scored, seen, sequence


@triton.jit
def _walk(acc, top, total, q, k, v, bias, mask, table, begin, end, rows, rows_in, low, high, keys, position, factor, cap, slope, seed,
          limit, numbers, kb, ks, vb, vs, zs, zk, ms, mk, PAGES, D: tl.constexpr, DV: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr,
          SIZE_V: tl.constexpr, PAGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
          DROP: tl.constexpr,
          MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Main loop over tiles of keys from `begin` to `end`, multiples of BN. MASKED: a mask is needed."""
    PLAIN: tl.constexpr = not (CAP or ALIBI or bias is not None or mask is not None)
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
        kt = kt.to(q.dtype)
        z = tl.dot(q, kt)
        if not PLAIN:
            there = rows_in[:, None] & columns_in[None, :]
            z, _ = scored(z, rows[:, None], columns[None, :], there, position, factor, cap, slope, bias, zs, zk, mask, ms, mk, CAP, ALIBI)
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
            p = tl.exp2(z * factor - base[:, None])
        else:
            new = tl.maximum(top, tl.max(z, 1))
            base = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(z - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        if DROP:
            p = tl.where(kept(seed, limit, numbers[:, None], start, BN), p, 0.0)
        if MASKED or SIZE_V != DV or PAGE:
            vt = tl.load(v_at, mask=real[:, None] & (dv < DV)[None, :], other=0.0)
        else:
            vt = tl.load(v_at)
        acc = tl.dot(p.to(q.dtype), vt.to(q.dtype), acc)
        top = new
    return acc, top, total


@triton.jit(do_not_specialize=["SQ", "SK", "N", "PAGES", "limit", "EIGHTHS", "seed"])
def _forward(q, k, v, bias, mask, slopes, sinks, key_begin, key_end, cu_q, cu_k, table, lengths, q_scale, k_scale, v_scale, out, lse, scale,
             softcap, seed, limit, stay, SQ, SK, N, PAGES, EIGHTHS, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, ob, os, oh, zb, zh, zs,
             zk, mb, mh, ms, mk, ab, tb, qg, kg, vg, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
             SIZE: tl.constexpr, SIZE_V: tl.constexpr, PAGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr,
             DROP: tl.constexpr,
             SHORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Strides of batch, token and head for q, k, v and out; of all four dimensions for bias (z) and mask (m); of the batch for slopes and
    page table; of the head for the scales of 8 bits. lse is [B, H, SQ]. `stay`: 1 - dropout_p. With pages SK is the capacity of a
    sequence."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0) if RIGHT >= 0 else tl.program_id(0)
    head = tl.program_id(1)
    key_head = head // GROUP
    batch = tl.program_id(2).to(tl.int64)
    if cu_q is not None:
        first, count, first_key, keys, row, there = sequence(tile, cu_q, cu_k, N, SQ, SK, BM)
    else:
        first, count, first_key, keys, row, there = 0, SQ, 0, SK, tile * BM, True
    if lengths is not None:
        keys = tl.minimum(tl.maximum(tl.load(lengths + batch).to(tl.int32), 0), SK)
    position = keys - count
    rows = row + tl.arange(0, BM)
    rows_in = rows < count
    last_row = tl.minimum(row + BM, count) - 1
    token = first + rows.to(tl.int64)
    d = tl.arange(0, SIZE)
    dv = tl.arange(0, SIZE_V)
    tile_q = tl.load(
        q + batch * qb + head.to(tl.int64) * qh + token[:, None] * qs + d[None, :], mask=rows_in[:, None] & (d < D)[None, :], other=0.0
    )
    tile_q = tile_q.to(out.dtype.element_ty)
    k += key_head.to(tl.int64) * kh
    v += key_head.to(tl.int64) * vh
    if PAGE:
        table += batch * tb
    else:
        k += batch * kb + tl.cast(first_key, tl.int64) * ks
        v += batch * vb + tl.cast(first_key, tl.int64) * vs
    ALIBI: tl.constexpr = slopes is not None
    slope = 0.0
    if bias is not None:
        bias += batch * zb + head.to(tl.int64) * zh
    if mask is not None:
        mask += batch * mb + head.to(tl.int64) * mh
    if ALIBI:
        slope = tl.load(slopes + batch * ab + head)
    if q_scale is not None:
        scale *= tl.load(q_scale + head * qg)
    if k_scale is not None:
        scale *= tl.load(k_scale + key_head * kg)
    cap = 0.0
    if CAP:
        cap = scale / softcap
        factor = softcap * LOG2E
    else:
        factor = scale * LOG2E
    numbers = rows
    if DROP:
        numbers = numbered(batch, head, token, H, SQ, EIGHTHS, SHORT)

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

    acc = tl.zeros((BM, SIZE_V), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        sink = tl.where(there, sink, float("-inf"))
        top = tl.where(rows_in, sink, float("-inf"))
        total = tl.where(top == float("-inf"), 0.0, 1.0)
    if LEFT >= 0 or key_begin is not None:
        acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, mask, table, begin, tl.minimum(whole, end), rows, rows_in, low, high,
                                keys, position, factor, cap, slope, seed, limit, numbers, kb, ks, vb, vs, zs, zk, ms, mk, PAGES, D, DV, BN,
                                SIZE, SIZE_V, PAGE, LEFT, RIGHT, CAP, ALIBI, DROP, True)
    acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, mask, table, whole, tl.minimum(whole_end, end), rows, rows_in, low, high,
                            keys, position, factor, cap, slope, seed, limit, numbers, kb, ks, vb, vs, zs, zk, ms, mk, PAGES, D, DV, BN,
                            SIZE, SIZE_V, PAGE, LEFT, RIGHT, CAP, ALIBI, DROP, False)
    acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, mask, table, whole_end, end, rows, rows_in, low, high, keys, position,
                            factor, cap, slope, seed, limit, numbers, kb, ks, vb, vs, zs, zk, ms, mk, PAGES, D, DV, BN, SIZE, SIZE_V, PAGE,
                            LEFT, RIGHT, CAP, ALIBI, DROP, True)

    tl.store(lse + (batch * H + head) * SQ + token, (top + tl.log2(total)) / LOG2E, mask=rows_in)
    norm = 1.0 / tl.where(total == 0, 1.0, total)
    if DROP:
        norm = norm / stay
    if v_scale is not None:
        norm = norm * tl.load(v_scale + key_head * vg)
    acc = acc * norm[:, None]
    o_at = out + batch * ob + head.to(tl.int64) * oh + token[:, None] * os + dv[None, :]
    tl.store(o_at, acc.to(out.dtype.element_ty), mask=rows_in[:, None] & (dv < DV)[None, :])


@dataclass(frozen=True)
class Config:
    """Queries and keys of a tile, warps, and pipeline stages of keys and values."""

    BM: int
    BN: int
    warps: int
    stages: int


def supports(p: Problem) -> str | None:
    if reason := shared.refused(p, (), dropout=True, eight=True, ranges=True):
        return reason
    if max(p["q"].shape[0], p["q"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    return None


def choose(p: Problem) -> Config:
    """As many queries as the registers hold, so that keys are read as rarely as possible; as many stages as fit."""
    size = max(pow2(p["q"].shape[3]), pow2(p["v"].shape[3]), 16)
    most = max(16, pow2(p["q"].shape[1]))
    if p.device.arch == 90:
        bm, bn, warps = (128, 64, 4) if size <= 64 else (128, 128, 8) if size <= 128 and not _tiled(p) else (128, 64, 8)
    else:
        bm, bn, warps = (128, 64, 4) if size <= 64 else (128, 32, 8) if size <= 128 else (64, 32, 8)
    bm, bn = min(bm, most), min(bn, max(16, pow2(shared.room(p))))
    stages = min(3, max(1, -(-shared.room(p) // bn)))  # no more than there are tiles of keys
    while stages > 1 and _shared(bm, bn, size, stages) + bm * bn * stages * _tiled(p) > p.device.shared_per_block:
        stages -= 1
    return Config(bm, bn, warps if bm > 64 else 4, stages)  # a warpgroup multiplies 64 queries


def _tiled(p: Problem) -> int:
    """Bytes of bias and mask for each score; their tiles are in shared memory like those of keys."""
    return sum(m.itemsize for n in ("bias", "mask") if (m := p.get(n)) is not None)


def _shared(bm: int, bn: int, size: int, stages: int) -> int:
    """Bytes of shared memory: the queries, and the stages of keys and values."""
    return 2 * size * (bm + 2 * bn * stages)


def configs(p: Problem) -> list[Config]:
    size = max(pow2(p["q"].shape[3]), pow2(p["v"].shape[3]), 16)
    found = [Config(bm, bn, w, s) for bm in (64, 128) for bn in (32, 64, 128) for w in (4, 8) for s in (2, 3, 4)]
    most = p.device.shared_per_block
    return [
        c for c in found if _shared(c.BM, c.BN, size, c.stages) + c.BM * c.BN * c.stages * _tiled(p) <= most
        and c.BM * size <= c.warps * 32 * 64
    ]


def for_any_rows(p: Problem) -> str:
    return "its tiles follow from the numbers of queries and keys, and it does not split the keys as decoding does"


def launches(p: Problem, config: Config) -> list[Launch]:
    q, k, v = p["q"], p["k"], p["v"]
    batch, queries, heads, size = q.shape
    packed, slopes, pages = shared.packed(p), p.get("alibi_slopes"), p.get("page_table")

    def name(tensor: str) -> str | None:
        return tensor if p.get(tensor) is not None else None

    args = {
        "q": "q", "k": "k", "v": "v", "bias": name("bias"), "mask": name("mask"), "slopes": name("alibi_slopes"), "sinks": name("sinks"),
        "key_begin": name("key_begin"), "key_end": name("key_end"), "cu_q": name("cu_seqlens_q"), "cu_k": name("cu_seqlens_k"),
        "table": name("page_table"), "lengths": name("cache_lengths"), "q_scale": name("q_scale"), "k_scale": name("k_scale"),
        "v_scale": name("v_scale"), "out": "out", "lse": "lse", "scale": "scale", "softcap": shared.softcap(p), "seed": "seed",
        "stay": 1.0 - float(p.option("dropout_p")), "SQ": queries, "SK": shared.room(p),
        "N": p["cu_seqlens_q"].shape[0] - 1 if packed else 0, "PAGES": k.shape[0] if pages else 0, "H": heads,
        "GROUP": heads // k.shape[2], **shared.strides(p, "q", "q"), **shared.strides(p, "k", "k"), **shared.strides(p, "v", "v"),
        **shared.strides(p, "o", "out"), **shared.broadcast(p.get("bias")), **shared.broadcast(p.get("mask"), "m"),
        "ab": heads if slopes and len(slopes.shape) == 2 else 0, "tb": pages.strides[0] if pages else 0, **shared.scale_strides(p),
        **shared.dropout(p), "D": size, "DV": v.shape[3], "BM": config.BM, "BN": config.BN, "SIZE": max(16, pow2(size)),
        "SIZE_V": max(16, pow2(v.shape[3])), "PAGE": k.shape[1] if pages else 0, **shared.windows(p),
        "CAP": float(p.option("softcap")) != 0,
    }
    return [Launch(_forward, (shared.tiles(p, config.BM), heads, batch), args, config.warps, config.stages)]
