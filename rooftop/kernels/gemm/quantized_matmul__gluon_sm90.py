"""out = x Wᵀ + bias with a packed weight on Hopper, for many rows of x. Contract: rooftop/ops/quantized_matmul.py

Persistent and warp-specialised: a block is one producer warp and two or four consumer warp groups. The producer loads x and the codes by
TMA into a ring of stages of 128 columns of K; each half of a stage has two mbarriers, `full` and `empty`. A consumer group has RM rows of
the weight: it reads its codes from shared memory, each lane the 16 bytes that the packing stored for it, unpacks them to the registers of
wgmma's left operand, and multiplies; x is the right operand, in shared memory. So the kernel computes the transposed result, and
transposes it through shared memory. While a group unpacks one half the product of the half before runs, and so do those of the others.
Where a half's products are short, its steps of 16 columns take turns: one is unpacked while the products of another run.

A group's scale, rounded to the dtype of x, is multiplied into the 16-bit weight, as if it were dequantised first; one scale per row is
multiplied into the sums in float32.

Codes are unpacked once for BM rows of x: with 256 that is hidden behind the products. With few rows it is what takes time; four groups
share it. If the tiles, or those past the last full wave of them, leave multiprocessors idle, several blocks compute a piece of K of each
(split-K), and a second launch adds the pieces, in order."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels._device.gluon_tiles import TYPES
from rooftop.kernels.gemm._lowbit_plan import FORMATS, Config, bits_of, grouping, pieces, ranked, sizes, supports
from rooftop.kernels.gemm._unpack_wgmma import factors_of, left_operand, load_scales, plane_shape, words_layout, words_of

__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]

DEMANDS = {"has": ["HGMMA", "UTMALDG"], "spills": 0}
SHORT = gl.constexpr(64 * 256)  # a group's results whose products of 64 columns take less time than its unpacking, with what it waits for
place = gluon.jit(gemm_epilogue.place.fn)


@triton.jit
def float_of(scale):  # type: ignore[no-untyped-def]
    """A row's scale in float32; of e8m0 a power of two."""
    if scale.dtype == tl.uint8:
        scale = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return scale.to(tl.float32)


scale_of = gluon.jit(float_of.fn)


@gluon.jit
def _piece(item, whole, rest, each, blocks, SPLIT: gl.constexpr):
    """The tile of an item, its place in the scratch, and the blocks of 128 columns from which to which it is summed. The first `whole` items
    are tiles, the others pieces of the `rest` tiles past them."""
    if SPLIT == 1:
        return item, item, item * 0, blocks
    else:  # noqa: RET505
        past = gl.maximum(item - whole, 0)
        first = past // rest * each
        split = item >= whole
        return gl.where(split, whole + past % rest, item), past, first, gl.where(split, gl.minimum(first + each, blocks), blocks)


