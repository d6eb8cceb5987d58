"""FlashAttention-3 forward on Hopper: plain, causal, windowed; heads of up to 128 columns. Contract: rooftop/ops/attention.py

A persistent block is one producer warp and two or three consumer warp groups, of 64 queries each. The producer moves queries, then tiles of keys and values by
TMA into a ring; each slot has two mbarriers, `full` (its bytes have landed) and `empty` (every group has done with it). A group issues the scores of the next
tile of keys and the product of this one's weights and values together, and takes the exponentials of the next while the second runs; the groups run apart, so
that one's exponentials lie under the other's products. Weights stay in registers, as the left operand of wgmma.

Tiles are walked from the last key back, so that those at an edge, which are masked, come first. The tiles of queries of as many heads as L2 holds are dealt
out together, the longest first, forwards and backwards in turn."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Problem
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels._device import attention as shared

DEMANDS = {"has": ["HGMMA", "UTMALDG", "UTMASTG"], "spills": 0}
LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _place(turn, tiles, rows_of_tiles, heads, section):
    """The turn-th tile of this block: (tile of queries from the last, batch times heads). Blocks change their order with each turn."""
    blocks = gl.num_programs(0)
    p = gl.program_id(0)
    t = turn * blocks + (blocks - 1 - p if turn % 2 == 1 else p)
    whole = section * rows_of_tiles
    first = t // whole * section
    here = gl.minimum(section, heads - first)
    rest = t % whole
    return t < tiles, rows_of_tiles - 1 - rest // here, first + rest % here


@gluon.jit
def _range(row, SQ, SK, BM: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """Of a tile of queries: first tile of keys, one past the last, and the bounds between which every query sees every key (tiles too)."""
    position = SK - SQ
    stop = SK
    edge = SK
    if RIGHT >= 0:
        stop = gl.maximum(gl.minimum(SK, gl.minimum(row + BM, SQ) + position + RIGHT), 0)
        edge = gl.maximum(gl.minimum(SK, row + position + RIGHT + 1), 0)
    begin = 0
    whole = 0
    if LEFT >= 0:
        begin = gl.maximum(row + position - LEFT, 0) // BN
        whole = (gl.maximum(gl.minimum(row + BM, SQ) - 1 + position - LEFT, 0) + BN - 1) // BN
    end = gl.maximum((stop + BN - 1) // BN, begin)
    return begin, end, whole, edge // BN


@gluon.jit
def _load_values(v_desc, v_ring, v_full, empty, b, h, column, n, STAGES: gl.constexpr):
    """The n-th tile of values: they are needed later than the keys of the tile after them, and come after those."""
    stage = n % STAGES
    mbarrier.wait(empty.index(2 * stage + 1), (n // STAGES & 1) ^ 1)
    mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, [b, h, column, 0], v_full.index(stage), v_ring.index(stage))


@gluon.jit
def _load(q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, q_empty, k_full, v_full, empty, tiles, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK,
          GROUPS: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):  # fmt: skip
    """The producer warp."""
    n = 0
    used = 0
    turns = gl.cdiv(tiles, gl.num_programs(0))
    for turn in range(turns):
        there, tile, bh = _place(turn, tiles, rows_of_tiles, all_heads, section)
        if there:
            b = bh // H
            h = bh % H
            row = tile * BM
            begin, end, _, _ = _range(row, SQ, SK, BM, BN, LEFT, RIGHT)
            if end > begin:
                for g in gl.static_range(GROUPS):
                    mbarrier.wait(q_empty.index(g), (used & 1) ^ 1)
                    mbarrier.expect(q_full.index(g), q_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(q_desc, [b, h, row + g * 64, 0], q_full.index(g), q_tiles.index(g))
                used += 1
                for i in range(end - begin):
                    stage = n % STAGES
                    mbarrier.wait(empty.index(2 * stage), (n // STAGES & 1) ^ 1)
                    mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(k_desc, [b, h // GROUP, (end - 1 - i) * BN, 0], k_full.index(stage), k_ring.index(stage))
                    if i > 0:
                        _load_values(v_desc, v_ring, v_full, empty, b, h // GROUP, (end - i) * BN, n - 1, STAGES)
                    n += 1
                _load_values(v_desc, v_ring, v_full, empty, b, h // GROUP, begin * BN, n - 1, STAGES)


@gluon.jit
def _flat(x):
    """A tile [1, 1, rows, columns] as the matrix that wgmma reads."""
    return x.reshape([x.shape[2], x.shape[3]])


@gluon.jit
def _weights(z, top, total, factor, cap, rows, column, SK, position, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr, MASKED: gl.constexpr):
    """(p, the new maximum, the new sum, by what the old ones shrink) of scores of one tile of keys, which begins at `column`; all in base 2."""
    L: gl.constexpr = z.type.layout
    if CAP:
        e = gl.exp2(gl.abs(z) * cap)
        t = (1 - e) / (1 + e)
        z = gl.where(z < 0, -t, t)
    if MASKED:
        columns = column + gl.arange(0, z.shape[1], gl.SliceLayout(0, L))
        limit = gl.zeros_like(rows) + SK
        if RIGHT >= 0:
            limit = gl.minimum(limit, rows + (position + RIGHT + 1))
        inside = columns[None, :] < limit[:, None]
        if LEFT >= 0:
            inside &= columns[None, :] >= (rows + (position - LEFT))[:, None]
        z = gl.where(inside, z, float("-inf"))
    new = gl.maximum(top, gl.max(z, 1) * factor)
    base = gl.where(new == float("-inf"), 0.0, new)
    p = gl.exp2(z * factor - base[:, None])
    shrink = gl.exp2(top - base)
    return p, new, total * shrink + gl.sum(p, 1), shrink


@gluon.jit
def _steps(acc, p, top, total, q, k_ring, v_ring, k_full, v_full, empty, turn_bars, n, first, last, factor, cap, rows, SK, position, INDEX: gl.constexpr,
           STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr, MASKED: gl.constexpr,
           PING: gl.constexpr):  # fmt: skip
    """Tiles of keys `first` down to one past `last`: the scores of each together with the product of the weights of the tile before it."""
    M: gl.constexpr = acc.shape[0]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    LEFT_OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    for i in range(first - last):
        before = (n - 1) % STAGES
        stage = n % STAGES
        mbarrier.wait(k_full.index(stage), n // STAGES & 1)
        if PING:
            mbarrier.wait(turn_bars.index(INDEX), n & 1)
        z = gl.zeros((M, BN), gl.float32, SCORES)
        z = warpgroup_mma(q, _flat(k_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
        acc = warpgroup_mma(p, _flat(v_ring.index(before)), acc, is_async=True)
        if PING:
            mbarrier.arrive(turn_bars.index(1 - INDEX), count=1)
        z = warpgroup_mma_wait(num_outstanding=1, deps=(z,))
        mbarrier.arrive(empty.index(2 * stage), count=1)
        w, top, total, shrink = _weights(z, top, total, factor, cap, rows, (first - 1 - i) * BN, SK, position, LEFT, RIGHT, CAP, MASKED)
        # Waiting for the next keys here ends a basic block: within one, ptxas moves the exponentials behind the wait for the product.
        mbarrier.wait(k_full.index((n + 1) % STAGES), (n + 1) // STAGES & 1, pred=i + 1 < first - last)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index(2 * before + 1), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout), assert_trivial=True)[:, None]
        p = gl.convert_layout(w.to(v_ring.dtype), LEFT_OPERAND, assert_trivial=True)
        n += 1
    return acc, p, top, total, n


@gluon.jit
def _consume(INDEX: gl.constexpr, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, tiles, rows_of_tiles,
             all_heads, section, H, SQ, SK, scale, softcap, GROUPS: gl.constexpr, STAGES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
             LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr, PING: gl.constexpr):  # fmt: skip
    """One group of consumers: queries INDEX · 64 and following of each tile."""
    DV: gl.constexpr = v_ring.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DV, 16])
    LEFT_OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=2)
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    position = SK - SQ
    cap = 0.0
    if CAP:
        cap = scale / softcap * (-2.0 * LOG2E)
        factor = softcap * LOG2E
    else:
        factor = scale * LOG2E
    n = 0
    used = 0
    turns = gl.cdiv(tiles, gl.num_programs(0))
    for turn in range(turns):
        there, tile, bh = _place(turn, tiles, rows_of_tiles, all_heads, section)
        if there:
            row = tile * BM
            begin, end, whole, edge = _range(row, SQ, SK, BM, BN, LEFT, RIGHT)
            rows = row + INDEX * 64 + gl.arange(0, 64, ROWS)
            acc = gl.zeros((64, DV), gl.float32, RESULT)
            top = gl.full((64,), float("-inf"), gl.float32, ROWS)
            total = gl.zeros((64,), gl.float32, ROWS)
            if end > begin:
                q = _flat(q_tiles.index(INDEX))
                mbarrier.wait(q_full.index(INDEX), used & 1)
                stage = n % STAGES
                mbarrier.wait(k_full.index(stage), n // STAGES & 1)
                if PING:
                    mbarrier.wait(turn_bars.index(INDEX), n & 1)
                z = gl.zeros((64, BN), gl.float32, SCORES)
                z = warpgroup_mma(q, _flat(k_ring.index(stage)).permute((1, 0)), z, use_acc=False, is_async=True)
                z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
                if PING:
                    mbarrier.arrive(turn_bars.index(1 - INDEX), count=1)
                mbarrier.arrive(empty.index(2 * stage), count=1)
                w, top, total, _ = _weights(z, top, total, factor, cap, rows, (end - 1) * BN, SK, position, LEFT, RIGHT, CAP, True)
                p = gl.convert_layout(w.to(v_ring.dtype), LEFT_OPERAND, assert_trivial=True)
                n += 1
                edge = gl.maximum(gl.minimum(edge, end - 1), begin)
                acc, p, top, total, n = _steps(acc, p, top, total, q, k_ring, v_ring, k_full, v_full, empty, turn_bars, n, end - 1, edge, factor, cap, rows,
                                               SK, position, INDEX, STAGES, BN, LEFT, RIGHT, CAP, True, PING)  # fmt: skip
                inner = gl.minimum(gl.maximum(whole, begin), edge)
                acc, p, top, total, n = _steps(acc, p, top, total, q, k_ring, v_ring, k_full, v_full, empty, turn_bars, n, edge, inner, factor, cap, rows, SK,
                                               position, INDEX, STAGES, BN, LEFT, RIGHT, CAP, False, PING)  # fmt: skip
                if LEFT >= 0:
                    acc, p, top, total, n = _steps(acc, p, top, total, q, k_ring, v_ring, k_full, v_full, empty, turn_bars, n, inner, begin, factor, cap,
                                                   rows, SK, position, INDEX, STAGES, BN, LEFT, RIGHT, CAP, True, PING)  # fmt: skip
                mbarrier.arrive(q_empty.index(INDEX), count=1)
                before = (n - 1) % STAGES
                mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
                acc = warpgroup_mma(p, _flat(v_ring.index(before)), acc, is_async=True)
                acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
                mbarrier.arrive(empty.index(2 * before + 1), count=1)
                used += 1
            norm = gl.convert_layout(1.0 / gl.where(total == 0, 1.0, total), gl.SliceLayout(1, RESULT), assert_trivial=True)
            tma.store_wait(0)  # what this group stored before
            _flat(o_tiles.index(INDEX)).store((acc * norm[:, None]).to(out_desc.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_desc, [bh // H, bh % H, row + INDEX * 64, 0], o_tiles.index(INDEX))
            gl.store(lse + bh.to(gl.int64) * SQ + rows, (top + gl.log2(total)) * (1.0 / LOG2E), mask=rows < SQ)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("SQ", "SK", "tiles", "rows_of_tiles", "all_heads", "section", "H", "GROUP"))
def _forward(q_desc, k_desc, v_desc, out_desc, lse, tiles, rows_of_tiles, all_heads, section, H, GROUP, SQ, SK, scale, softcap, GROUPS: gl.constexpr,
             STAGES: gl.constexpr, BN: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, CAP: gl.constexpr, PING: gl.constexpr):  # fmt: skip
    BM: gl.constexpr = 64 * GROUPS
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS] + q_desc.block_type.shape, q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    o_tiles = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_type.shape, out_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    turn_bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(empty.index(2 * i), count=GROUPS)
        mbarrier.init(empty.index(2 * i + 1), count=GROUPS)
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turn_bars.index(i), count=1)
    fence_async_shared()
    if PING:
        mbarrier.arrive(turn_bars.index(0), count=1)
    if GROUPS == 2:
        gl.warp_specialize([
            (_consume, (0, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, tiles, rows_of_tiles,
                        all_heads, section, H, SQ, SK, scale, softcap, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING)),
            (_consume, (1, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, tiles, rows_of_tiles,
                        all_heads, section, H, SQ, SK, scale, softcap, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING)),
            (_load, (q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, q_empty, k_full, v_full, empty, tiles, rows_of_tiles, all_heads, section, H,
                     GROUP, SQ, SK, GROUPS, STAGES, BM, BN, LEFT, RIGHT)),
        ], [4, 1], [240, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consume, (0, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, tiles, rows_of_tiles,
                        all_heads, section, H, SQ, SK, scale, softcap, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING)),
            (_consume, (1, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, tiles, rows_of_tiles,
                        all_heads, section, H, SQ, SK, scale, softcap, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING)),
            (_consume, (2, q_tiles, k_ring, v_ring, o_tiles, q_full, q_empty, k_full, v_full, empty, turn_bars, out_desc, lse, tiles, rows_of_tiles,
                        all_heads, section, H, SQ, SK, scale, softcap, GROUPS, STAGES, BM, BN, LEFT, RIGHT, CAP, PING)),
            (_load, (q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, q_empty, k_full, v_full, empty, tiles, rows_of_tiles, all_heads, section, H,
                     GROUP, SQ, SK, GROUPS, STAGES, BM, BN, LEFT, RIGHT)),
        ], [4, 4, 1], [160, 160, 24])  # fmt: skip


@dataclass(frozen=True)
class Config:
    """`GROUPS` consumer groups of 64 queries each, tiles of `BN` keys, a ring of `STAGES` of them. `PING`: two groups issue their products in turn."""

    GROUPS: int = 2
    BN: int = 128
    STAGES: int = 2
    PING: bool = True


def _width(n: int) -> int:
    """Columns of a head as tiles have them."""
    return 64 if n <= 64 else 128


def supports(p: Problem) -> str | None:
    if reason := shared.refused(p, ("mask", "page_table", "cache_lengths", "sinks", "q_scale", "k_scale", "v_scale", "bias", "alibi_slopes", "cu_seqlens_q")):
        return reason
    if max(p["q"].shape[3], p["v"].shape[3]) > 128:
        return f"takes heads of at most 128 columns; given {p['q'].shape[3]} and {p['v'].shape[3]}"
    for name in ("q", "k", "v", "out"):
        if reason := not_copied(_heads_first(p, name)[0], *_heads_first(p, name)[1]):
            return f"TMA does not copy {name}: {reason}"
    return None


def prefers(p: Problem) -> bool:
    """A block walks its tiles alone: fewer than 64 queries would leave most of it idle."""
    return p["q"].shape[1] >= 64


def choose(p: Problem) -> Config:
    return Config(STAGES=2 if _width(max(p["q"].shape[3], p["v"].shape[3])) == 128 else 4)


def configs(p: Problem) -> list[Config]:
    size = max(_width(p["q"].shape[3]), _width(p["v"].shape[3]))
    found = [Config(2, bn, s, ping) for bn in (64, 128) for s in (2, 3, 4, 6) for ping in (False, True)]
    found += [Config(3, 64, s, False) for s in (3, 4, 6) if size == 64]  # three groups have registers for no more scores
    return [c for c in found if 2 * size * (2 * 64 * c.GROUPS + 2 * c.BN * c.STAGES) + 1024 <= p.device.shared_per_block]


def _heads_first(p: Problem, name: str):  # type: ignore[no-untyped-def]
    """The tensor, and its shape and strides as [B, H, S, D]."""
    m = p[name]
    (b, s, h, d), (sb, ss, sh, sd) = m.shape, m.strides
    return m, ((b, h, s, d), (sb, sh, ss, sd))


def launches(p: Problem, config: Config) -> list[Launch]:
    from triton.experimental.gluon.language import bfloat16, float16

    batch, queries, heads, size = p["q"].shape
    keys, key_heads = p["k"].shape[1:3]
    kind = bfloat16 if p["q"].dtype == "bf16" else float16

    def tiled(name: str, rows: int, columns: int) -> Descriptor:
        block = (1, 1, rows, columns)
        shape, strides = _heads_first(p, name)[1]
        return Descriptor(name, block, gl.NVMMASharedLayout.get_default_for(list(block), kind), shape=shape, strides=strides)

    wide, wide_v = _width(size), _width(p["v"].shape[3])
    rows_of_tiles = -(-queries // (64 * config.GROUPS))
    section = max(1, p.device.l2_bytes // 2 // (keys * (size + p["v"].shape[3]) * 2)) * (heads // key_heads)
    tiles = rows_of_tiles * batch * heads
    args = {
        "q_desc": tiled("q", 64, wide), "k_desc": tiled("k", config.BN, wide), "v_desc": tiled("v", config.BN, wide_v), "out_desc": tiled("out", 64, wide_v),
        "lse": "lse", "tiles": tiles, "rows_of_tiles": rows_of_tiles, "all_heads": batch * heads, "section": min(section, batch * heads), "H": heads,
        "GROUP": heads // key_heads, "SQ": queries, "SK": keys, "scale": "scale", "softcap": float(p.option("softcap")), "GROUPS": config.GROUPS,
        "STAGES": config.STAGES, "BN": config.BN, **shared.windows(p), "CAP": float(p.option("softcap")) != 0, "PING": config.PING,
    }  # fmt: skip
    return [Launch(_forward, (min(tiles, p.device.sms),), args, warps=4)]
