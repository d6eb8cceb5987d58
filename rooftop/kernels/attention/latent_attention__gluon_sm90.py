"""Attention to a cache of latent vectors on Hopper: wgmma and TMA, warps specialised. Contract: rooftop/ops/latent_attention.py

A block has 64 rows (heads and queries of a key head) and a part of the tokens, in tiles of 64. The queries stay in shared memory, 72 KB of
512 + 64 columns, beside two tiles of tokens of 72 KB: that is all there is room for. So a tile is read once from memory, and both products
read it from shared memory. A producer warp copies it in three pieces (the two halves of the columns of a value, and the others), each of
which is released, and copied anew, as soon as nobody needs it.

The result, 64 x 512 in float32, needs the registers of two warp groups: each has half of the columns. Both need the weights of every tile.
The first group computes the scores of the even tiles and the second those of the odd ones, so that none are computed twice; the weights go
to the other group through 8 KB of shared memory, with the maximum of each row so far. Meanwhile the tensor cores have the products of the
other group: the second computes its scores and its half of the even tile's product while the first computes weights, and the reverse.

A tile of 64 rows takes 2,176 clocks of the tensor cores (64 · 64 · (576 + 512) products of bf16), with 16 heads too, where three of four rows
are empty. A multiprocessor's share of an H200's memory is 72 KB in some 4,000 clocks: so up to 64 heads the read bounds it, with 128 heads
(two blocks, of which the second reads from L2) the products."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from rooftop.core.spec import Descriptor, Launch, Meta, Problem, pow2
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels.attention import _arguments as shared
from rooftop.kernels.attention import _latent
from rooftop.kernels.attention._latent_coded_sm90 import load_codes
from rooftop.kernels.attention._latent_groups_sm90 import LOG2E, even, load_tokens, odd

# Of a cache of 8 bits, four warps need registers that the groups have otherwise: each keeps what it reads once in local memory.
DEMANDS = {"has": ["HGMMA"], "spills": 112}
ROWS, TOKENS = 64, 64  # of a block, and of a tile


@gluon.jit(do_not_specialize=("SQ", "SK", "PAGES", "H", "GROUP"))
def _part(q, codes, c_desc, r_desc, table, lengths, kv_scale, out, lse, parts, norms, scale, SQ, SK, PAGES, H, GROUP, qb, qs, qh, kb, ks, kh, ob,
          os, oh, tb, kg, V: gl.constexpr, R: gl.constexpr, HALF: gl.constexpr, SIZE_R: gl.constexpr, M: gl.constexpr, BN: gl.constexpr, PAGE: gl.constexpr,
          PARTS: gl.constexpr, CAUSAL: gl.constexpr, C_TILE: gl.constexpr, R_TILE: gl.constexpr,
          Q_TILE: gl.constexpr, Q_MORE: gl.constexpr):
    """Part `program_id(0) % PARTS` of the tokens that a tile of rows sees, the last rows first: out and lse if there is one part, else
    parts [B, H, SQ, PARTS, V] and norms [B, H, SQ, PARTS], in base 2. `codes`: the cache if it has 8 bits, else the descriptors are of it.
    Strides of batch, token and head: q, codes (k, in words of four) and out."""
    part = gl.program_id(0) % PARTS
    first = (gl.num_programs(0) - 1 - gl.program_id(0)) // PARTS * M
    key_head = gl.program_id(1)
    batch = gl.program_id(2)
    wide = batch.to(gl.int64)
    rows = SQ * GROUP
    keys = SK
    if lengths is not None:
        keys = gl.minimum(gl.maximum(gl.load(lengths + batch).to(gl.int32), 0), SK)
    position = keys - SQ
    weight = 1.0
    factor = scale * LOG2E
    if kv_scale is not None:
        weight = gl.load(kv_scale + key_head * kg)
        factor = factor * weight
    high = keys
    if CAUSAL:
        last = (gl.minimum(first + M, rows) - 1) // GROUP
        high = gl.maximum(gl.minimum(keys, position + last + 1), 0)
    each = ((high + BN - 1) // BN + PARTS - 1) // PARTS * BN
    begin = gl.minimum(part * each, high)
    end = gl.minimum(begin + each, high)
    if PAGE:
        table += wide * tb
    q += wide * qb + (key_head * GROUP).to(gl.int64) * qh
    out += wide * ob + (key_head * GROUP).to(gl.int64) * oh
    number = (wide * H + key_head * GROUP) * SQ

    KIND: gl.constexpr = q.dtype.element_ty
    q_tiles = gl.allocate_shared_memory(KIND, [2, M, HALF], Q_TILE)
    c_ring = gl.allocate_shared_memory(KIND, [4, 1, 1, BN, HALF], C_TILE)
    if R:
        q_more = gl.allocate_shared_memory(KIND, [M, SIZE_R], Q_MORE)
        r_ring = gl.allocate_shared_memory(KIND, [2, 1, 1, BN, SIZE_R], R_TILE)
    else:
        q_more = q_tiles
        r_ring = c_ring
    p_tile = gl.allocate_shared_memory(KIND, [M, BN], gl.NVMMASharedLayout.get_default_for([M, BN], KIND))
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    tops = gl.allocate_shared_memory(gl.float32, [2, M], LINE)
    sums = gl.allocate_shared_memory(gl.float32, [2, M], LINE)
    full = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    summed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(6):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(p_full.index(i), count=1)
        mbarrier.init(summed.index(i), count=1)
    mbarrier.init(q_full.index(0), count=2)
    fence_async_shared()
    CODED: gl.constexpr = codes is not None
    CLEARED: gl.constexpr = codes is None and lengths is not None
    if codes is None:
        gl.warp_specialize([
            (even, (q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
                    weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V, R, PAGE, BN, PARTS, CAUSAL, CLEARED,
                    CODED)),
            (odd, (q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
                   weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V, R, PAGE, BN, PARTS, CAUSAL, CLEARED,
                   CODED)),
            (load_tokens, (c_desc, r_desc, c_ring, r_ring, full, empty, table, begin, end, batch, key_head, V, R, PAGE, BN)),
        ], [4, 1], [240, 24])
    else:
        words = codes.to(gl.pointer_type(gl.int32)) + key_head.to(gl.int64) * kh
        if PAGE == 0:
            words += wide * kb
        gl.warp_specialize([
            (even, (q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
                    weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V, R, PAGE, BN, PARTS, CAUSAL, CLEARED,
                    CODED)),
            (odd, (q_tiles, q_more, c_ring, r_ring, p_tile, tops, sums, full, empty, q_full, p_full, summed, q, table, out, lse, parts, norms, factor,
                   weight, first, rows, begin, end, keys, part, position, PAGES, GROUP, number, qs, qh, os, oh, V, R, PAGE, BN, PARTS, CAUSAL, CLEARED,
                   CODED)),
            (load_codes, (words, c_ring, r_ring, full, empty, table, begin, end, keys, kb, ks, PAGES, V, R, PAGE, BN)),
        ], [4, 4], [192, 120])


@dataclass(frozen=True)
class Config:
    """Parts of the tokens of a sequence."""

    parts: int


def _half(p: Problem) -> int:
    """Columns of half of a value, padded to whole rows of 128 bytes."""
    return max(64, pow2(_latent.columns(p)[0]) // 2)


def _more(p: Problem) -> int:
    more = _latent.columns(p)[1]
    return max(64, pow2(more)) if more else 0


def _held(p: Problem) -> int:
    """Bytes of shared memory: the queries, two tiles of tokens, one of weights; maxima, sums, barriers and what the warps are told."""
    return 2 * 3 * ROWS * (2 * _half(p) + _more(p)) + 2 * ROWS * TOKENS + 2048


def _paged(p: Problem) -> bool:
    return p.get("page_table") is not None


def _coded(p: Problem) -> bool:
    return p["kv"].dtype == shared.EIGHT_BITS


def supports(p: Problem) -> str | None:
    q, kv = p["q"], p["kv"]
    if q.dtype not in ("f16", "bf16") or kv.dtype not in (q.dtype, shared.EIGHT_BITS):
        return f"takes f16 and bf16, and kv of {shared.EIGHT_BITS}; given {q.dtype} and {kv.dtype}"
    if reason := _latent.refused(p):
        return reason
    if _held(p) > p.device.shared_per_block:
        return f"needs {_held(p)} bytes of shared memory"
    page = kv.shape[1]
    if _paged(p) and page % TOKENS and (TOKENS % page or page % 8) and not _coded(p):
        return f"takes pages of 8, 16, 32 and of multiples of {TOKENS} tokens; given {page}"
    if reason := not_copied(kv, *_heads_first(p)):
        return f"TMA does not copy kv: {reason}"
    return None


def choose(p: Problem) -> Config:
    """One block on a multiprocessor. Before its first tile it waits for 72 KB of queries and 72 KB of tokens: 4 tiles a part at least."""
    blocks, tiles = -(-_latent.rows(p) // ROWS) * p["kv"].shape[2] * p["q"].shape[0], -(-_latent.room(p) // TOKENS)
    return Config(_latent.parts(blocks, p.device.sms, tiles, 4))


def configs(p: Problem) -> list[Config]:
    n = choose(p).parts
    return [Config(m) for m in sorted({max(1, n // 2), n, 2 * n}) if m <= _latent.SPLITS]


def for_any_rows(p: Problem) -> str:
    return "how the tokens are split follows from the number of sequences"


def explains(p: Problem, config: Config) -> str:
    return f"tiles of {ROWS} rows and {TOKENS} tokens, {config.parts} parts of the tokens of a sequence"


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return _latent.scratch(p, config.parts)


def _heads_first(p: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of kv as [B, Hk, S, D], or of its pages."""
    (b, s, h, d), (sb, ss, sh, sd) = p["kv"].shape, p["kv"].strides
    return (b, h, s, d), (sb, sh, ss, sd)


