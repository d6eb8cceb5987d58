"""Portable backward of attention: the gradients of a tile of scores, and the launches other than those that compute dq, dk and dv. The
gradient of a bias is computed here for every backward."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._tiles import LOG2E, kept, numbered, scored, seen


@triton.jit(do_not_specialize=["SQ"])
def row_sums(  # type: ignore[no-untyped-def]
    dout, out, dlse, delta, SQ, H, gb, gs, gh, ob, os, oh, DV: tl.constexpr, SIZE_V: tl.constexpr, BM: tl.constexpr
):
    """delta [B, H, SQ]: the term that the gradients of all weights of a row have in common."""
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
def gradients(z, dp, norm, delta, rows, columns, there, low, high, keys, position, factor, cap, slope, bias, zs, zk, mask, ms, mk,
              LEFT: tl.constexpr,
              RIGHT: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """(the weights, the gradient of the scores before cap and scale, that of the products without the scale) for products `z` and gradients
    `dp` of the weights. `rows`, `norm` (in base 2), `delta`, `low`, `high` and `columns` are broadcast over the tile."""
    t = z
    if CAP or ALIBI or bias is not None or mask is not None:
        z, t = scored(z, rows, columns, there, position, factor, cap, slope, bias, zs, zk, mask, ms, mk, CAP, ALIBI)
    else:
        z = z * factor
    if MASKED:
        inside = seen(rows, columns, position, keys, LEFT, RIGHT) & there
        if low is not None:
            inside = inside & (columns >= low) & (columns < high)
        z = tl.where(inside, z, float("-inf"))
    p = tl.exp2(z - norm)
    ds = p * (dp - delta)
    inner = ds
    if CAP:
        inner = ds * (1 - t * t)
    return p, ds, inner


@triton.jit(do_not_specialize=["SQ", "SK", "EIGHTHS", "limit", "seed"])
def to_bias(q, k, v, dout, lse, delta, bias, mask, slopes, key_begin, key_end, lengths, q_scale, k_scale, v_scale, dbias, scale, softcap,
            seed, limit, share, SQ, SK, EIGHTHS, H, GROUP, BATCHES, HEADS, qb, qs, qh, kb, ks, kh, vb, vs, vh, gb, gs, gh, zb, zh, zs, zk,
            mb, mh, ms, mk, ab, qg, kg, vg, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
            SIZE: tl.constexpr, SIZE_V: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
            SHORT: tl.constexpr, ONE_ROW: tl.constexpr,
            ONE_COLUMN: tl.constexpr, PADDED=None):  # type: ignore[no-untyped-def]
    """The gradient of a tile of the bias, summed over the BATCHES and HEADS that share it, and over all queries (ONE_ROW) or keys
    (ONE_COLUMN) if those do. Strides as in the third launch; dbias lies without gaps. PADDED: the rows of delta, if they are more than SQ."""
    tile_m = tl.program_id(0)
    tile_n = tl.program_id(1)
    first_batch = tl.program_id(2) // (H // HEADS)
    first_head = tl.program_id(2) % (H // HEADS)
    ALIBI: tl.constexpr = slopes is not None
    d = tl.arange(0, SIZE)
    e = tl.arange(0, SIZE_V)
    kind = dout.dtype.element_ty
    total = tl.zeros((BM, BN), tl.float32)
    steps_m = 1
    steps_n = 1
    if ONE_ROW:
        steps_m = tl.cdiv(SQ, BM)
    if ONE_COLUMN:
        steps_n = tl.cdiv(SK, BN)
    for turn in range(BATCHES * HEADS * steps_m * steps_n):
        pair = turn // (steps_m * steps_n)
        row = (tile_m + turn // steps_n % steps_m) * BM
        column = (tile_n + turn % steps_n) * BN
        batch = (first_batch + pair // HEADS).to(tl.int64)
        head = (first_head + pair % HEADS).to(tl.int64)
        keys = SK
        if lengths is not None:
            keys = tl.minimum(tl.maximum(tl.load(lengths + batch).to(tl.int32), 0), SK)
        position = keys - SQ
        any_seen = keys > column
        if RIGHT >= 0:
            any_seen = any_seen & (column <= tl.minimum(row + BM, SQ) - 1 + position + RIGHT)
        if LEFT >= 0:
            any_seen = any_seen & (tl.minimum(column + BN, keys) - 1 >= row + position - LEFT)
        if any_seen:
            rows = row + tl.arange(0, BM)
            columns = column + tl.arange(0, BN)
            rows_in = rows < SQ
            columns_in = columns < keys
            token = rows.to(tl.int64)
            key = columns.to(tl.int64)
            mine_at = q + batch * qb + head * qh + token[:, None] * qs + d[None, :]
            mine = tl.load(mine_at, mask=rows_in[:, None] & (d < D)[None, :], other=0.0).to(kind)
            flow = tl.load(
                dout + batch * gb + head * gh + token[:, None] * gs + e[None, :], mask=rows_in[:, None] & (e < DV)[None, :], other=0.0
            )
            tile_at = k + batch * kb + head // GROUP * kh + key[:, None] * ks + d[None, :]
            tile = tl.load(tile_at, mask=columns_in[:, None] & (d < D)[None, :], other=0.0).to(kind)
            values_at = v + batch * vb + head // GROUP * vh + key[:, None] * vs + e[None, :]
            values = tl.load(values_at, mask=columns_in[:, None] & (e < DV)[None, :], other=0.0).to(kind)
            at = (batch * H + head) * SQ + token
            norm = tl.load(lse + at, mask=rows_in, other=0.0) * LOG2E
            norm = tl.where(norm == float("-inf"), 0.0, norm)
            of_delta = at if PADDED is None else (batch * H + head) * PADDED + token
            common = tl.load(delta + of_delta, mask=rows_in, other=0.0)
            by = scale
            if q_scale is not None:
                by *= tl.load(q_scale + head * qg)
            if k_scale is not None:
                by *= tl.load(k_scale + head // GROUP * kg)
            cap = 0.0
            if CAP:
                cap = by / softcap
                factor = softcap * LOG2E
            else:
                factor = by * LOG2E
            slope = 0.0
            if ALIBI:
                slope = tl.load(slopes + batch * ab + head)
            low = None
            high = None
            if key_begin is not None:
                low = tl.load(key_begin + batch * SQ + token, mask=rows_in, other=0).to(tl.int32)[:, None]
                high = tl.load(key_end + batch * SQ + token, mask=rows_in, other=0).to(tl.int32)[:, None]
            mask_at = mask
            if mask is not None:
                mask_at = mask + (batch * mb + head * mh)
            z = tl.dot(mine, tl.trans(tile))
            dp = tl.dot(flow, tl.trans(values))
            if v_scale is not None:
                dp = dp * tl.load(v_scale + head // GROUP * vg)
            if DROP:
                dp = tl.where(kept(seed, limit, numbered(batch, head, token, H, SQ, EIGHTHS, SHORT)[:, None], column, BN), dp * share, 0.0)
            there = rows_in[:, None] & columns_in[None, :]
            _, ds, _ = gradients(z, dp, norm[:, None], common[:, None], rows[:, None], columns[None, :], there, low, high, keys, position,
                                 factor, cap, slope, bias + (batch * zb + head * zh), zs, zk, mask_at, ms, mk, LEFT, RIGHT, CAP, ALIBI,
                                 True)
            total += ds
    rows = tile_m * BM + tl.arange(0, BM)
    columns = tile_n * BN + tl.arange(0, BN)
    to = dbias + tl.program_id(2).to(tl.int64) * (1 if ONE_ROW else SQ) * (1 if ONE_COLUMN else SK)
    if ONE_ROW and ONE_COLUMN:
        tl.store(to, tl.sum(tl.sum(total, 1), 0).to(dbias.dtype.element_ty))
    elif ONE_ROW:
        tl.store(to + columns, tl.sum(total, 0).to(dbias.dtype.element_ty), mask=columns < SK)
    elif ONE_COLUMN:
        tl.store(to + rows, tl.sum(total, 1).to(dbias.dtype.element_ty), mask=rows < SQ)
    else:
        at = rows.to(tl.int64)[:, None] * SK + columns[None, :]
        tl.store(to + at, total.to(dbias.dtype.element_ty), mask=(rows < SQ)[:, None] & (columns < SK)[None, :])


def widths(p: Problem) -> dict[str, int]:
    """Columns of the values, and of their tile."""
    columns = p["v"].shape[3]
    return {"DV": columns, "SIZE_V": max(16, pow2(columns))}


def arguments(p: Problem) -> dict[str, Any]:
    """What the launches that compute scores again are given."""
    q, k, slopes = p["q"], p["k"], p.get("alibi_slopes")
    heads, size = q.shape[2:]

    def name(tensor: str) -> str | None:
        return tensor if p.get(tensor) is not None else None

    return {
        "q": "q", "k": "k", "v": "v", "dout": "dout", "lse": "lse", "delta": "delta", "bias": name("bias"), "mask": name("mask"),
        "slopes": name("alibi_slopes"), "key_begin": name("key_begin"), "key_end": name("key_end"), "lengths": name("cache_lengths"),
        "q_scale": name("q_scale"), "k_scale": name("k_scale"), "v_scale": name("v_scale"), "scale": "scale", "softcap": shared.softcap(p),
        "seed": "seed", "share": 1.0 / (1.0 - float(p.option("dropout_p"))), "SQ": q.shape[1], "SK": k.shape[1], "H": heads,
        "GROUP": heads // k.shape[2], **shared.strides(p, "q", "q"), **shared.strides(p, "k", "k"), **shared.strides(p, "v", "v"),
        **shared.strides(p, "g", "dout"), **shared.broadcast(p.get("bias")), **shared.broadcast(p.get("mask"), "m"), **shared.dropout(p),
        "ab": heads if slopes and len(slopes.shape) == 2 else 0, **shared.scale_strides(p), "D": size, "SIZE": max(16, pow2(size)),
        **widths(p), **shared.windows(p), "CAP": float(p.option("softcap")) != 0,
    }


def bias_refused(bias: Meta) -> str | None:
    if bias.shape[0] * bias.shape[1] > 65535 or bias.shape[3] > 2**20:
        return "the gradient of a bias of more heads and batches, or more keys, than one launch may have"
    return None


def bias_launch(p: Problem, bias: Meta, args: dict[str, Any], bm: int, bn: int) -> Launch:
    """The launch that computes the gradient of a bias, in tiles of `bm` queries and `bn` keys. `args`: those of `arguments`, and more."""
    (batch, queries, heads, _), keys = p["q"].shape, p["k"].shape[1]
    over_batch, over_heads, one_row, one_column = (n == 1 for n in bias.shape)
    tiles = (1 if one_row else -(-queries // bm), 1 if one_column else -(-keys // bn), bias.shape[0] * bias.shape[1])
    given = {
        "dbias": "dbias", "BATCHES": batch if over_batch else 1, "HEADS": heads if over_heads else 1,
        "ONE_ROW": one_row, "ONE_COLUMN": one_column, "BM": bm, "BN": bn,
    }
    return Launch(to_bias, tiles, {**args, **given}, 4, 1)
