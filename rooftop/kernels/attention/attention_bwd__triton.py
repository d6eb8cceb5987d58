"""FlashAttention-2 backward, portable and deterministic. Contract: rooftop/ops/attention.py

Three launches, no atomics. The first takes delta_i = sum_d dout_id · out_id - dlse_i. In the second a program owns a tile of keys, walks the queries that
see it, of all query heads that share the key head, and makes dk and dv; scores are made transposed, so that weights and their gradients stay in registers as
left operands. In the third a program owns a tile of queries, walks its keys again and makes dq. Seven products of tiles, where five would do with atomics."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import attention as shared
from rooftop.kernels._device.attention import LOG2E, seen, sequence, tanh

ROWS = 64  # of a program of the first launch


@triton.jit(do_not_specialize=["SQ"])
def _delta(dout, out, dlse, delta, SQ, H, gb, gs, gh, ob, os, oh, DV: tl.constexpr, SIZE_V: tl.constexpr, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """[B, H, SQ]: what a row of weights and their gradients have in common."""
    token = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    d = tl.arange(0, SIZE_V)
    inside = (token < SQ)[:, None] & (d < DV)[None, :]
    a = tl.load(dout + batch * gb + head * gh + token[:, None] * gs + d[None, :], mask=inside, other=0.0).to(tl.float32)
    b = tl.load(out + batch * ob + head * oh + token[:, None] * os + d[None, :], mask=inside, other=0.0).to(tl.float32)
    at = (batch * H + head) * SQ + token
    total = tl.sum(a * b, 1)
    if dlse is not None:
        total -= tl.load(dlse + at, mask=token < SQ, other=0.0)
    tl.store(delta + at, total, mask=token < SQ)


@triton.jit
def _weights(z, dp, norm, delta, inside, factor, cap, slope, apart, CAP: tl.constexpr, ALIBI: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """(the weights, the gradient of the scores but for the scale) of a tile; `norm` and `delta` are spread over it, `norm` in base 2."""
    if CAP:
        t = tanh(z * cap)
        z = t * factor
    else:
        z = z * factor
    if ALIBI:
        z -= tl.abs(apart).to(tl.float32) * (slope * LOG2E)
    if MASKED:
        z = tl.where(inside, z, float("-inf"))
    p = tl.exp2(z - norm)
    ds = p * (dp - delta)
    if CAP:
        ds = ds * (1 - t * t)
    return p, ds


@triton.jit
def _walk_queries(dk, dv, k, v, q, dout, lse, delta, begin, end, columns, count, keys, position, factor, cap, slope, qs, gs, D: tl.constexpr,
                  DV: tl.constexpr, BM: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr,
                  ALIBI: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Tiles of queries from `begin` to `end`, multiples of BM. MASKED: not every query sees every key, or is one."""
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    for start in range(begin, end, BM):
        rows = start + tl.arange(0, BM)
        rows_in = rows < count
        at = rows.to(tl.int64)
        mine = tl.load(q + at[:, None] * qs + d[None, :], mask=rows_in[:, None] & (d < D)[None, :], other=0.0)
        flow = tl.load(dout + at[:, None] * gs + e[None, :], mask=rows_in[:, None] & (e < DV)[None, :], other=0.0)
        norm = tl.load(lse + at, mask=rows_in, other=0.0) * LOG2E
        norm = tl.where(norm == float("-inf"), 0.0, norm)
        common = tl.load(delta + at, mask=rows_in, other=0.0)
        inside = tl.trans(seen(rows, columns, position, keys, LEFT, RIGHT)) & rows_in[None, :]
        apart = columns[:, None] - (rows + position)[None, :]
        z = tl.dot(k, tl.trans(mine))
        dp = tl.dot(v, tl.trans(flow))
        p, ds = _weights(z, dp, norm[None, :], common[None, :], inside, factor, cap, slope, apart, CAP, ALIBI, MASKED)
        dv = tl.dot(p.to(flow.dtype), flow, dv)
        dk = tl.dot(ds.to(mine.dtype), mine, dk)
    return dk, dv


