"""Attention of few queries to many keys (decode), with split-K over the keys (flash decoding). Contract: rooftop/ops/attention.py

The limit is one read of keys and values. The query heads that share a key head, and their queries, are one tile. Scores are transposed, keys by
queries: tensor cores take 16 keys and as few as 8 queries, so that up to 8 rows are half of the products and exponentials that 16 would be.
Sums of weights stay with the threads until the last tile. Each program keeps two or more tiles of keys and values of some 32 KiB in flight.

A block may take two key heads: of one whose row is less than a line it would read half a line at a time (`_heads`).

The keys of a sequence are divided into parts (`_parts`), also where they have different lengths: the device splits the actual length. With more
than one part, a second launch combines them by their normalisers. The cache is contiguous or paged, in 16 or 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftop.core.spec import Launch, Meta, Problem, pow2
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._tiles import LOG2E, page_of, scored, seen

TILE = 32 * 1024  # bytes of keys and values loaded in an iteration
MOST = 16  # queries
ROWS = 128  # queries times the heads that share a key head
SPLITS = 256
LINE = 128  # bytes of the L2
# Of `_parts`, fitted to 333 times at 51 sizes on an H200: 4 % root mean square off, and the choice 1 % slower than the best on average. Rates are in
# shares: what a multiprocessor reads while all read.
ALONE, ALONE_EIGHT, ALONE_TWO = 1.37, 1.11, 0.89  # of a block alone on a multiprocessor; with codes of 8 bits; also of two key heads
DEEP = 1.05  # times that with a tile more in flight
BOTH = 1.19  # of a multiprocessor with several blocks that each take two key heads: they convert, and half of their products are of no use
UNEVEN, FOLLOW = 0.056, 0.096  # of a block's time, by which the last ends late: for each block on a multiprocessor, and where others follow them
ADDED = 3.5  # the time for a byte of parts, of that for a byte of keys
LAUNCH, START = 41 * 1024, 75 * 1024  # bytes that a multiprocessor reads during the second launch, and while a block starts and ends
MERGED = 4096  # elements of parts that a program of the second launch adds up
# Of two words of two codes of e4m3 the even codes (those of the low bytes) and the odd ones: Triton's own shifts and masks take five
# instructions for two codes.
PAIRS = (
    "{ .reg .b32 u; .reg .b16 x, y; prmt.b32 u, $2, 0, 0x3120; mov.b32 {x, y}, u; "
    "cvt.rn.f16x2.e4m3x2 $0, x; cvt.rn.f16x2.e4m3x2 $1, y; }"
)
FROM_WORDS = tl.constexpr(PAIRS)


@triton.jit
def _coded(at, mask):  # type: ignore[no-untyped-def]
    """(even, odd) columns of an 8-bit tile in float16. It is loaded as words of two columns, which are converted to tensor core operands
    directly, two words at a time."""
    words = tl.load(at, mask=mask, other=0)
    return tl.inline_asm_elementwise(FROM_WORDS, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2)


@triton.jit
def _queries(at, mask, out, EIGHT: tl.constexpr):  # type: ignore[no-untyped-def]
    """With EIGHT (even columns of queries, odd ones, the power of two that they are divided by), `at` being the even ones; else the queries
    three times."""
    if EIGHT:
        even = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        odd = tl.load(at + 1, mask=mask, other=0.0).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(even), 0), tl.max(tl.abs(odd), 0))
        power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # a power of two, at most `largest`
        power = tl.where((largest > 1e-30) & (largest < float("inf")), power, 1.0)
        # below 2, so that float16 holds what bfloat16 would
        return (even / power[None, :]).to(tl.float16), (odd / power[None, :]).to(tl.float16), power
    else:  # noqa: RET505  decided when it is compiled
        mine = tl.load(at, mask=mask, other=0.0).to(out.dtype.element_ty)
        return mine, mine, mine


@triton.jit
def _scores(at, mask, mine, mine_odd, EIGHT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Products of a tile of keys with queries."""
    if EIGHT:
        kt, kt_odd = _coded(at, mask)
        return tl.dot(kt_odd, mine_odd, tl.dot(kt, mine))
    else:  # noqa: RET505
        return tl.dot(tl.load(at, mask=mask, other=0.0), mine)