def launches(p: Problem, config: Config) -> list[Launch]:
    from triton.experimental.gluon.language import bfloat16, float16

    q, kv = p["q"], p["kv"]
    value, more = _latent.columns(p)
    half, size_r, kind = _half(p), _more(p), bfloat16 if q.dtype == "bf16" else float16
    shape, strides = _heads_first(p)
    short = kv.shape[1] if _paged(p) and kv.shape[1] < TOKENS else 0  # tokens of a page, if a tile has several

    def laid(*block: int):  # type: ignore[no-untyped-def]
        return gl.NVMMASharedLayout.get_default_for(list(block), kind)

    def tiled(columns: int, last: int) -> Descriptor:
        block = (1, 1, short or TOKENS, 64 if short else columns)
        return Descriptor("kv", block, laid(*block), shape=(*shape[:3], last), strides=strides)

    coded = _coded(p)
    args = {
        "codes": "kv" if coded else None, "c_desc": None if coded else tiled(half, value),
        "r_desc": None if coded else tiled(size_r or half, value + more), **{n: s // 4 for n, s in shared.strides(p, "k", "kv").items()},
        **_latent.arguments(p, config.parts), "HALF": half, "SIZE_R": size_r, "M": ROWS, "BN": TOKENS, "C_TILE": laid(1, 1, TOKENS, half),
        "R_TILE": laid(1, 1, TOKENS, size_r or half), "Q_TILE": laid(ROWS, half), "Q_MORE": laid(ROWS, size_r or half),
    }
    for name in ("table", "parts", "norms"):
        args[name] = args[name] or "lse"  # unused, but what a warp group is given must be a tensor
    tiles = -(-_latent.rows(p) // ROWS)
    made = [Launch(_part, (tiles * config.parts, kv.shape[2], q.shape[0]), args, warps=4)]
    return made + _latent.joined(p, config.parts)
