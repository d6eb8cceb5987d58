"""FlashAttention-2 backward, portable and deterministic, with every option of the contract. Contract: rooftop/ops/attention.py

No atomics. The first launch computes delta_i = sum_d dout_id · out_id - dlse_i. In the second a program has a tile of keys, loops over the
queries that see it, of all query heads that share the key head, and computes dk and dv; scores are computed transposed, so that weights and
their gradients stay in registers as left operands. In the third a program has a tile of queries, loops over its keys again and computes dq.
Seven products of tiles; five would suffice with atomics. The gradient of a bias is a launch of its own: a program has a tile of the bias
and sums in registers over the dimensions that it is broadcast along. Sinks are a small launch."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._bwd_tiles import arguments, bias_launch, bias_refused, gradients, row_sums, widths
from rooftop.kernels.attention._sinks import to_sinks
from rooftop.kernels.attention._tiles import LOG2E, kept, kept_transposed, numbered, sequence

# With a soft cap, and with 256 columns, two accumulators and two tiles of scores take a few registers more than there are.
DEMANDS = {"spills": 80}
ROWS = 64  # of a program of the first launch


@triton.jit
def _walk_queries(dk, dv, k, v, q, dout, lse, delta, bias, mask, key_begin, key_end, begin, end, columns, columns_in, count, keys, position,
                  factor, cap, slope, q_by, v_by, seed, limit, number, EIGHTHS, share, qs, gs, zs, zk, ms, mk, D: tl.constexpr,
                  DV: tl.constexpr, BM: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
                  CAP: tl.constexpr, ALIBI: tl.constexpr,
                  DROP: tl.constexpr, EIGHT: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Main loop over tiles of queries from `begin` to `end`, multiples of BM. MASKED: a mask is needed. EIGHT: q_by and v_by are the scales
    of 8-bit queries and values."""
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    for start in range(begin, end, BM):
        rows = start + tl.arange(0, BM)
        rows_in = rows < count
        at = rows.to(tl.int64)
        mine = tl.load(q + at[:, None] * qs + d[None, :], mask=rows_in[:, None] & (d < D)[None, :], other=0.0).to(k.dtype)
        flow = tl.load(dout + at[:, None] * gs + e[None, :], mask=rows_in[:, None] & (e < DV)[None, :], other=0.0)
        norm = tl.load(lse + at, mask=rows_in, other=0.0) * LOG2E
        norm = tl.where(norm == float("-inf"), 0.0, norm)
        common = tl.load(delta + at, mask=rows_in, other=0.0)
        low = None
        high = None
        if key_begin is not None:
            low = tl.load(key_begin + at, mask=rows_in, other=0).to(tl.int32)[None, :]
            high = tl.load(key_end + at, mask=rows_in, other=0).to(tl.int32)[None, :]
        z = tl.dot(k, tl.trans(mine))
        dp = tl.dot(v, tl.trans(flow))
        if EIGHT:
            dp = dp * v_by
        if DROP:
            stays = kept_transposed(seed, limit, (number + (rows * EIGHTHS).to(number.dtype))[None, :], columns[:, None])
            dp = tl.where(stays, dp * share, 0.0)
        there = columns_in[:, None] & rows_in[None, :]
        p, _, ds = gradients(z, dp, norm[None, :], common[None, :], rows[None, :], columns[:, None], there, low, high, keys, position,
                             factor, cap, slope, bias, zs, zk, mask, ms, mk, LEFT, RIGHT, CAP, ALIBI, MASKED)
        if DROP:
            p = tl.where(stays, p * share, 0.0)
        if EIGHT:
            ds = ds * q_by
        dv = tl.dot(p.to(flow.dtype), flow, dv)
        dk = tl.dot(ds.to(mine.dtype), mine, dk)
    return dk, dv