@gluon.jit
def _load(given, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, SPLIT: gl.constexpr):
    """The producer warp."""
    (x_desc, more_desc, codes_desc, high_desc, x_ring, more_ring, codes_ring, high_ring, full, empty, M, N, whole, rest, blocks, each, items,
     group) = given
    STRIPES: gl.constexpr = BN // GROUPS // 16
    FIRST: gl.constexpr = x_desc.block_type.shape[0]
    CODES: gl.constexpr = GROUPS * (codes_desc.block_type.nbytes + (0 if high_desc is None else high_desc.block_type.nbytes))  # bytes
    X: gl.constexpr = x_desc.block_type.nbytes + (0 if more_desc is None else more_desc.block_type.nbytes)
    n = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile, _, first, last = _piece(item, whole, rest, each, blocks, SPLIT)
        pn, pm, _ = place(tile, N, M, group, BN, BM)
        for block in range(first, last):
            stage = n % STAGES
            free = (n // STAGES & 1) ^ 1
            left, right = full.index(2 * stage), full.index(2 * stage + 1)
            mbarrier.wait(empty.index(2 * stage), free)
            mbarrier.expect(left, X + CODES)
            for g in gl.static_range(GROUPS):
                at = pn * (BN // 16) + g * STRIPES
                tma.async_copy_global_to_shared(codes_desc, [at, block, 0, 0], left, codes_ring.index(stage * GROUPS + g))
                if high_desc is not None:
                    tma.async_copy_global_to_shared(high_desc, [at, block, 8, 0], left, high_ring.index(stage * GROUPS + g))
            tma.async_copy_global_to_shared(x_desc, [pm * BM, block * 128], left, x_ring.index(2 * stage))
            if more_desc is not None:
                tma.async_copy_global_to_shared(more_desc, [pm * BM + FIRST, block * 128], left, more_ring.index(2 * stage))
            mbarrier.wait(empty.index(2 * stage + 1), free)
            mbarrier.expect(right, X)
            tma.async_copy_global_to_shared(x_desc, [pm * BM, block * 128 + 64], right, x_ring.index(2 * stage + 1))
            if more_desc is not None:
                tma.async_copy_global_to_shared(more_desc, [pm * BM + FIRST, block * 128 + 64], right, more_ring.index(2 * stage + 1))
            n += 1


@gluon.jit
def _next(place, left, per_group, more):
    """The next block's place among the scales and the blocks left in its group; the same where there is none."""
    ends = more & (left == 1)
    return gl.where(ends, place + 1, place), gl.where(ends, per_group, gl.where(more, left - 1, left))


@gluon.jit
def _words(words, high_words, slot, HALF: gl.constexpr, factors, BITS: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr):
    """A group's words of 64 columns of a stage, with their factors."""
    return words_of(words.index(slot), None if high_words is None else high_words.index(slot), HALF, factors, BITS, CHANNEL, L, L2)


@gluon.jit
def _times(a, acc, more, x_ring, more_ring, slot, PART: gl.constexpr, PARTS: gl.constexpr, use_acc, LEFT2: gl.constexpr):
    """Adds the product with a part of 64 columns of x to the sums of the tile's rows, and of those past its largest power of two."""
    WIDE: gl.constexpr = 64 // PARTS
    x = x_ring.index(slot).slice(PART * WIDE, WIDE, dim=1)
    acc = warpgroup_mma(a, x.permute((1, 0)), acc, use_acc=use_acc, is_async=True)
    if more_ring is not None:
        a = gl.convert_layout(a, LEFT2, assert_trivial=True)
        x = more_ring.index(slot).slice(PART * WIDE, WIDE, dim=1)
        more = warpgroup_mma(a, x.permute((1, 0)), more, use_acc=use_acc, is_async=True)
    return acc, more


@gluon.jit
def _wait(acc, more, a, LEFT: int, MORE: gl.constexpr):
    """Until LEFT parts' products are not done; the parts `a` are kept until then."""
    if MORE:
        found = warpgroup_mma_wait(num_outstanding=2 * LEFT, deps=(acc, more) + a)
        return found[0], found[1], found[2:]
    else:  # noqa: RET505
        found = warpgroup_mma_wait(num_outstanding=LEFT, deps=(acc,) + a)
        return found[0], more, found[1:]


@gluon.jit
def _store(acc, token, row, out, out_desc, scale, x_scale, bias, M, N, CHANNEL: gl.constexpr):
    """Sums times the scales of rows of the weight and of x, through shared memory, transposed. token, row: of the first column and row."""
    MMA: gl.constexpr = acc.type.layout
    rows = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, MMA))
    if CHANNEL:
        acc = acc * scale_of(gl.load(scale + rows, mask=rows < N, other=0))[:, None]
    if x_scale is not None:
        tokens = token + gl.arange(0, acc.shape[1], gl.SliceLayout(0, MMA))
        acc *= gl.load(x_scale + tokens, mask=tokens < M, other=0.0)[None, :]
    if bias is not None:
        acc += gl.load(bias + rows, mask=rows < N, other=0.0).to(gl.float32)[:, None]
    out.permute((1, 0)).store(acc.to(out.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [token, row], out)


@gluon.jit
def _keep(acc, to, BN: gl.constexpr):
    """Sums of a piece, unscaled: eight lanes write 32 neighbouring bytes."""
    MMA: gl.constexpr = acc.type.layout
    rows = gl.arange(0, acc.shape[0], gl.SliceLayout(1, MMA))
    tokens = gl.arange(0, acc.shape[1], gl.SliceLayout(0, MMA))
    gl.store(to + (tokens * BN)[None, :] + rows[:, None], acc)


@gluon.jit
def _consume(WHICH: gl.constexpr, given, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
             SPLIT: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr,
             L2: gl.constexpr):
    """One consumer warp group: rows from WHICH · RM on of each tile of the weight. `parts`: for split-K, sums [piece, tile, BM, BN]."""
    (x_ring, more_ring, words, high_words, out_ring, more_out, full, empty, out_desc, more_out_desc, parts, scale, zero, x_scale, bias, M, N,
     stripes, groups, per_group, whole, rest, blocks, each, items, group) = given
    RM: gl.constexpr = BN // GROUPS
    HIGH: gl.constexpr = RM // 16
    FIRST: gl.constexpr = x_ring.shape[1]
    MORE: gl.constexpr = BM - FIRST
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, FIRST, 16])
    MMA2: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, MORE or FIRST, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=MMA, k_width=2)
    LEFT2: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=MMA2, k_width=2)
    KIND: gl.constexpr = x_ring.dtype
    PARTS: gl.constexpr = 4 if RM * BM < SHORT else 1  # of a half, between which products and unpacking take turns
    ZERO: gl.constexpr = zero is not None
    n = 0
    acc = gl.zeros((RM, FIRST), gl.float32, MMA)
    more = gl.zeros((RM, MORE), gl.float32, MMA2) if MORE else acc
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile, past, first, last = _piece(item, whole, rest, each, blocks, SPLIT)
        pn, pm, _ = place(tile, N, M, group, BN, BM)
        stripe = pn * (BN // 16) + WHICH * HIGH
        # Scales are loaded two blocks ahead. `place`: the block whose scales are next, or its group; `left`: blocks left in this group.
        place = first // per_group
        left = per_group - first % per_group
        raw = load_scales(scale, zero, stripe, stripes, groups, place, HIGH, BITS, GROUP, CHANNEL, L)
        factors = factors_of(raw, ZERO, BITS, CHANNEL, KIND)
        place, left = _next(place, left, per_group, first + 1 < last)
        raw = load_scales(scale, zero, stripe, stripes, groups, place, HIGH, BITS, GROUP, CHANNEL, L)
        mbarrier.wait(full.index(2 * (n % STAGES)), n // STAGES & 1)
        these = _words(words, high_words, n % STAGES * GROUPS + WHICH, 0, factors, BITS, CHANNEL, L, L2)
        a = ()
        for k in gl.static_range(PARTS):
            a += (left_operand(these, k, PARTS, LEFT, RM, FORMAT, BITS, ZERO, CHANNEL, KIND),)
        for block in range(first, last):  # `a`, the first half of the block, is unpacked
            stage = n % STAGES
            b = ()
            for k in gl.static_range(PARTS):  # a part is unpacked while another is multiplied
                acc, more = _times(a[k], acc, more, x_ring, more_ring, 2 * stage, k, PARTS, True if k else block > first, LEFT2)
                if k == 0:
                    these = _words(words, high_words, stage * GROUPS + WHICH, 1, factors, BITS, CHANNEL, L, L2)
                b += (left_operand(these, k, PARTS, LEFT, RM, FORMAT, BITS, ZERO, CHANNEL, KIND),)
            place, left = _next(place, left, per_group, block + 2 < last)
            later = load_scales(scale, zero, stripe, stripes, groups, place, HIGH, BITS, GROUP, CHANNEL, L)
            mbarrier.wait(full.index(2 * stage + 1), n // STAGES & 1)
            factors = factors_of(raw, ZERO, BITS, CHANNEL, KIND)
            raw = later
            n += 1
            # After the last block what lies there is unpacked. Parts are short: their words are loaded before the products of the first.
            if PARTS > 1:
                mbarrier.wait(full.index(2 * (n % STAGES)), n // STAGES & 1, pred=block + 1 < last)
                these = _words(words, high_words, n % STAGES * GROUPS + WHICH, 0, factors, BITS, CHANNEL, L, L2)
            acc, more = _times(b[0], acc, more, x_ring, more_ring, 2 * stage + 1, 0, PARTS, True, LEFT2)
            acc, more, a = _wait(acc, more, a, 1, MORE)
            mbarrier.arrive(empty.index(2 * stage), count=1)
            if PARTS == 1:
                mbarrier.wait(full.index(2 * (n % STAGES)), n // STAGES & 1, pred=block + 1 < last)
                these = _words(words, high_words, n % STAGES * GROUPS + WHICH, 0, factors, BITS, CHANNEL, L, L2)
            a = (left_operand(these, 0, PARTS, LEFT, RM, FORMAT, BITS, ZERO, CHANNEL, KIND),)
            for k in gl.static_range(1, PARTS):
                acc, more = _times(b[k], acc, more, x_ring, more_ring, 2 * stage + 1, k, PARTS, True, LEFT2)
                a += (left_operand(these, k, PARTS, LEFT, RM, FORMAT, BITS, ZERO, CHANNEL, KIND),)
            mbarrier.wait(full.index(2 * stage + 1), (n - 1) // STAGES & 1)  # complete: a branch, past which ptxas moves no unpacking
            acc, more, b = _wait(acc, more, b, 0, MORE)
            mbarrier.arrive(empty.index(2 * stage + 1), count=1)
        row, token = pn * BN + WHICH * RM, pm * BM
        if SPLIT > 1 and item >= whole:
            to = parts + past * (BM * BN) + WHICH * RM
            _keep(acc, to, BN)
            if MORE:
                _keep(more, to + FIRST * BN, BN)
        else:
            tma.store_wait(0)
            _store(acc, token, row, out_ring.index(WHICH), out_desc, scale, x_scale, bias, M, N, CHANNEL)
            if MORE:
                _store(more, token + FIRST, row, more_out.index(WHICH), more_out_desc, scale, x_scale, bias, M, N, CHANNEL)
    tma.store_wait(0)
    if SPLIT > 1 and WHICH == 0:
        gdc_launch_dependents()  # the reduction of split-K: its blocks start while the last tiles are computed, and wait


@gluon.jit(do_not_specialize=("M", "N", "stripes", "groups", "per_group", "whole", "rest", "blocks", "each", "items", "group"))
def _product(x_desc, more_desc, codes_desc, high_desc, out_desc, more_out_desc, parts, scale, zero, x_scale, bias, M, N, stripes, groups,
             per_group, whole, rest, blocks, each, items, group, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
             GROUPS: gl.constexpr, SPLIT: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
             CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr):
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES] + x_desc.block_type.shape, x_desc.layout)
    out_ring = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_type.shape, out_desc.layout)
    if more_desc is None:
        more_ring: gl.constexpr = None
        more_out: gl.constexpr = None
    else:
        more_ring = gl.allocate_shared_memory(more_desc.dtype, [2 * STAGES] + more_desc.block_type.shape, more_desc.layout)
        more_out = gl.allocate_shared_memory(more_out_desc.dtype, [GROUPS] + more_out_desc.block_type.shape, more_out_desc.layout)
    # a slot for each group's rows of each stage
    codes_ring = gl.allocate_shared_memory(codes_desc.dtype, [STAGES * GROUPS] + codes_desc.block_type.shape, codes_desc.layout)
    WORDS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    STRIPES: gl.constexpr = BN // GROUPS // 16
    words = codes_ring._reinterpret(gl.int32, [STAGES * GROUPS, STRIPES, codes_desc.block_type.shape[2] // 4, 32, 4], WORDS)
    if high_desc is None:
        high_ring: gl.constexpr = None
        high_words: gl.constexpr = None
    else:
        high_ring = gl.allocate_shared_memory(high_desc.dtype, [STAGES * GROUPS] + high_desc.block_type.shape, high_desc.layout)
        high_words = high_ring._reinterpret(gl.int32, [STAGES * GROUPS, STRIPES, 1, 32, 4], WORDS)
    full = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    given = (x_ring, more_ring, words, high_words, out_ring, more_out, full, empty, out_desc, more_out_desc, parts, scale, zero, x_scale,
             bias, M, N, stripes, groups, per_group, whole, rest, blocks, each, items, group)
    load = (x_desc, more_desc, codes_desc, high_desc, x_ring, more_ring, codes_ring, high_ring, full, empty, M, N, whole, rest, blocks, each,
            items, group)
    if GROUPS == 2:
        gl.warp_specialize([
            (_consume, (0, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (1, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_load, (load, BM, BN, STAGES, GROUPS, SPLIT)),
        ], [4, 1], [232, 40])
    elif GROUPS == 3:
        gl.warp_specialize([
            (_consume, (0, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (1, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (2, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_load, (load, BM, BN, STAGES, GROUPS, SPLIT)),
        ], [4, 4, 1], [152, 152, 40])
    else:
        gl.warp_specialize([
            (_consume, (0, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (1, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (2, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (3, given, BM, BN, STAGES, GROUPS, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_load, (load, BM, BN, STAGES, GROUPS, SPLIT)),
        ], [4, 4, 4, 1], [112, 112, 112, 40])


@triton.jit(do_not_specialize=("M", "eights", "whole", "rest", "group"))
def _add_parts(
    parts, scale, x_scale, bias, out, M, eights, whole, rest, group, BM: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr
):  # type: ignore[no-untyped-def]
    """The reduction of split-K, in the order of K; then scales of rows, and the bias. eights: N / 8."""
    if PDL:
        gdc_wait()
    N = eights * 8
    pn, pm, _ = gemm_epilogue.place(whole + tl.program_id(0), N, M, group, BN, BM)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = parts + tl.program_id(0) * (BM * BN) + at
    sums = tl.load(mine)
    for piece in tl.static_range(1, SPLIT):
        sums += tl.load(mine + piece * rest * (BM * BN))
    row, column = pm * BM + at // BN, pn * BN + at % BN
    there = (row < M) & (column < N)
    if scale is not None:
        sums *= float_of(tl.load(scale + column, there, other=0))
    if x_scale is not None:
        sums *= tl.load(x_scale + row, there, other=0)
    if bias is not None:
        sums += tl.load(bias + column, there, other=0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * N + column, sums.to(out.dtype.element_ty), there)


def choose(p: Problem) -> Config:
    return ranked(p)[0][1]


def for_any_rows(p: Problem) -> Config:
    """One chain along all of K, whatever the tile."""
    return next(config for _, config in ranked(p) if config.SPLIT == 1)


def configs(p: Problem) -> list[Config]:
    return [config for _, config in ranked(p)]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    _, rest, _, count = pieces(config, p)
    return {"parts": Meta((count, rest, config.BM, config.BN), "f32")} if count > 1 else {}


def launches(p: Problem, config: Config) -> list[Launch]:
    m, n, k = sizes(p)
    x, codes, out = p["x"], p["codes"], p["out"]
    stripes, blocks, width = codes.shape
    bits, bn, bm, rows = bits_of(p), config.BN, config.BM, config.BN // config.GROUPS
    first = 1 << bm.bit_length() - 1  # rows of x that one instruction multiplies; what is more is multiplied by a second
    group, per_group = grouping(p)  # of groups of fewer columns a place is a block
    plain = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=4)

    def plane(b: int) -> Descriptor:
        return Descriptor(
            "codes", (rows // 16, 1, 2 * b, 128), plain, shape=(stripes, blocks, 2 * bits, 128), strides=(blocks * width, width, 128, 1)
        )

    def tile(name: str, of: Meta, high: int, wide: int) -> Descriptor | None:
        return Descriptor(name, (high, wide), gl.NVMMASharedLayout.get_default_for([high, wide], TYPES[of.dtype])) if high else None

    whole, rest, each, count = pieces(config, p)
    items, bias = whole + rest * count, "bias" if p.get("bias") is not None else None
    args = {
        "x_desc": tile("x", x, first, 64), "more_desc": tile("x", x, bm - first, 64),
        "codes_desc": plane(4 if bits == 6 else bits), "high_desc": plane(2) if bits == 6 else None,
        "out_desc": tile("out", out, first, rows), "more_out_desc": tile("out", out, bm - first, rows),
        "parts": "parts" if count > 1 else None, "scale": "scale", "zero": "zero" if p.get("zero") is not None else None,
        "x_scale": "x_scale" if p.get("x_scale") is not None else None, "bias": bias, "M": m, "N": n,
        "stripes": stripes, "groups": p["scale"].shape[1], "per_group": per_group, "whole": whole, "rest": max(rest, 1), "blocks": blocks,
        "each": each, "items": items, "group": config.GROUP, "BM": bm, "BN": bn, "STAGES": config.STAGES, "GROUPS": config.GROUPS,
        "SPLIT": min(count, 2), "FORMAT": FORMATS.index(str(p.option("format"))), "BITS": bits, "GROUP": group,
        "CHANNEL": int(p.option("group")) == k, "L": words_layout(rows // 16, *plane_shape(bits)), "L2": words_layout(rows // 16, 1, 2),
    }
    made = [Launch(kernel=_product, grid=(min(items, p.device.sms),), args=args, warps=4)]
    if count > 1:
        shared = {
            "parts": "parts", "scale": "scale" if args["CHANNEL"] else None, "x_scale": args["x_scale"], "bias": bias, "out": "out", "M": m,
            "eights": n // 8, "whole": whole, "rest": rest, "group": config.GROUP, "BM": bm, "BN": bn, "SPLIT": count, "BLOCK": 1024,
            "PDL": p.device.pdl,
        }
        made.append(Launch(kernel=_add_parts, grid=(rest, bm * bn // 1024), args=shared, warps=4, pdl=p.device.pdl))
    return made
