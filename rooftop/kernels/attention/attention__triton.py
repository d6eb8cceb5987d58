"""FlashAttention-2 forward, portable. Contract: rooftop/ops/attention.py

A program owns a tile of queries of one head and walks the keys that they see: first those tiles that all of its queries see whole, then those at the edges,
which are masked. The maximum and the sum are kept per row (online softmax), in base 2, with scale · log2(e) folded into one FMA. The longest tiles of a
causal call come first. Packed sequences: each program finds its own among the bounds."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device import attention as shared
from rooftop.kernels._device.attention import LOG2E, added, seen, sequence, tanh


@triton.jit
def _walk(acc, top, total, q, k, v, bias, begin, end, rows, rows_in, keys, position, factor, cap, slope, ks, vs, zs, zk, D: tl.constexpr, DV: tl.constexpr,
          BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
          ALIBI: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Tiles of keys from `begin` to `end`, multiples of BN. MASKED: not every query sees every key of them."""
    d = tl.arange(0, SIZE)
    dv = tl.arange(0, SIZE_V)
    for start in range(begin, end, BN):
        columns = start + tl.arange(0, BN)
        k_at = k + columns.to(tl.int64)[None, :] * ks + d[:, None]
        v_at = v + columns.to(tl.int64)[:, None] * vs + dv[None, :]
        columns_in = columns < keys
        if MASKED or SIZE != D:
            kt = tl.load(k_at, mask=columns_in[None, :] & (d < D)[:, None], other=0.0)
        else:
            kt = tl.load(k_at)
        z = tl.dot(q, kt)
        if CAP:
            z = tanh(z * cap) * factor
        elif BIAS or ALIBI:
            z = z * factor
        z = added(z, rows, columns, rows_in, columns_in, bias, zs, zk, slope, position, LOG2E, BIAS, ALIBI)
        if MASKED:
            z = tl.where(seen(rows, columns, position, keys, LEFT, RIGHT), z, float("-inf"))
        if CAP or BIAS or ALIBI:
            new = tl.maximum(top, tl.max(z, 1))  # a NaN comes through the exponentials
            base = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(z - base[:, None])
        else:
            new = tl.maximum(top, tl.max(z, 1) * factor)
            base = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(z * factor - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        if MASKED or SIZE_V != DV:
            vt = tl.load(v_at, mask=columns_in[:, None] & (dv < DV)[None, :], other=0.0)
        else:
            vt = tl.load(v_at)
        acc = tl.dot(p.to(vt.dtype), vt, acc)
        top = new
    return acc, top, total


@triton.jit(do_not_specialize=["SQ", "SK", "N"])
def _forward(q, k, v, bias, slopes, cu_q, cu_k, out, lse, scale, softcap, SQ, SK, N, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, ob, os, oh, zb, zh, zs,
             zk, ab, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr,
             RIGHT: tl.constexpr, CAP: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Strides of batch, token and head for q, k, v and out, of all four dimensions for bias, of the batch for the slopes; lse is [B, H, SQ]."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0) if RIGHT >= 0 else tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    if cu_q is not None:
        first, count, first_key, keys, row = sequence(tile, cu_q, cu_k, N, SQ, SK, BM)
    else:
        first, count, first_key, keys, row = 0, SQ, 0, SK, tile * BM
    position = keys - count
    rows = row + tl.arange(0, BM)
    rows_in = rows < count
    last_row = tl.minimum(row + BM, count) - 1
    token = first + rows.to(tl.int64)
    d = tl.arange(0, SIZE)
    dv = tl.arange(0, SIZE_V)
    tile_q = tl.load(q + batch * qb + head.to(tl.int64) * qh + token[:, None] * qs + d[None, :], mask=rows_in[:, None] & (d < D)[None, :], other=0.0)
    k += batch * kb + (head // GROUP).to(tl.int64) * kh + tl.cast(first_key, tl.int64) * ks
    v += batch * vb + (head // GROUP).to(tl.int64) * vh + tl.cast(first_key, tl.int64) * vs
    BIAS: tl.constexpr = bias is not None
    ALIBI: tl.constexpr = slopes is not None
    slope = 0.0
    if BIAS:
        bias += batch * zb + head.to(tl.int64) * zh
    if ALIBI:
        slope = tl.load(slopes + batch * ab + head)
    cap = 0.0
    if CAP:
        cap = scale / softcap
        factor = softcap * LOG2E
    else:
        factor = scale * LOG2E

    begin = 0
    whole = 0
    if LEFT >= 0:
        begin = tl.maximum(row + position - LEFT, 0) // BN * BN
        whole = tl.maximum((tl.maximum(last_row + position - LEFT, 0) + BN - 1) // BN * BN, begin)
    stop = keys
    edge = keys
    if RIGHT >= 0:
        stop = tl.maximum(tl.minimum(keys, last_row + position + RIGHT + 1), 0)
        edge = tl.maximum(tl.minimum(keys, row + position + RIGHT + 1), 0)
    end = (stop + BN - 1) // BN * BN
    if count <= row:
        end = begin
    whole_end = tl.maximum(edge // BN * BN, whole)

    acc = tl.zeros((BM, SIZE_V), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    if LEFT >= 0:
        acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, begin, tl.minimum(whole, end), rows, rows_in, keys, position, factor, cap, slope, ks, vs,
                                zs, zk, D, DV, BN, SIZE, SIZE_V, LEFT, RIGHT, CAP, BIAS, ALIBI, True)  # fmt: skip
    acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, whole, tl.minimum(whole_end, end), rows, rows_in, keys, position, factor, cap, slope, ks,
                            vs, zs, zk, D, DV, BN, SIZE, SIZE_V, LEFT, RIGHT, CAP, BIAS, ALIBI, False)  # fmt: skip
    acc, top, total = _walk(acc, top, total, tile_q, k, v, bias, whole_end, end, rows, rows_in, keys, position, factor, cap, slope, ks, vs, zs, zk, D, DV,
                            BN, SIZE, SIZE_V, LEFT, RIGHT, CAP, BIAS, ALIBI, True)  # fmt: skip

    tl.store(lse + (batch * H + head) * SQ + token, (top + tl.log2(total)) / LOG2E, mask=rows_in)
    acc = acc / tl.where(total == 0, 1.0, total)[:, None]
    o_at = out + batch * ob + head.to(tl.int64) * oh + token[:, None] * os + dv[None, :]
    tl.store(o_at, acc.to(out.dtype.element_ty), mask=rows_in[:, None] & (dv < DV)[None, :])


@dataclass(frozen=True)
class Config:
    """Queries and keys of a tile, warps, and stages of the pipeline of keys and values."""

    BM: int
    BN: int
    warps: int
    stages: int


def supports(p: Problem) -> str | None:
    if reason := shared.refused(p, ("mask", "page_table", "cache_lengths", "sinks", "q_scale", "k_scale", "v_scale")):
        return reason
    if max(p["q"].shape[0], p["q"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    return None


def choose(p: Problem) -> Config:
    """As many queries as the registers hold, so that keys are read seldom; as many stages as fit, of tiles of 64 keys."""
    size = max(shared.pow2(p["q"].shape[3]), shared.pow2(p["v"].shape[3]), 16)
    rows = p["q"].shape[1]
    most = max(16, shared.pow2(rows))
    if p.device.arch == 90:
        bm, bn, warps = (128, 64, 8) if size > 64 else (128, 64, 4)
    else:
        bm, bn, warps = (128, 64, 4) if size <= 64 else (128, 32, 8) if size <= 128 else (64, 32, 8)
    bm, bn = min(bm, most), min(bn, max(16, shared.pow2(p["k"].shape[1])))
    stages = 3
    while stages > 1 and _shared(bm, bn, size, stages) > p.device.shared_per_block:
        stages -= 1
    return Config(bm, bn, warps if bm >= 64 else 4, stages)


def _shared(bm: int, bn: int, size: int, stages: int) -> int:
    """Bytes of shared memory: the queries, and the stages of keys and values."""
    return 2 * size * (bm + 2 * bn * stages)


def configs(p: Problem) -> list[Config]:
    size = max(shared.pow2(p["q"].shape[3]), shared.pow2(p["v"].shape[3]), 16)
    found = [Config(bm, bn, w, s) for bm in (64, 128) for bn in (32, 64, 128) for w in (4, 8) for s in (2, 3, 4)]
    return [c for c in found if _shared(c.BM, c.BN, size, c.stages) <= p.device.shared_per_block and c.BM * size <= c.warps * 32 * 64]


def launches(p: Problem, config: Config) -> list[Launch]:
    q, k, v = p["q"], p["k"], p["v"]
    batch, queries, heads, size = q.shape
    packed, slopes = shared.packed(p), p.get("alibi_slopes")
    args = {
        "q": "q", "k": "k", "v": "v", "bias": "bias" if p.get("bias") else None, "slopes": "alibi_slopes" if slopes else None,
        "cu_q": "cu_seqlens_q" if packed else None, "cu_k": "cu_seqlens_k" if packed else None, "out": "out", "lse": "lse", "scale": "scale",
        "softcap": float(p.option("softcap")), "SQ": queries, "SK": k.shape[1], "N": p["cu_seqlens_q"].shape[0] - 1 if packed else 0, "H": heads,
        "GROUP": heads // k.shape[2], **shared.strides(p, "q", "q"), **shared.strides(p, "k", "k"), **shared.strides(p, "v", "v"),
        **shared.strides(p, "o", "out"), **shared.broadcast(p.get("bias")), "ab": heads if slopes and len(slopes.shape) == 2 else 0, "D": size,
        "DV": v.shape[3], "BM": config.BM, "BN": config.BN, "SIZE": max(16, shared.pow2(size)), "SIZE_V": max(16, shared.pow2(v.shape[3])),
        **shared.windows(p), "CAP": float(p.option("softcap")) != 0,
    }  # fmt: skip
    return [Launch(_forward, (shared.tiles(p, config.BM), heads, batch), args, config.warps, config.stages)]