@triton.jit(do_not_specialize=["SQ", "SK", "N"])
def _keys(q, k, v, dout, lse, delta, slopes, cu_q, cu_k, dk, dv, scale, softcap, SQ, SK, N, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, gb, gs, gh, yb, ys,
          yh, wb, ws, wh, ab, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr,
          LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """dk and dv of a tile of keys. Strides of batch, token and head: q, k, v, dout (g), dk (y), dv (w)."""
    tile = tl.program_id(0)
    key_head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    if cu_q is not None:
        first_key, keys, first, count, column = sequence(tile, cu_k, cu_q, N, SK, SQ, BN)
    else:
        first_key, keys, first, count, column = 0, SK, 0, SQ, tile * BN
    position = keys - count
    columns = column + tl.arange(0, BN)
    columns_in = columns < keys
    token = first_key + columns.to(tl.int64)
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    inside = columns_in[:, None] & (d < D)[None, :]
    inside_v = columns_in[:, None] & (e < DV)[None, :]
    mine = tl.load(k + batch * kb + key_head.to(tl.int64) * kh + token[:, None] * ks + d[None, :], mask=inside, other=0.0)
    values = tl.load(v + batch * vb + key_head.to(tl.int64) * vh + token[:, None] * vs + e[None, :], mask=inside_v, other=0.0)
    ALIBI: tl.constexpr = slopes is not None
    cap = 0.0
    if CAP:
        cap = scale / softcap
        factor = softcap * LOG2E
    else:
        factor = scale * LOG2E
    last = tl.minimum(column + BN, keys) - 1
    begin = 0
    whole = 0
    if RIGHT >= 0:
        begin = tl.maximum(column - position - RIGHT, 0) // BM * BM
        whole = tl.maximum((tl.maximum(last - position - RIGHT, 0) + BM - 1) // BM * BM, begin)
    stop = count
    edge = count
    if LEFT >= 0:
        stop = tl.maximum(tl.minimum(count, last - position + LEFT + 1), 0)
        edge = tl.maximum(tl.minimum(count, column - position + LEFT + 1), 0)
    end = (stop + BM - 1) // BM * BM
    if keys <= column:
        end = begin
    whole_end = tl.maximum(edge // BM * BM, whole)
    to_k = tl.zeros((BN, SIZE), tl.float32)
    to_v = tl.zeros((BN, SIZE_V), tl.float32)
    for g in range(GROUP):
        head = (key_head * GROUP + g).to(tl.int64)
        slope = 0.0
        if ALIBI:
            slope = tl.load(slopes + batch * ab + head)
        q_at = q + batch * qb + head * qh + tl.cast(first, tl.int64) * qs
        g_at = dout + batch * gb + head * gh + tl.cast(first, tl.int64) * gs
        row = (batch * H + head) * SQ + first
        if RIGHT >= 0:
            to_k, to_v = _walk_queries(to_k, to_v, mine, values, q_at, g_at, lse + row, delta + row, begin, tl.minimum(whole, end), columns, count, keys,
                                       position, factor, cap, slope, qs, gs, D, DV, BM, SIZE, SIZE_V, LEFT, RIGHT, CAP, ALIBI, True)  # fmt: skip
        to_k, to_v = _walk_queries(to_k, to_v, mine, values, q_at, g_at, lse + row, delta + row, whole, tl.minimum(whole_end, end), columns, count, keys,
                                   position, factor, cap, slope, qs, gs, D, DV, BM, SIZE, SIZE_V, LEFT, RIGHT, CAP, ALIBI, False)  # fmt: skip
        to_k, to_v = _walk_queries(to_k, to_v, mine, values, q_at, g_at, lse + row, delta + row, whole_end, end, columns, count, keys, position, factor, cap,
                                   slope, qs, gs, D, DV, BM, SIZE, SIZE_V, LEFT, RIGHT, CAP, ALIBI, True)  # fmt: skip
    tl.store(dk + batch * yb + key_head.to(tl.int64) * yh + token[:, None] * ys + d[None, :], (to_k * scale).to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + batch * wb + key_head.to(tl.int64) * wh + token[:, None] * ws + e[None, :], to_v.to(dv.dtype.element_ty), mask=inside_v)


@triton.jit
def _walk_keys(dq, q, dout, norm, common, k, v, begin, end, rows, rows_in, keys, position, factor, cap, slope, ks, vs, D: tl.constexpr, DV: tl.constexpr,
               BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
               MASKED: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Tiles of keys from `begin` to `end`, multiples of BN. MASKED: not every query sees every key of them."""
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    for start in range(begin, end, BN):
        columns = start + tl.arange(0, BN)
        at = columns.to(tl.int64)
        columns_in = columns < keys
        tile = tl.load(k + at[:, None] * ks + d[None, :], mask=columns_in[:, None] & (d < D)[None, :], other=0.0)
        values = tl.load(v + at[:, None] * vs + e[None, :], mask=columns_in[:, None] & (e < DV)[None, :], other=0.0)
        inside = seen(rows, columns, position, keys, LEFT, RIGHT)
        apart = columns[None, :] - (rows + position)[:, None]
        z = tl.dot(q, tl.trans(tile))
        dp = tl.dot(dout, tl.trans(values))
        _, ds = _weights(z, dp, norm[:, None], common[:, None], inside, factor, cap, slope, apart, CAP, ALIBI, MASKED)
        dq = tl.dot(ds.to(tile.dtype), tile, dq)
    return dq


@triton.jit(do_not_specialize=["SQ", "SK", "N"])
def _queries(q, k, v, dout, lse, delta, slopes, cu_q, cu_k, dq, scale, softcap, SQ, SK, N, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, gb, gs, gh, xb, xs,
             xh, ab, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr,
             RIGHT: tl.constexpr, CAP: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """dq of a tile of queries. Strides of batch, token and head: q, k, v, dout (g), dq (x)."""
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
    last = tl.minimum(row + BM, count) - 1
    token = first + rows.to(tl.int64)
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    inside = rows_in[:, None] & (d < D)[None, :]
    mine = tl.load(q + batch * qb + head.to(tl.int64) * qh + token[:, None] * qs + d[None, :], mask=inside, other=0.0)
    flow_at = dout + batch * gb + head.to(tl.int64) * gh + token[:, None] * gs + e[None, :]
    flow = tl.load(flow_at, mask=rows_in[:, None] & (e < DV)[None, :], other=0.0)
    at = (batch * H + head) * SQ + token
    norm = tl.load(lse + at, mask=rows_in, other=0.0) * LOG2E
    norm = tl.where(norm == float("-inf"), 0.0, norm)
    common = tl.load(delta + at, mask=rows_in, other=0.0)
    k += batch * kb + (head // GROUP).to(tl.int64) * kh + tl.cast(first_key, tl.int64) * ks
    v += batch * vb + (head // GROUP).to(tl.int64) * vh + tl.cast(first_key, tl.int64) * vs
    ALIBI: tl.constexpr = slopes is not None
    slope = 0.0
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
        whole = tl.maximum((tl.maximum(last + position - LEFT, 0) + BN - 1) // BN * BN, begin)
    stop = keys
    edge = keys
    if RIGHT >= 0:
        stop = tl.maximum(tl.minimum(keys, last + position + RIGHT + 1), 0)
        edge = tl.maximum(tl.minimum(keys, row + position + RIGHT + 1), 0)
    end = (stop + BN - 1) // BN * BN
    if count <= row:
        end = begin
    whole_end = tl.maximum(edge // BN * BN, whole)
    to = tl.zeros((BM, SIZE), tl.float32)
    if LEFT >= 0:
        to = _walk_keys(to, mine, flow, norm, common, k, v, begin, tl.minimum(whole, end), rows, rows_in, keys, position, factor, cap, slope, ks, vs, D, DV,
                        BN, SIZE, SIZE_V, LEFT, RIGHT, CAP, ALIBI, True)  # fmt: skip
    to = _walk_keys(to, mine, flow, norm, common, k, v, whole, tl.minimum(whole_end, end), rows, rows_in, keys, position, factor, cap, slope, ks, vs, D, DV,
                    BN, SIZE, SIZE_V, LEFT, RIGHT, CAP, ALIBI, False)  # fmt: skip
    to = _walk_keys(to, mine, flow, norm, common, k, v, whole_end, end, rows, rows_in, keys, position, factor, cap, slope, ks, vs, D, DV, BN, SIZE, SIZE_V,
                    LEFT, RIGHT, CAP, ALIBI, True)  # fmt: skip
    tl.store(dq + batch * xb + head.to(tl.int64) * xh + token[:, None] * xs + d[None, :], (to * scale).to(dq.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Config:
    """`KN` keys a program of the second launch, which walks `KM` queries at a time; `QM` queries and `QN` keys in the third; warps and stages of both."""

    KN: int
    KM: int
    QM: int
    QN: int
    warps: int
    stages: int


def supports(p: Problem) -> str | None:
    if reason := shared.refused(p, ("mask", "cache_lengths", "sinks", "bias")):
        return reason
    if max(p["q"].shape[0], p["q"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    if (m := p.get("dlse")) is not None and not m.contiguous:
        return "dlse must lie without gaps"
    if not p["lse"].contiguous:
        return "lse must lie without gaps"
    return None


def choose(p: Problem) -> Config:
    size = max(shared.pow2(p["q"].shape[3]), shared.pow2(p["v"].shape[3]), 16)
    rows, keys = (max(16, shared.pow2(p[n].shape[1])) for n in "qk")
    large, hopper = p.device.shared_per_block > 128 * 1024, p.device.arch >= 90
    if size <= 64:
        kn, km, qm, qn, warps = 128, 64 if hopper else 32, 128, 64, 8
    elif size <= 128:
        kn, km, qm, qn, warps = (128, 32, 128, 64, 8) if hopper else (64, 64, 128, 32, 8) if large else (64, 32, 64, 32, 4)
    else:
        kn, km, qm, qn, warps = (64, 16 if hopper else 32, 64, 32, 8) if large else (32, 16, 32, 16, 4)
    return Config(min(kn, keys), min(km, rows), min(qm, rows), min(qn, keys), warps if min(kn, keys, qm, rows) >= 64 else 4, 2)


def configs(p: Problem) -> list[Config]:
    return [Config(n, m, n, m, w, s) for n in (64, 128) for m in (16, 32, 64) for w in (4, 8) for s in (1, 2, 3)]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    batch, queries, heads, _ = p["q"].shape
    return {"delta": Meta((batch, heads, queries), "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    q, k, v = p["q"], p["k"], p["v"]
    batch, queries, heads, size = q.shape
    packed, slopes = shared.packed(p), p.get("alibi_slopes")
    wide = {"DV": v.shape[3], "SIZE_V": max(16, shared.pow2(v.shape[3]))}
    flow = shared.strides(p, "g", "dout")
    args = {
        "q": "q", "k": "k", "v": "v", "dout": "dout", "lse": "lse", "delta": "delta", "slopes": "alibi_slopes" if slopes else None,
        "cu_q": "cu_seqlens_q" if packed else None, "cu_k": "cu_seqlens_k" if packed else None, "scale": "scale", "softcap": float(p.option("softcap")),
        "SQ": queries, "SK": k.shape[1], "N": p["cu_seqlens_q"].shape[0] - 1 if packed else 0, "H": heads, "GROUP": heads // k.shape[2],
        **shared.strides(p, "q", "q"), **shared.strides(p, "k", "k"), **shared.strides(p, "v", "v"), **flow,
        "ab": heads if slopes and len(slopes.shape) == 2 else 0, "D": size, "SIZE": max(16, shared.pow2(size)), **wide, **shared.windows(p),
        "CAP": float(p.option("softcap")) != 0,
    }  # fmt: skip
    delta = {
        "dout": "dout", "out": "out", "dlse": "dlse" if p.get("dlse") else None, "delta": "delta", "SQ": queries, "H": heads, **flow,
        **shared.strides(p, "o", "out"), **wide, "BM": ROWS,
    }  # fmt: skip
    to_keys = {"dk": "dk", "dv": "dv", **shared.strides(p, "y", "dk"), **shared.strides(p, "w", "dv"), "BM": config.KM, "BN": config.KN}
    to_queries = {"dq": "dq", **shared.strides(p, "x", "dq"), "BM": config.QM, "BN": config.QN}
    return [
        Launch(_delta, (-(-queries // ROWS), heads, batch), delta, 4),
        Launch(_keys, (shared.tiles(p, config.KN, "k"), k.shape[2], batch), {**args, **to_keys}, config.warps, config.stages),
        Launch(_queries, (shared.tiles(p, config.QM), heads, batch), {**args, **to_queries}, config.warps, config.stages),
    ]