@triton.jit(do_not_specialize=["SQ", "SK", "N", "EIGHTHS", "limit", "seed"])
def _keys(q, k, v, dout, lse, delta, bias, mask, slopes, key_begin, key_end, cu_q, cu_k, lengths, q_scale, k_scale, v_scale, dk, dv, scale,
          softcap, seed, limit, share, SQ, SK, N, EIGHTHS, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, gb, gs, gh, yb, ys, yh, wb, ws, wh,
          zb, zh, zs, zk, mb, mh, ms, mk, ab, qg, kg, vg, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
          SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr,
          RIGHT: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr, SHORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """dk and dv of a tile of keys. Strides of batch, token and head: q, k, v, dout (g), dk (y), dv (w); of bias (z) and mask (m) all
    four."""
    tile = tl.program_id(0)
    key_head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    if cu_q is not None:
        first_key, keys, first, count, column, _ = sequence(tile, cu_k, cu_q, N, SK, SQ, BN)
        last_key = keys
    else:
        first_key, keys, first, count, column = 0, SK, 0, SQ, tile * BN
        last_key = SK
    if lengths is not None:
        keys = tl.minimum(tl.maximum(tl.load(lengths + batch).to(tl.int32), 0), SK)
    position = keys - count
    columns = column + tl.arange(0, BN)
    columns_in = columns < keys
    token = first_key + columns.to(tl.int64)
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    inside = columns_in[:, None] & (d < D)[None, :]
    inside_v = columns_in[:, None] & (e < DV)[None, :]
    kind = dout.dtype.element_ty
    mine = tl.load(k + batch * kb + key_head.to(tl.int64) * kh + token[:, None] * ks + d[None, :], mask=inside, other=0.0).to(kind)
    values = tl.load(v + batch * vb + key_head.to(tl.int64) * vh + token[:, None] * vs + e[None, :], mask=inside_v, other=0.0).to(kind)
    ALIBI: tl.constexpr = slopes is not None
    EIGHT: tl.constexpr = k.dtype.element_ty.primitive_bitwidth == 8
    v_by = 1.0
    if k_scale is not None:
        scale *= tl.load(k_scale + key_head * kg)
    if v_scale is not None:
        v_by = tl.load(v_scale + key_head * vg)
    last = tl.minimum(column + BN, keys) - 1
    begin = 0
    whole = 0
    if RIGHT >= 0:
        begin = tl.minimum(tl.maximum(column - position - RIGHT, 0), SQ) // BM * BM
        whole = tl.maximum((tl.minimum(tl.maximum(last - position - RIGHT, 0), SQ) + BM - 1) // BM * BM, begin)
    stop = count
    edge = count
    if LEFT >= 0:
        stop = tl.maximum(tl.minimum(count, last - position + LEFT + 1), 0)
        edge = tl.maximum(tl.minimum(count, column - position + LEFT + 1), 0)
    if key_begin is not None:
        edge = 0  # it is not known which queries attend to the whole tile
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
        q_by = 1.0
        if q_scale is not None:
            q_by = tl.load(q_scale + head * qg)
        cap = 0.0
        if CAP:
            cap = scale * q_by / softcap
            factor = softcap * LOG2E
        else:
            factor = scale * q_by * LOG2E
        q_at = q + batch * qb + head * qh + tl.cast(first, tl.int64) * qs
        g_at = dout + batch * gb + head * gh + tl.cast(first, tl.int64) * gs
        row = (batch * H + head) * SQ + first
        bias_at = bias
        mask_at = mask
        begin_at = key_begin
        end_at = key_end
        if bias is not None:
            bias_at = bias + (batch * zb + head * zh)
        if mask is not None:
            mask_at = mask + (batch * mb + head * mh)
        if key_begin is not None:
            begin_at = key_begin + batch * SQ
            end_at = key_end + batch * SQ
        number = row
        if DROP:
            number = numbered(batch, head, tl.cast(first, tl.int64), H, SQ, EIGHTHS, SHORT)
        if RIGHT >= 0:
            to_k, to_v = _walk_queries(to_k, to_v, mine, values, q_at, g_at, lse + row, delta + row, bias_at, mask_at, begin_at, end_at,
                                       begin, tl.minimum(whole, end), columns, columns_in, count, keys, position, factor, cap, slope, q_by,
                                       v_by, seed, limit, number, EIGHTHS, share, qs, gs, zs, zk, ms, mk, D, DV, BM, SIZE, SIZE_V, LEFT,
                                       RIGHT, CAP, ALIBI, DROP, EIGHT, True)
        to_k, to_v = _walk_queries(to_k, to_v, mine, values, q_at, g_at, lse + row, delta + row, bias_at, mask_at, begin_at, end_at, whole,
                                   tl.minimum(whole_end, end), columns, columns_in, count, keys, position, factor, cap, slope, q_by, v_by,
                                   seed, limit, number, EIGHTHS, share, qs, gs, zs, zk, ms, mk, D, DV, BM, SIZE, SIZE_V, LEFT, RIGHT, CAP,
                                   ALIBI, DROP, EIGHT, False)
        to_k, to_v = _walk_queries(to_k, to_v, mine, values, q_at, g_at, lse + row, delta + row, bias_at, mask_at, begin_at, end_at,
                                   whole_end, end, columns, columns_in, count, keys, position, factor, cap, slope, q_by, v_by, seed, limit,
                                   number, EIGHTHS, share, qs, gs, zs, zk, ms, mk, D, DV, BM, SIZE, SIZE_V, LEFT, RIGHT, CAP, ALIBI, DROP,
                                   EIGHT, True)
    here = (columns < last_key)[:, None]
    to_k = tl.where(columns_in[:, None], to_k * scale, 0.0)  # keys of the tensor past the length of the sequence
    to_v = tl.where(columns_in[:, None], to_v * v_by, 0.0)
    k_at = dk + batch * yb + key_head.to(tl.int64) * yh + token[:, None] * ys + d[None, :]
    v_at = dv + batch * wb + key_head.to(tl.int64) * wh + token[:, None] * ws + e[None, :]
    tl.store(k_at, to_k.to(dk.dtype.element_ty), mask=here & (d < D)[None, :])
    tl.store(v_at, to_v.to(dv.dtype.element_ty), mask=here & (e < DV)[None, :])


@triton.jit
def _walk_keys(dq, q, dout, norm, common, k, v, bias, mask, begin, end, rows, rows_in, low, high, keys, position, factor, cap, slope, v_by,
               seed, limit, numbers, share, ks, vs, zs, zk, ms, mk, D: tl.constexpr, DV: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr,
               SIZE_V: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr, DROP: tl.constexpr,
               EIGHT: tl.constexpr,
               MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Main loop over tiles of keys from `begin` to `end`, multiples of BN. MASKED: a mask is needed."""
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    for start in range(begin, end, BN):
        columns = start + tl.arange(0, BN)
        at = columns.to(tl.int64)
        columns_in = columns < keys
        tile = tl.load(k + at[:, None] * ks + d[None, :], mask=columns_in[:, None] & (d < D)[None, :], other=0.0).to(q.dtype)
        values = tl.load(v + at[:, None] * vs + e[None, :], mask=columns_in[:, None] & (e < DV)[None, :], other=0.0).to(q.dtype)
        z = tl.dot(q, tl.trans(tile))
        dp = tl.dot(dout, tl.trans(values))
        if EIGHT:
            dp = dp * v_by
        if DROP:
            dp = tl.where(kept(seed, limit, numbers[:, None], start, BN), dp * share, 0.0)
        there = rows_in[:, None] & columns_in[None, :]
        _, _, ds = gradients(z, dp, norm[:, None], common[:, None], rows[:, None], columns[None, :], there, low, high, keys, position,
                             factor, cap, slope, bias, zs, zk, mask, ms, mk, LEFT, RIGHT, CAP, ALIBI, MASKED)
        dq = tl.dot(ds.to(tile.dtype), tile, dq)
    return dq


@triton.jit(do_not_specialize=["SQ", "SK", "N", "EIGHTHS", "limit", "seed"])
def _queries(q, k, v, dout, lse, delta, bias, mask, slopes, key_begin, key_end, cu_q, cu_k, lengths, q_scale, k_scale, v_scale, dq, scale,
             softcap, seed, limit, share, SQ, SK, N, EIGHTHS, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, gb, gs, gh, xb, xs, xh, zb, zh,
             zs, zk, mb, mh, ms, mk, ab, qg, kg, vg, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
             SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr,
             RIGHT: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr, SHORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """dq of a tile of queries. Strides of batch, token and head: q, k, v, dout (g), dq (x); of bias (z) and mask (m) all four."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0) if RIGHT >= 0 else tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    if cu_q is not None:
        first, count, first_key, keys, row, _ = sequence(tile, cu_q, cu_k, N, SQ, SK, BM)
    else:
        first, count, first_key, keys, row = 0, SQ, 0, SK, tile * BM
    if lengths is not None:
        keys = tl.minimum(tl.maximum(tl.load(lengths + batch).to(tl.int32), 0), SK)
    position = keys - count
    rows = row + tl.arange(0, BM)
    rows_in = rows < count
    last = tl.minimum(row + BM, count) - 1
    token = first + rows.to(tl.int64)
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    inside = rows_in[:, None] & (d < D)[None, :]
    kind = dout.dtype.element_ty
    mine = tl.load(q + batch * qb + head.to(tl.int64) * qh + token[:, None] * qs + d[None, :], mask=inside, other=0.0).to(kind)
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
    if bias is not None:
        bias += batch * zb + head.to(tl.int64) * zh
    if mask is not None:
        mask += batch * mb + head.to(tl.int64) * mh
    EIGHT: tl.constexpr = k.dtype.element_ty.primitive_bitwidth == 8
    v_by = 1.0
    if q_scale is not None:
        scale *= tl.load(q_scale + head * qg)
    if k_scale is not None:
        scale *= tl.load(k_scale + head // GROUP * kg)
    if v_scale is not None:
        v_by = tl.load(v_scale + head // GROUP * vg)
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
        whole = tl.maximum(last + position - LEFT, 0)
    stop = keys
    edge = keys
    if RIGHT >= 0:
        stop = tl.maximum(tl.minimum(keys, last + position + RIGHT + 1), 0)
        edge = tl.maximum(tl.minimum(keys, row + position + RIGHT + 1), 0)
    low = None
    high = None
    if key_begin is not None:
        low_row = tl.load(key_begin + batch * SQ + token, mask=rows_in, other=SK).to(tl.int32)
        high_row = tl.load(key_end + batch * SQ + token, mask=rows_in, other=0).to(tl.int32)
        begin = tl.maximum(begin, tl.min(low_row))
        stop = tl.minimum(stop, tl.max(high_row))
        whole = tl.maximum(whole, tl.max(tl.where(rows_in, low_row, 0)))
        edge = tl.minimum(edge, tl.maximum(tl.min(tl.where(rows_in, high_row, SK)), 0))
        low = low_row[:, None]
        high = high_row[:, None]
    begin = tl.minimum(begin, SK) // BN * BN
    whole = tl.maximum((tl.minimum(whole, SK) + BN - 1) // BN * BN, begin)
    end = (tl.maximum(stop, 0) + BN - 1) // BN * BN
    if count <= row:
        end = begin
    whole_end = tl.maximum(edge // BN * BN, whole)
    to = tl.zeros((BM, SIZE), tl.float32)
    if LEFT >= 0 or key_begin is not None:
        to = _walk_keys(to, mine, flow, norm, common, k, v, bias, mask, begin, tl.minimum(whole, end), rows, rows_in, low, high, keys,
                        position, factor, cap, slope, v_by, seed, limit, numbers, share, ks, vs, zs, zk, ms, mk, D, DV, BN, SIZE, SIZE_V,
                        LEFT, RIGHT, CAP, ALIBI, DROP, EIGHT, True)
    to = _walk_keys(to, mine, flow, norm, common, k, v, bias, mask, whole, tl.minimum(whole_end, end), rows, rows_in, low, high, keys,
                    position, factor, cap, slope, v_by, seed, limit, numbers, share, ks, vs, zs, zk, ms, mk, D, DV, BN, SIZE, SIZE_V, LEFT,
                    RIGHT, CAP, ALIBI, DROP, EIGHT, False)
    to = _walk_keys(to, mine, flow, norm, common, k, v, bias, mask, whole_end, end, rows, rows_in, low, high, keys, position, factor, cap,
                    slope, v_by, seed, limit, numbers, share, ks, vs, zs, zk, ms, mk, D, DV, BN, SIZE, SIZE_V, LEFT, RIGHT, CAP, ALIBI,
                    DROP, EIGHT, True)
    tl.store(dq + batch * xb + head.to(tl.int64) * xh + token[:, None] * xs + d[None, :], (to * scale).to(dq.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Config:
    """`KN` keys a program of the second launch, which loops over `KM` queries at a time; `QM` queries and `QN` keys in the third; warps and
    stages of both."""

    KN: int
    KM: int
    QM: int
    QN: int
    warps: int
    stages: int


def supports(p: Problem) -> str | None:
    if reason := shared.refused(p, ("page_table",), dropout=True, eight=True, ranges=True):
        return reason
    if max(p["q"].shape[0], p["q"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    if (bias := p.get("bias")) is not None and (reason := bias_refused(bias)):
        return reason
    if (m := p.get("dlse")) is not None and not m.contiguous:
        return "dlse must lie without gaps"
    if not p["lse"].contiguous:
        return "lse must lie without gaps"
    return None


def choose(p: Problem) -> Config:
    size = max(pow2(p["q"].shape[3]), pow2(p["v"].shape[3]), 16)
    rows, keys = (max(16, pow2(p[n].shape[1])) for n in "qk")
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
    q, k, bias = p["q"], p["k"], p.get("bias")
    batch, queries, heads, _ = q.shape
    packed, args, wide, flow = shared.packed(p), arguments(p), widths(p), shared.strides(p, "g", "dout")
    bounds = {"cu_q": "cu_seqlens_q" if packed else None, "cu_k": "cu_seqlens_k" if packed else None, "N": p["cu_seqlens_q"].shape[0] - 1 if packed else 0}
    delta = {
        "dout": "dout", "out": "out", "dlse": "dlse" if p.get("dlse") else None, "delta": "delta", "SQ": queries, "H": heads, **flow,
        **shared.strides(p, "o", "out"), **wide, "BM": ROWS,
    }
    to_keys = {"dk": "dk", "dv": "dv", **shared.strides(p, "y", "dk"), **shared.strides(p, "w", "dv"), "BM": config.KM, "BN": config.KN}
    to_queries = {"dq": "dq", **shared.strides(p, "x", "dq"), "BM": config.QM, "BN": config.QN}
    made = [
        Launch(row_sums, (-(-queries // ROWS), heads, batch), delta, 4),
        Launch(_keys, (shared.tiles(p, config.KN, "k"), k.shape[2], batch), {**args, **bounds, **to_keys}, config.warps, config.stages),
        Launch(_queries, (shared.tiles(p, config.QM), heads, batch), {**args, **bounds, **to_queries}, config.warps, config.stages),
    ]
    if bias is not None:
        made.append(bias_launch(p, bias, args, min(64, config.QM), min(64, config.QN)))
    if p.get("sinks") is not None:
        made.append(
            Launch(to_sinks, (heads,),
                                              {"sinks": "sinks", "lse": "lse", "delta": "delta", "dsinks": "dsinks", "B": batch,
                                              "SQ": queries, "H": heads, "BLOCK": 1024}, 4))
    return made