@triton.jit(do_not_specialize=["SK", "PAGES", "PARTS"])
def _part(q, k, v, slopes, sinks, table, lengths, q_scale, k_scale, v_scale, out, lse, parts, norms, scale, softcap, SQ, SK, PAGES, H,
          GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, ob, os, oh, ab, tb, qg, kg, vg, D: tl.constexpr, DV: tl.constexpr, M: tl.constexpr,
          BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, PAGE: tl.constexpr, PARTS, SEVERAL: tl.constexpr, LEFT: tl.constexpr,
          RIGHT: tl.constexpr, CAP: tl.constexpr, EIGHT: tl.constexpr, PDL: tl.constexpr, HEADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One part of the keys of one key head and sequence. Writes `out` and `lse` if it is the only part, else parts [B, H, SQ, PARTS, DV]
    and norms [B, H, SQ, PARTS], in base 2. Strides as in the forward. EIGHT: keys and values have 8 bits and are counted in pairs of
    columns, also in strides. HEADS: 1, or 2 neighbouring key heads, whose query rows alternate. Their scores are products of their own,
    their values one tile; of its products with the weights of the other head nothing is stored."""
    if PDL:
        gdc_wait()
        if SEVERAL:
            gdc_launch_dependents()  # the programs that add the parts; they are small
    key_head = tl.program_id(0) * HEADS  # blocks that run together read neighbouring bytes
    part = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    keys = SK
    if lengths is not None:
        keys = tl.minimum(tl.maximum(tl.load(lengths + batch).to(tl.int32), 0), SK)
    position = keys - SQ
    row = tl.arange(0, M)
    key_heads = key_head + row % HEADS
    rows = row // HEADS // GROUP
    rows_in = rows < SQ
    head = key_heads * GROUP + row // HEADS % GROUP
    PER: tl.constexpr = 2 if EIGHT else 1
    SHIFT: tl.constexpr = 15 if EIGHT else 0  # in float16, weights times 2^15 keep the small ones that bfloat16 would keep
    COLUMNS: tl.constexpr = D // PER
    COLUMNS_V: tl.constexpr = DV // PER
    d = tl.arange(0, SIZE // PER)
    dv = tl.arange(0, HEADS * SIZE_V // PER)
    of_one = tl.arange(0, M // HEADS)
    q_row = of_one // GROUP
    q_head = key_head * GROUP + of_one % GROUP
    q_at = q + batch * qb + q_row.to(tl.int64)[None, :] * qs + (d * PER)[:, None]
    q_in = (q_row < SQ)[None, :] & (d < COLUMNS)[:, None]
    mine, mine_odd, power = _queries(q_at + q_head.to(tl.int64)[None, :] * qh, q_in, out, EIGHT)
    if HEADS == 2:
        more, more_odd, more_power = _queries(q_at + (q_head + GROUP).to(tl.int64)[None, :] * qh, q_in, out, EIGHT)
    if EIGHT:
        if HEADS == 2:
            power = tl.interleave(power, more_power)
        k = k.to(tl.pointer_type(tl.int16))
        v = v.to(tl.pointer_type(tl.int16))
    k += key_head.to(tl.int64) * kh
    v += key_head.to(tl.int64) * vh
    if PAGE:
        table += batch * tb
    else:
        k += batch * kb
        v += batch * vb
    scales = tl.zeros((M,), tl.float32) + scale
    if q_scale is not None:
        scales *= tl.load(q_scale + head * qg, mask=rows_in, other=1.0)
    if k_scale is not None:
        scales *= tl.load(k_scale + key_heads * kg)
    if EIGHT:
        scales *= power
    cap = scales
    factor = scales * LOG2E
    if CAP:
        cap = scales / softcap
        factor = tl.zeros((M,), tl.float32) + softcap * LOG2E
    ALIBI: tl.constexpr = slopes is not None
    slope = scales
    if ALIBI:
        slope = tl.load(slopes + batch * ab + head, mask=rows_in, other=0.0)
    low = 0
    high = keys
    if LEFT >= 0:
        low = tl.maximum(position - LEFT, 0)
    if RIGHT >= 0:
        high = tl.maximum(tl.minimum(keys, keys + RIGHT), 0)
    low = low // BN * BN
    each = tl.cdiv(tl.cdiv(tl.maximum(high - low, 0), BN), PARTS) * BN
    begin = low + part * each
    end = tl.minimum(begin + each, high)

    acc = tl.zeros((HEADS * SIZE_V // PER, M), tl.float32)
    acc_odd = acc
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((BN, M), tl.float32)  # of each row of the tiles; added up at the end
    if sinks is not None:
        top = tl.load(sinks + head, mask=rows_in & (part == 0), other=float("-inf")).to(tl.float32) * LOG2E
        alone = tl.where(top == float("-inf"), 0.0, 32768.0 if EIGHT else 1.0)
        total = tl.where(tl.arange(0, BN)[:, None] == 0, alone[None, :], 0.0)
    coming = 0
    if PAGE:
        coming = page_of(table, begin, end, BN, PAGE)
    for start in range(begin, end, BN):
        columns = start + tl.arange(0, BN)
        columns_in = columns < keys
        real = columns_in
        if PAGE:
            page = coming
            coming = page_of(table, start + BN, end, BN, PAGE)  # loaded one iteration ahead: keys and values then wait for no other load
            exists = (page >= 0) & (page < PAGES)
            real = columns_in & exists
            page = tl.where(exists, page, 0)
            k_at = k + (page * kb + (columns % PAGE).to(tl.int64) * ks)[:, None] + d[None, :]
            v_at = v + (page * vb + (columns % PAGE).to(tl.int64) * vs)[None, :] + dv[:, None]
        else:
            k_at = k + columns.to(tl.int64)[:, None] * ks + d[None, :]
            v_at = v + columns.to(tl.int64)[None, :] * vs + dv[:, None]
        k_in = real[:, None] & (d < COLUMNS)[None, :]
        v_in = real[None, :] & (dv < HEADS * COLUMNS_V)[:, None]
        z = _scores(k_at, k_in, mine, mine_odd, EIGHT)
        if HEADS == 2:
            z = tl.interleave(z, _scores(k_at + kh, k_in, more, more_odd, EIGHT))
        if EIGHT:
            vt, vt_odd = _coded(v_at, v_in)
        else:
            vt = tl.load(v_at, mask=v_in, other=0.0)
        if CAP or ALIBI:
            z, _ = scored(z, rows[None, :], columns[:, None], columns_in[:, None], position, factor[None, :], cap[None, :], slope[None, :],
                          None, 0, 0, None, 0, 0, CAP, ALIBI)
        else:
            z = z * factor[None, :]
        if PAGE:
            z = tl.where(real[:, None] | (columns >= keys)[:, None], z, float("nan"))
        z = tl.where(seen(rows[None, :], columns[:, None], position, keys, LEFT, RIGHT), z, float("-inf"))
        new = tl.maximum(top, tl.max(z, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(z - (base - SHIFT)[None, :])
        shrink = tl.exp2(top - base)
        total = total * shrink[None, :] + p
        p = p.to(mine.dtype)
        acc = tl.dot(vt, p, acc * shrink[None, :])
        if EIGHT:
            acc_odd = tl.dot(vt_odd, p, acc_odd * shrink[None, :])
        top = new

    whole = tl.sum(total, 0)
    norm = top + (tl.log2(whole) - SHIFT)
    weigh = 1.0 / tl.where(whole == 0, 1.0, whole)
    if v_scale is not None:
        weigh *= tl.load(v_scale + key_heads * vg)
    if EIGHT:
        acc = tl.reshape(tl.permute(tl.join(acc, acc_odd), (0, 2, 1)), (HEADS * SIZE_V, M))
        dv = tl.arange(0, HEADS * SIZE_V)
    acc = acc * weigh[None, :]
    number = (batch * H + head) * SQ + rows
    inside = rows_in[None, :] & (dv < HEADS * DV)[:, None]
    if HEADS == 2:
        inside = inside & (dv[:, None] // DV == (row % HEADS)[None, :])
        dv = dv % DV
    if not SEVERAL:
        if PDL:
            gdc_launch_dependents()  # not before: blocks of the next launch would take free places, and then lie unevenly
        o_at = out + batch * ob + head.to(tl.int64)[None, :] * oh + rows.to(tl.int64)[None, :] * os + dv[:, None]
        tl.store(o_at, acc.to(out.dtype.element_ty), mask=inside)
        tl.store(lse + number, norm / LOG2E, mask=rows_in)
    else:
        number = number * PARTS + part
        tl.store(parts + number[None, :] * DV + dv[:, None], acc, mask=inside)
        tl.store(norms + number, norm, mask=rows_in)


@triton.jit(do_not_specialize=["N", "PARTS"])
def _merge(parts, norms, out, lse, N, SQ, H, ob, os, oh, PARTS, DV: tl.constexpr, SIZE_V: tl.constexpr, COUNT: tl.constexpr,
           ROWS_OF: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """ROWS_OF of the N rows of B, H and SQ: their parts, weighted by their normalisers. COUNT: the next power of two from PARTS."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    number = tl.program_id(0).to(tl.int64) * ROWS_OF + tl.arange(0, ROWS_OF)
    there = number < N
    at = number[:, None] * PARTS + tl.arange(0, COUNT)[None, :]
    at_in = there[:, None] & (tl.arange(0, COUNT) < PARTS)[None, :]
    dv = tl.arange(0, SIZE_V)
    norm = tl.load(norms + at, mask=at_in, other=float("-inf"))
    acc = tl.load(parts + at[:, :, None] * DV + dv[None, None, :], mask=at_in[:, :, None] & (dv < DV)[None, None, :], other=0.0)
    top = tl.max(norm, 1)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp2(norm - base[:, None])
    total = tl.sum(weight, 1)
    made = tl.sum(acc * weight[:, :, None], 1) / tl.where(total == 0, 1.0, total)[:, None]
    to = out + number // (H * SQ) * ob + number // SQ % H * oh + number % SQ * os
    tl.store(to[:, None] + dv[None, :], made.to(out.dtype.element_ty), mask=there[:, None] & (dv < DV)[None, :])
    tl.store(lse + number, (base + tl.log2(total)) / LOG2E, mask=there)


@dataclass(frozen=True)
class Config:
    """Parts of the keys of a sequence (split-K), keys of a tile, warps, and pipeline stages of keys and values."""

    parts: int
    BN: int
    warps: int
    stages: int


def _rows(p: Problem) -> int:
    return p["q"].shape[1] * (p["q"].shape[2] // max(p["k"].shape[2], 1))


def _padded(p: Problem) -> int:
    """Rows of a tile: for each key head at least as many as tensor cores take."""
    return max(16 if p.device.gfx else 8, pow2(_rows(p))) * _heads(p)


def _heads(p: Problem) -> int:
    """Key heads of a block: 2 where a row of one is less than a line of the L2, and the rows of both lie side by side. Not with so many
    queries that the products, half of which are of no use, would take longer than the read."""
    k, v = p["k"], p["v"]
    narrow = k.shape[3] == v.shape[3] and k.shape[3] * k.itemsize < LINE and _sizes(p)[1] == v.shape[3]
    beside = k.strides[2] == v.strides[2] == v.shape[3] and k.shape[2] % 2 == 0
    return 2 if narrow and beside and _rows(p) <= 16 else 1


def supports(p: Problem) -> str | None:
    names = ("bias", "mask", "cu_seqlens_q")
    if reason := shared.refused(p, names, eight=True):
        return reason
    if p["q"].shape[1] > MOST or _rows(p) > ROWS:
        return f"takes at most {MOST} queries, and {ROWS} with the heads that share a key head; given {p['q'].shape[1]} and {_rows(p)}"
    if max(p["q"].shape[0], p["k"].shape[2]) > 65535:
        return "more heads or batches than one launch may have"
    if _eight(p) and any(p[n].align < 2 or any(s % 2 for s in p[n].strides[:3]) for n in "kv"):
        return "keys and values of 8 bits must lie, and be apart, by an even number of bytes"
    return None


def _eight(p: Problem) -> bool:
    return p["k"].dtype == shared.EIGHT_BITS


def _sizes(p: Problem) -> tuple[int, int]:
    least = 32 if _eight(p) else 16
    return max(least, pow2(p["q"].shape[3])), max(least, pow2(p["v"].shape[3]))


def _held(p: Problem, bn: int, stages: int) -> int:
    """Bytes of shared memory of a block: the queries, and the tiles in flight or in use, one fewer in Triton than there are stages."""
    columns = sum(_sizes(p))
    return 2 * _padded(p) * columns + max(1, stages - 1) * bn * columns * _heads(p) * p["k"].itemsize


def _resident(p: Problem, bn: int, stages: int) -> int:
    """Resident blocks of a multiprocessor: by shared memory, and by registers, of which a thread has up to 128."""
    return max(1, min((p.device.shared_per_block + 1024) // (_held(p, bn, stages) + 1024), 16 // _warps(p)))


def _warps(p: Problem) -> int:
    return 8 if pow2(_rows(p)) >= 64 else 4


def choose(p: Problem) -> Config:
    keys = shared.room(p)
    bn = max(16, min(128, pow2(TILE // (sum(_sizes(p)) * _heads(p) * p["k"].itemsize) + 1) // 2, pow2(max(keys, 16))))
    if p.get("page_table") is not None and p["k"].shape[1] % bn and p["k"].shape[1] % (bn // 2) == 0:
        bn //= 2  # a tile is then within one page
    parts = _parts(p, bn, _resident(p, bn, _stages(p, bn, 3)))
    return Config(parts, bn, _warps(p), _stages(p, bn, 4 if _blocks(p, parts) <= p.device.sms else 3))


def _stages(p: Problem, bn: int, most: int) -> int:
    """Three: a fourth tile in shared memory would cost a resident block. Blocks that are alone on their multiprocessors have four."""
    return next((n for n in range(most, 1, -1) if _held(p, bn, n) <= p.device.shared_per_block - 2048), 1)


def _blocks(p: Problem, parts: int) -> int:
    return p["q"].shape[0] * p["k"].shape[2] // _heads(p) * parts


def _parts(p: Problem, bn: int, resident: int) -> int:
    """The parts of the keys of a sequence that take the least time, in tiles that a multiprocessor reads while all read. Full waves of blocks read
    as fast as memory allows, unless they are so short that they mostly start and end. The last wave takes as long as its blocks alone need, or
    several on one multiprocessor. What parts cost is that they are written, read and added: by all multiprocessors, and those of a row by one."""
    tile = bn * sum(_sizes(p)) * _heads(p) * p["k"].itemsize
    (batch, queries, heads, _), columns, sms = p["q"].shape, p["v"].shape[3], p.device.sms
    keys, sequences = shared.room(p), _blocks(p, 1)
    tiles = -(-keys // bn)
    start, launch = START / tile, LAUNCH / tile
    added = (ADDED * 8 * batch * queries * heads / sms + 4) * columns / tile  # a part's float32 are written and read
    two = _heads(p) == 2
    alone = (ALONE_TWO if two else ALONE_EIGHT) if _eight(p) else ALONE
    most = BOTH if two else float("inf")

    def time(n: int) -> float:
        blocks, each = sequences * n, -(-tiles // n)
        waves, last = divmod(blocks, resident * sms)
        read = keys / (bn * n * sms)  # tiles of a block, shared out to all multiprocessors
        longest = each / (alone * (DEEP if blocks <= sms else 1))
        found = max((blocks - last) * read, waves * (start + longest))
        if last:
            found += start + max(last * read, longest, -(-last // sms) * each / most)
        if waves:
            found += FOLLOW * each * resident
        elif blocks > sms:
            found += UNEVEN * each * blocks / sms
        return found + (launch + added * n if n > 1 else 0)

    full = [n for n in range(1, min(SPLITS, tiles) + 1) if -(-tiles // -(-tiles // n)) == n]  # no part is empty
    return min(full, key=time, default=1)


def configs(p: Problem) -> list[Config]:
    c = choose(p)
    found = [Config(n, bn, w, s) for n in (c.parts, 2 * c.parts) for bn in (32, 64, 128) for w in (4, 8) for s in (2, 3, 4)]
    return [c for c in found if _held(p, c.BN, c.stages) <= p.device.shared_per_block - 2048 and c.parts <= SPLITS]


def explains(p: Problem, config: Config) -> str:
    return (
        f"{config.parts} parts of the keys, {_blocks(p, config.parts)} blocks on {p.device.sms} multiprocessors, "
        f"{_resident(p, config.BN, config.stages)} on each at once"
    )


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    if config.parts == 1:
        return {}
    batch, queries, heads, _ = p["q"].shape
    shape = (batch, heads, queries, config.parts)
    return {"parts": Meta((*shape, p["v"].shape[3]), "f32"), "norms": Meta(shape, "f32")}


def _kept(p: Problem, name: str) -> dict[str, int]:
    """Strides of keys or values in the kernel's units."""
    return {n: s // 2 if _eight(p) else s for n, s in shared.strides(p, name, name).items()}


def for_any_rows(p: Problem) -> str:
    return "how the keys are split follows from the number of sequences"


def launches(p: Problem, config: Config) -> list[Launch]:
    q, k, v = p["q"], p["k"], p["v"]
    batch, queries, heads, size = q.shape
    slopes, pages, several = p.get("alibi_slopes"), p.get("page_table"), config.parts > 1
    wide, wide_v = _sizes(p)
    early = p.device.pdl

    def name(tensor: str) -> str | None:
        return tensor if p.get(tensor) is not None else None

    result = {"out": "out", "lse": "lse", "parts": "parts" if several else None, "norms": "norms" if several else None, "SQ": queries,
              "H": heads, **shared.strides(p, "o", "out"), "DV": v.shape[3], "SIZE_V": wide_v, "PARTS": config.parts, "PDL": early}
    args = {
        "q": "q", "k": "k", "v": "v", "slopes": name("alibi_slopes"), "sinks": name("sinks"), "table": name("page_table"),
        "lengths": name("cache_lengths"), "q_scale": name("q_scale"), "k_scale": name("k_scale"), "v_scale": name("v_scale"),
        "scale": "scale", "softcap": shared.softcap(p), "SK": shared.room(p), "PAGES": k.shape[0] if pages else 0, "GROUP": heads // k.shape[2],
        **shared.strides(p, "q", "q"), **_kept(p, "k"), **_kept(p, "v"), "ab": heads if slopes and len(slopes.shape) == 2 else 0,
        "tb": pages.strides[0] if pages else 0, **shared.scale_strides(p), **result, "D": size, "M": _padded(p),
        "BN": config.BN, "SIZE": wide, "PAGE": k.shape[1] if pages else 0, **shared.windows(p), "CAP": float(p.option("softcap")) != 0,
        "EIGHT": _eight(p), "HEADS": _heads(p), "SEVERAL": several,
    }
    made = [Launch(_part, (k.shape[2] // _heads(p), config.parts, batch), args, config.warps, config.stages, pdl=early)]
    if several:
        count, rows = pow2(config.parts), batch * heads * queries
        each = max(1, min(16, MERGED // (count * wide_v)))
        more = {**result, "N": rows, "COUNT": count, "ROWS_OF": each}
        made.append(Launch(_merge, (-(-rows // each),), more, 4, pdl=early))
    return made
