"""Attention of few queries to many keys (decode), with split-K over the keys (flash decoding). Contract: rooftop/ops/attention.py

The limit is one read of keys and values. So the query heads that share a key head, and their queries, are the rows of one tile. The tiles of
keys of all key heads and sequences are one list, which is divided evenly among as many programs as are resident at once: all end together,
whatever the batch and however the lengths differ. The list follows from the actual lengths, on the device. A program keeps two or more tiles
of keys and values of some 32 KiB in flight. Its first and its last key head may be another program's too: a second launch combines such
parts by their normalisers. Where blocks are many, a program for each key head and sequence ends as evenly, and nothing is combined. The
cache is contiguous or paged, in 16 or 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention._tiles import LOG2E, page_of, scored, seen

TILE = 32 * 1024  # bytes of keys and values loaded in an iteration
MOST = 16  # queries
ROWS = 128  # queries times the heads that share a key head
SPREAD = 2048  # sequences whose lengths a program can hold
ALONE = 0.17  # the time for a tile of a program alone, of that for a tile of each where all read
# Of two words of two codes the even codes (those of the low bytes) and the odd ones: Triton's own shifts and masks take five instructions for two.
PAIRS = (
    "{ .reg .b32 u; .reg .b16 x, y; prmt.b32 u, $2, 0, 0x3120; mov.b32 {x, y}, u; "
    "cvt.rn.f16x2.e4m3x2 $0, x; cvt.rn.f16x2.e4m3x2 $1, y; }"
)
FROM_WORDS = tl.constexpr(PAIRS)
DEMANDS = {"spills": 64}  # places in the list, read once a key head


@triton.jit
def _coded(at, mask):  # type: ignore[no-untyped-def]
    """(even, odd) columns of an 8-bit tile in float16. It is loaded as words of two columns, which are converted to tensor core operands
    directly, two words at a time."""
    words = tl.load(at, mask=mask, other=0)
    return tl.inline_asm_elementwise(FROM_WORDS, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2)


@triton.jit
def _tiles_of(keys, SQ, BN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):  # type: ignore[no-untyped-def]
    """(first key, one past the last, tiles) that the queries of a sequence see; at least one tile, so that each has a program."""
    low = keys * 0
    high = keys
    if LEFT >= 0:
        low = tl.maximum(keys - SQ - LEFT, 0) // BN * BN
    if RIGHT >= 0:
        high = tl.maximum(tl.minimum(keys, keys + RIGHT), 0)
    return low, high, tl.maximum((high - low + BN - 1) // BN, 1)


@triton.jit
def _clamped(length, SK):  # type: ignore[no-untyped-def]
    return tl.minimum(tl.maximum(length.to(tl.int32), 0), SK)


@triton.jit
def _counts(  # type: ignore[no-untyped-def]
    lengths, SK, SQ, B, BN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, LISTED: tl.constexpr, MANY: tl.constexpr
):
    """The tiles of a sequence; LISTED: of each, and 0 behind the last."""
    if LISTED:
        i = tl.arange(0, MANY)
        keys = _clamped(tl.load(lengths + i, mask=i < B, other=0), SK)
        counts = tl.where(i < B, _tiles_of(keys, SQ, BN, LEFT, RIGHT)[2], 0)
    else:
        counts = _tiles_of(SK, SQ, BN, LEFT, RIGHT)[2]
    return counts


@triton.jit
def _each(counts, B, KEY_HEADS, programs, LISTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """(tiles of all, tiles of a program)."""
    total = tl.sum(counts) * KEY_HEADS if LISTED else counts * (B * KEY_HEADS)
    return total, tl.cdiv(total, programs)


@triton.jit
def _before(counts, batch, key_head, KEY_HEADS, LISTED: tl.constexpr, MANY: tl.constexpr):  # type: ignore[no-untyped-def]
    """(tiles of the list before those of a key head, its own)."""
    if LISTED:
        i = tl.arange(0, MANY)
        count = tl.sum(tl.where(i == batch, counts, 0))
        before = tl.sum(tl.where(i < batch, counts, 0)) * KEY_HEADS + key_head * count
    else:
        count = counts
        before = (batch * KEY_HEADS + key_head) * counts
    return before, count


@triton.jit
def _owner(counts, tile, KEY_HEADS, LISTED: tl.constexpr, MANY: tl.constexpr):  # type: ignore[no-untyped-def]
    """The key head, counted over all sequences, of a tile of the list."""
    if LISTED:
        batch = tl.sum((tl.cumsum(counts, 0) * KEY_HEADS <= tile).to(tl.int32))
        before, count = _before(counts, batch, 0, KEY_HEADS, LISTED, MANY)
        owner = batch * KEY_HEADS + (tile - before) // tl.maximum(count, 1)
    else:
        owner = tile // counts
    return owner


@triton.jit(do_not_specialize=["SK", "PAGES", "B", "programs"])
def _part(q, k, v, slopes, sinks, table, lengths, q_scale, k_scale, v_scale, out, lse, parts, norms, scale, softcap, SQ, SK, PAGES, B,
          programs, H, GROUP, qb, qs, qh, kb, ks, kh, vb, vs, vh, ob, os, oh, ab, tb, qg, kg, vg, D: tl.constexpr, DV: tl.constexpr,
          M: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, PAGE: tl.constexpr, WHOLE: tl.constexpr,
          LISTED: tl.constexpr, MANY: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr,
          EIGHT: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program's tiles of the list, key head by key head; WHOLE: all of one key head. Writes `out` and `lse` of a key head that is its own,
    else parts [programs, 2, SQ · GROUP, DV] and norms [programs, 2, SQ · GROUP], in base 2: first the key head that it begins with, then
    the one that another program goes on with. LISTED: sequences have lengths of their own. Strides as in the forward. EIGHT: keys and
    values have 8 bits and are counted in pairs of columns, also in strides."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    program = tl.program_id(0)
    KEY_HEADS = H // GROUP
    begin = 0
    end = 0
    counts = 0
    first = program
    last = program + 1
    if not WHOLE:
        counts = _counts(lengths, SK, SQ, B, BN, LEFT, RIGHT, LISTED, MANY)
        total, each = _each(counts, B, KEY_HEADS, programs, LISTED)
        begin = tl.minimum(program * each, total)
        end = tl.minimum(begin + each, total)
        first = _owner(counts, begin, KEY_HEADS, LISTED, MANY)
        last = tl.where(end > begin, _owner(counts, end - 1, KEY_HEADS, LISTED, MANY) + 1, first)
    row = tl.arange(0, M)
    rows = row // GROUP
    rows_in = rows < SQ
    PER: tl.constexpr = 2 if EIGHT else 1
    SHIFT: tl.constexpr = 15 if EIGHT else 0  # in float16, weights times 2^15 keep the small ones that bfloat16 would keep
    COLUMNS: tl.constexpr = D // PER
    COLUMNS_V: tl.constexpr = DV // PER
    d = tl.arange(0, SIZE // PER)
    dv = tl.arange(0, SIZE_V // PER)
    dv_out = tl.arange(0, SIZE_V)
    q_in = rows_in[:, None] & (d < COLUMNS)[None, :]
    if EIGHT:
        k = k.to(tl.pointer_type(tl.int16))
        v = v.to(tl.pointer_type(tl.int16))
    for turn in range(first, last):
        key_head = turn % KEY_HEADS
        batch = (turn // KEY_HEADS).to(tl.int64)
        head = key_head * GROUP + row % GROUP
        keys = SK
        if lengths is not None:
            keys = _clamped(tl.load(lengths + batch), SK)
        position = keys - SQ
        q_at = q + batch * qb + rows.to(tl.int64)[:, None] * qs + head.to(tl.int64)[:, None] * qh + (d * PER)[None, :]
        if EIGHT:
            mine_even = tl.load(q_at, mask=q_in, other=0.0).to(tl.float32)
            mine_odd = tl.load(q_at + 1, mask=q_in, other=0.0).to(tl.float32)
            largest = tl.maximum(tl.max(tl.abs(mine_even), 1), tl.max(tl.abs(mine_odd), 1))
            power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # a power of two, at most `largest`
            power = tl.where((largest > 1e-30) & (largest < float("inf")), power, 1.0)
            mine = (mine_even / power[:, None]).to(tl.float16)  # below 2, so that float16 holds what bfloat16 would
            mine_odd = (mine_odd / power[:, None]).to(tl.float16)
        else:
            mine = tl.load(q_at, mask=q_in, other=0.0).to(out.dtype.element_ty)
        k_here = k + key_head.to(tl.int64) * kh
        v_here = v + key_head.to(tl.int64) * vh
        table_here = table
        if PAGE:
            table_here = table + batch * tb
        else:
            k_here += batch * kb
            v_here += batch * vb
        scales = tl.zeros((M,), tl.float32) + scale
        if q_scale is not None:
            scales *= tl.load(q_scale + head * qg, mask=rows_in, other=1.0)
        if k_scale is not None:
            scales *= tl.load(k_scale + key_head * kg)
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
        low, high, unused = _tiles_of(keys, SQ, BN, LEFT, RIGHT)  # noqa: RUF059  `_` is a tensor below
        from_tile = 0
        slot = 0
        alone = True
        if not WHOLE:
            before, count = _before(counts, turn // KEY_HEADS, key_head, KEY_HEADS, LISTED, MANY)
            from_tile = tl.maximum(begin - before, 0)
            slot = (before > begin).to(tl.int32)
            alone = (begin <= before) & (before + count <= end)
            high = tl.minimum(high, low + tl.minimum(end - before, count) * BN)
            low += from_tile * BN

        acc = tl.zeros((M, SIZE_V // PER), tl.float32)
        acc_odd = acc
        top = tl.full((M,), float("-inf"), tl.float32)
        total_of = tl.zeros((M,), tl.float32)
        if sinks is not None:
            top = tl.load(sinks + head, mask=rows_in & (from_tile == 0), other=float("-inf")).to(tl.float32) * LOG2E
            total_of = tl.where(top == float("-inf"), 0.0, 32768.0 if EIGHT else 1.0)
        coming = 0
        if PAGE:
            coming = page_of(table_here, low, high, BN, PAGE)
        for start in range(low, high, BN):
            columns = start + tl.arange(0, BN)
            columns_in = columns < keys
            real = columns_in
            if PAGE:
                page = coming
                coming = page_of(table_here, start + BN, high, BN, PAGE)  # one iteration ahead: keys and values then wait for no other load
                exists = (page >= 0) & (page < PAGES)
                real = columns_in & exists
                page = tl.where(exists, page, 0)
                k_at = k_here + (page * kb + (columns % PAGE).to(tl.int64) * ks)[None, :] + d[:, None]
                v_at = v_here + (page * vb + (columns % PAGE).to(tl.int64) * vs)[:, None] + dv[None, :]
            else:
                k_at = k_here + columns.to(tl.int64)[None, :] * ks + d[:, None]
                v_at = v_here + columns.to(tl.int64)[:, None] * vs + dv[None, :]
            k_in = real[None, :] & (d < COLUMNS)[:, None]
            v_in = real[:, None] & (dv < COLUMNS_V)[None, :]
            if EIGHT:
                kt, kt_odd = _coded(k_at, k_in)
                vt, vt_odd = _coded(v_at, v_in)
                z = tl.dot(mine_odd, kt_odd, tl.dot(mine, kt))
            else:
                kt = tl.load(k_at, mask=k_in, other=0.0)
                vt = tl.load(v_at, mask=v_in, other=0.0)
                z = tl.dot(mine, kt)
            if CAP or ALIBI:
                z, _ = scored(z, rows[:, None], columns[None, :], columns_in[None, :], position, factor[:, None], cap[:, None],
                              slope[:, None], None, 0, 0, None, 0, 0, CAP, ALIBI)
            else:
                z = z * factor[:, None]
            if PAGE:
                z = tl.where(real[None, :] | (columns >= keys)[None, :], z, float("nan"))
            z = tl.where(seen(rows[:, None], columns[None, :], position, keys, LEFT, RIGHT), z, float("-inf"))
            new = tl.maximum(top, tl.max(z, 1))
            base = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(z - (base - SHIFT)[:, None])
            shrink = tl.exp2(top - base)
            total_of = total_of * shrink + tl.sum(p, 1)
            p = p.to(mine.dtype)
            acc = tl.dot(p, vt, acc * shrink[:, None])
            if EIGHT:
                acc_odd = tl.dot(p, vt_odd, acc_odd * shrink[:, None])
            top = new

        norm = top + (tl.log2(total_of) - SHIFT)
        weigh = 1.0 / tl.where(total_of == 0, 1.0, total_of)
        if v_scale is not None:
            weigh *= tl.load(v_scale + key_head * vg)
        if EIGHT:
            made = tl.reshape(tl.join(acc, acc_odd), (M, SIZE_V)) * weigh[:, None]
        else:
            made = acc * weigh[:, None]
        stored = rows_in[:, None] & (dv_out < DV)[None, :]
        if alone:
            o_at = out + batch * ob + head.to(tl.int64)[:, None] * oh + rows.to(tl.int64)[:, None] * os + dv_out[None, :]
            tl.store(o_at, made.to(out.dtype.element_ty), mask=stored)
            tl.store(lse + (batch * H + head) * SQ + rows, norm / LOG2E, mask=rows_in)
        elif not WHOLE:
            number = (program * 2 + slot).to(tl.int64) * (SQ * GROUP) + row
            tl.store(parts + number[:, None] * DV + dv_out[None, :], made, mask=stored)
            tl.store(norms + number, norm, mask=rows_in)


@triton.jit(do_not_specialize=["SK", "B", "programs"])
def _merge(parts, norms, lengths, out, lse, SQ, SK, B, programs, H, GROUP, ob, os, oh, DV: tl.constexpr, SIZE_V: tl.constexpr,
           BN: tl.constexpr, LISTED: tl.constexpr, MANY: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, AT_ONCE: tl.constexpr,
           PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """A row of one head: its parts, if it has several, weighted by their normalisers."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2)
    KEY_HEADS = H // GROUP
    counts = _counts(lengths, SK, SQ, B, BN, LEFT, RIGHT, LISTED, MANY)
    _, each = _each(counts, B, KEY_HEADS, programs, LISTED)
    before, count = _before(counts, batch, head // GROUP, KEY_HEADS, LISTED, MANY)
    first = before // each
    last = (before + count - 1) // each
    if last > first:
        dv = tl.arange(0, SIZE_V)
        top = float("-inf")
        total = 0.0
        acc = tl.zeros((SIZE_V,), tl.float32)
        for start in range(first, last + 1, AT_ONCE):
            i = start + tl.arange(0, AT_ONCE)
            slot = (before > i * each).to(tl.int64)  # of the first program: it may have begun with another key head
            number = (i * 2 + slot) * (SQ * GROUP) + row * GROUP + head % GROUP
            norm = tl.load(norms + number, mask=i <= last, other=float("-inf"))
            part = tl.load(parts + number[:, None] * DV + dv[None, :], mask=(i <= last)[:, None] & (dv < DV)[None, :], other=0.0)
            new = tl.maximum(top, tl.max(norm, 0))
            base = tl.where(new == float("-inf"), 0.0, new)
            weight = tl.exp2(norm - base)
            shrink = tl.exp2(top - base)
            total = total * shrink + tl.sum(weight, 0)
            acc = acc * shrink + tl.sum(part * weight[:, None], 0)
            top = new
        made = acc / tl.where(total == 0, 1.0, total)
        b = batch.to(tl.int64)
        tl.store(out + b * ob + tl.cast(head, tl.int64) * oh + tl.cast(row, tl.int64) * os + dv, made.to(out.dtype.element_ty), mask=dv < DV)
        base = tl.where(top == float("-inf"), 0.0, top)
        tl.store(lse + (b * H + head) * SQ + row, (base + tl.log2(total)) / LOG2E)


@dataclass(frozen=True)
class Config:
    """Programs that share the list of tiles (as many as there are key heads in all sequences: one each), keys of a tile, warps, and pipeline
    stages of keys and values."""

    programs: int
    BN: int
    warps: int
    stages: int


def _rows(p: Problem) -> int:
    return p["q"].shape[1] * (p["q"].shape[2] // max(p["k"].shape[2], 1))


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
    return max(least, shared.pow2(p["q"].shape[3])), max(least, shared.pow2(p["v"].shape[3]))


def _held(p: Problem, bn: int, stages: int) -> int:
    """Bytes of shared memory of a block: the queries, and the tiles in flight or in use, one fewer in Triton than there are stages."""
    size, size_v = _sizes(p)
    return 2 * max(16, shared.pow2(_rows(p))) * (size + size_v) + max(1, stages - 1) * bn * (size + size_v) * p["k"].itemsize


def _resident(p: Problem, bn: int, stages: int) -> int:
    """Resident blocks of a multiprocessor."""
    return max(1, (p.device.shared_per_block + 1024) // (_held(p, bn, stages) + 1024))


def choose(p: Problem) -> Config:
    size, size_v = _sizes(p)
    keys = shared.room(p)
    bn = max(16, min(128, shared.pow2(TILE // ((size + size_v) * p["k"].itemsize) + 1) // 2, shared.pow2(max(keys, 16))))
    if p.get("page_table") is not None and p["k"].shape[1] % bn and p["k"].shape[1] % (bn // 2) == 0:
        bn //= 2  # a tile is then within one page
    stages = 3
    while stages > 1 and _held(p, bn, stages) > p.device.shared_per_block - 2048:
        stages -= 1
    return Config(_programs(p, bn, p.device.sms * _resident(p, bn, stages)), bn, 8 if shared.pow2(_rows(p)) >= 64 else 4, stages)


def _blocks(p: Problem) -> int:
    """Key heads of all sequences."""
    return p["q"].shape[0] * p["k"].shape[2]


def _tiles(p: Problem, bn: int) -> int:
    """Tiles of a key head, as `_tiles_of` has them, if the sequence is as long as it may be."""
    keys, queries, found = shared.room(p), p["q"].shape[1], shared.windows(p)
    low = max(keys - queries - found["LEFT"], 0) // bn * bn if found["LEFT"] >= 0 else 0
    return max(1, -(-(keys - low) // bn))


def _programs(p: Problem, bn: int, slots: int) -> int:
    """By the time in units of that for a tile of each of `slots` programs, as many as are resident. Fewer programs read a little slower, and
    each takes at least ALONE for a tile. A list that is divided costs a launch that combines, some three units at both ends against two."""
    blocks, tiles = _blocks(p), _tiles(p, bn)
    spread = min(slots, max(blocks, blocks * tiles // 2))
    if p["q"].shape[0] > SPREAD:
        return blocks
    waves, rest = divmod(blocks, slots)
    share = rest / slots
    last = max(share / (0.85 + 0.15 * share) if waves == 0 else share, ALONE) if rest else 0.0
    if p.get("cache_lengths") is not None and waves < 8:  # lengths that differ end unevenly
        return spread
    return blocks if tiles * (waves + last) + 2 <= max(blocks * tiles / slots, -(-blocks * tiles // spread) * ALONE) + 3 else spread


def configs(p: Problem) -> list[Config]:
    c = choose(p)
    found = [Config(n, bn, w, s) for n in {c.programs, _blocks(p)} for bn in (32, 64, 128) for w in (4, 8) for s in (2, 3, 4)]
    return [c for c in found if _held(p, c.BN, c.stages) <= p.device.shared_per_block - 2048]


def explains(p: Problem, config: Config) -> str:
    how = "one for each key head and sequence" if config.programs == _blocks(p) else "which share the tiles of keys evenly"
    return f"{config.programs} programs, {how}, {_resident(p, config.BN, config.stages)} at once on each of {p.device.sms} multiprocessors"


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    if config.programs == _blocks(p):
        return {}
    shape = (config.programs, 2, _rows(p))
    return {"parts": Meta((*shape, p["v"].shape[3]), "f32"), "norms": Meta(shape, "f32")}


def _kept(p: Problem, name: str) -> dict[str, int]:
    """Strides of keys or values in the kernel's units."""
    return {n: s // 2 if _eight(p) else s for n, s in shared.strides(p, name, name).items()}


def for_any_rows(p: Problem) -> str:
    return "how the keys are split follows from the number of sequences"


def launches(p: Problem, config: Config) -> list[Launch]:
    q, k, v = p["q"], p["k"], p["v"]
    batch, queries, heads, size = q.shape
    slopes, pages, whole = p.get("alibi_slopes"), p.get("page_table"), config.programs == _blocks(p)
    wide, wide_v = _sizes(p)
    early = p.device.pdl

    def name(tensor: str) -> str | None:
        return tensor if p.get(tensor) is not None else None

    listed = p.get("cache_lengths") is not None and not whole
    both = {
        "out": "out", "lse": "lse", "parts": None if whole else "parts", "norms": None if whole else "norms", "lengths": name("cache_lengths"), "SQ": queries,
        "SK": shared.room(p), "B": batch, "programs": config.programs, "H": heads, "GROUP": heads // k.shape[2], **shared.strides(p, "o", "out"),
        "DV": v.shape[3], "SIZE_V": wide_v, "BN": config.BN, "LISTED": listed, "MANY": max(16, shared.pow2(batch)) if listed else 16,
        **shared.windows(p), "PDL": early,
    }
    args = {
        "q": "q", "k": "k", "v": "v", "slopes": name("alibi_slopes"), "sinks": name("sinks"), "table": name("page_table"), "q_scale": name("q_scale"),
        "k_scale": name("k_scale"), "v_scale": name("v_scale"), "scale": "scale", "softcap": shared.softcap(p), "PAGES": k.shape[0] if pages else 0,
        **shared.strides(p, "q", "q"), **_kept(p, "k"), **_kept(p, "v"), "ab": heads if slopes and len(slopes.shape) == 2 else 0,
        "tb": pages.strides[0] if pages else 0, **shared.scale_strides(p), **both, "D": size, "M": max(16, shared.pow2(_rows(p))), "SIZE": wide,
        "PAGE": k.shape[1] if pages else 0, "WHOLE": whole, "CAP": float(p.option("softcap")) != 0, "EIGHT": _eight(p),
    }
    most = min(255, 65536 // (32 * config.warps * _resident(p, config.BN, config.stages)) // 8 * 8)  # registers
    made = [Launch(_part, (config.programs,), args, config.warps, config.stages, pdl=early, options={} if whole or p.device.gfx else {"maxnreg": most})]
    if not whole:
        each = -(-_blocks(p) * _tiles(p, config.BN) // config.programs)
        most = min(64, shared.pow2(config.programs if listed else -(-_tiles(p, config.BN) // each) + 1))
        made.append(Launch(_merge, (queries, heads, batch), {**both, "AT_ONCE": max(2, most)}, 4, pdl=early))
    return made
