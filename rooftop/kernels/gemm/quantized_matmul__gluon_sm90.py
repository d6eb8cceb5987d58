"""out = x Wᵀ + bias with a packed weight on Hopper, for many rows of x. Contract: rooftop/ops/quantized_matmul.py

Persistent and warp-specialised: a block is one producer warp and two or four consumer warp groups. The producer loads x and the codes by
TMA into a ring of stages of 128 columns of K; each half of a stage has two mbarriers, `full` and `empty`. A consumer group has RM rows of
the weight: it reads its codes from shared memory, each lane the 16 bytes that the packing stored for it, unpacks them to the registers of
wgmma's left operand, and multiplies; x is the right operand, in shared memory. So the kernel computes the transposed result, and
transposes it through shared memory. While a group unpacks one half the product of the half before runs, and so do those of the others.

A group's scale, rounded to the dtype of x, is multiplied into the 16-bit weight, as if it were dequantised first; one scale per row is
multiplied into the sums in float32.

Codes are unpacked once for BM rows of x: with 256 that is hidden behind the products. With few rows it is what takes time; four groups
share it. If the tiles of few rows leave multiprocessors idle, several blocks compute a piece of K each (split-K), and a second launch adds
the pieces, in order."""

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
from rooftop.kernels.gemm._lowbit_plan import FORMATS, Config, bits_of, grouping, pieces, ranked, sizes, supports, tiles_of
from rooftop.kernels.gemm._unpack_wgmma import factors_of, left_operand, load_scales, plane_shape, words_layout

__all__ = ["Config", "choose", "configs", "launches", "scratch", "supports"]

DEMANDS = {"has": ["HGMMA", "UTMALDG"], "spills": 0}
place = gluon.jit(gemm_epilogue.place.fn)


@gluon.jit
def _load(x_desc, codes_desc, high_desc, x_ring, codes_ring, high_ring, full, empty, M, N, blocks, each, items, tiles, group,
          BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr):
    """The producer warp."""
    if high_desc is None:
        HIGH_BYTES: gl.constexpr = 0
    else:
        HIGH_BYTES: gl.constexpr = high_desc.block_type.nbytes
    X_BYTES: gl.constexpr = x_desc.block_type.nbytes
    n = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        pn, pm, _ = place(item % tiles, N, M, group, BN, BM)
        first = item // tiles * each
        for block in range(first, gl.minimum(first + each, blocks)):
            stage = n % STAGES
            free = (n // STAGES & 1) ^ 1
            left, right = full.index(2 * stage), full.index(2 * stage + 1)
            mbarrier.wait(empty.index(2 * stage), free)
            mbarrier.expect(left, X_BYTES + codes_desc.block_type.nbytes + HIGH_BYTES)
            tma.async_copy_global_to_shared(codes_desc, [pn * (BN // 16), block, 0, 0], left, codes_ring.index(stage))
            if high_desc is not None:
                tma.async_copy_global_to_shared(high_desc, [pn * (BN // 16), block, 8, 0], left, high_ring.index(stage))
            tma.async_copy_global_to_shared(x_desc, [pm * BM, block * 128], left, x_ring.index(2 * stage))
            mbarrier.wait(empty.index(2 * stage + 1), free)
            mbarrier.expect(right, X_BYTES)
            tma.async_copy_global_to_shared(x_desc, [pm * BM, block * 128 + 64], right, x_ring.index(2 * stage + 1))
            n += 1


@gluon.jit
def _next(place, left, per_group, more):
    """The next block's place among the scales and the blocks left in its group; the same where there is none."""
    ends = more & (left == 1)
    return gl.where(ends, place + 1, place), gl.where(ends, per_group, gl.where(more, left - 1, left))


@gluon.jit
def _half(HALF: gl.constexpr, stage, words, high_words, factors, WHICH: gl.constexpr, MMA: gl.constexpr, RM: gl.constexpr,
          FORMAT: gl.constexpr, BITS: gl.constexpr, ZERO: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr,
          KIND: gl.constexpr):
    """A group's rows of the weight by 64 columns of a stage, in the registers of the left operand."""
    HIGH: gl.constexpr = RM // 16
    mine = words.index(stage).slice(WHICH * HIGH, HIGH, dim=0)
    high = None if high_words is None else high_words.index(stage).slice(WHICH * HIGH, HIGH, dim=0)
    return left_operand(mine, high, HALF, factors, MMA, RM, FORMAT, BITS, ZERO, CHANNEL, L, L2, KIND)


@gluon.jit
def _consume(WHICH: gl.constexpr, x_ring, words, high_words, out_ring, full, empty, out_desc, parts, scale, zero, x_scale, bias, M, N,
             stripes, groups, per_group, blocks, each, items, tiles, group, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
             GROUPS: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr,
             L2: gl.constexpr):
    """One consumer warp group: rows from WHICH · RM on of each tile of the weight. `parts`: for split-K, the accumulators [parts, M, N]."""
    RM: gl.constexpr = BN // GROUPS
    HIGH: gl.constexpr = RM // 16
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    KIND: gl.constexpr = x_ring.dtype
    ZERO: gl.constexpr = zero is not None
    n = 0
    acc = gl.zeros((RM, BM), gl.float32, MMA)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        pn, pm, _ = place(item % tiles, N, M, group, BN, BM)
        stripe = pn * (BN // 16) + WHICH * HIGH
        first = item // tiles * each
        last = gl.minimum(first + each, blocks)
        # Scales are loaded two blocks ahead. `place`: the block whose scales are next, or its group; `left`: blocks left in this group.
        place = first // per_group
        left = per_group - first % per_group
        factors = factors_of(load_scales(scale, zero, stripe, stripes, groups, place, HIGH, BITS, GROUP, CHANNEL, L), ZERO, BITS, CHANNEL, KIND)
        place, left = _next(place, left, per_group, first + 1 < last)
        raw = load_scales(scale, zero, stripe, stripes, groups, place, HIGH, BITS, GROUP, CHANNEL, L)
        mbarrier.wait(full.index(2 * (n % STAGES)), n // STAGES & 1)
        a = _half(0, n % STAGES, words, high_words, factors, WHICH, MMA, RM, FORMAT, BITS, ZERO, CHANNEL, L, L2, KIND)
        for block in range(first, last):  # `a`, the first half of the block, is unpacked
            stage = n % STAGES
            acc = warpgroup_mma(a, x_ring.index(2 * stage).permute((1, 0)), acc, use_acc=block > first, is_async=True)
            mbarrier.wait(full.index(2 * stage + 1), n // STAGES & 1)
            place, left = _next(place, left, per_group, block + 2 < last)
            later = load_scales(scale, zero, stripe, stripes, groups, place, HIGH, BITS, GROUP, CHANNEL, L)
            b = _half(1, stage, words, high_words, factors, WHICH, MMA, RM, FORMAT, BITS, ZERO, CHANNEL, L, L2, KIND)
            acc = warpgroup_mma(b, x_ring.index(2 * stage + 1).permute((1, 0)), acc, is_async=True)
            acc, a = warpgroup_mma_wait(num_outstanding=1, deps=(acc, a))
            mbarrier.arrive(empty.index(2 * stage), count=1)
            factors = factors_of(raw, ZERO, BITS, CHANNEL, KIND)
            raw = later
            n += 1
            # While the second half's product runs, the first half of the next block is unpacked; after the last one, what lies there.
            mbarrier.wait(full.index(2 * (n % STAGES)), n // STAGES & 1, pred=block + 1 < last)
            a = _half(0, n % STAGES, words, high_words, factors, WHICH, MMA, RM, FORMAT, BITS, ZERO, CHANNEL, L, L2, KIND)
            mbarrier.wait(full.index(2 * stage + 1), (n - 1) // STAGES & 1)  # complete: a branch, past which ptxas moves no unpacking
            acc, b = warpgroup_mma_wait(num_outstanding=0, deps=(acc, b))
            mbarrier.arrive(empty.index(2 * stage + 1), count=1)
        sums = acc
        rows = pn * BN + WHICH * RM + gl.arange(0, RM, gl.SliceLayout(1, MMA))
        if CHANNEL:
            of_row = gl.load(scale + rows, mask=rows < N, other=0)
            if scale.dtype.element_ty == gl.uint8:
                of_row = (of_row.to(gl.int32) << 23).to(gl.float32, bitcast=True)
            sums = sums * of_row.to(gl.float32)[:, None]
        tokens = pm * BM + gl.arange(0, BM, gl.SliceLayout(0, MMA))
        if x_scale is not None:
            sums *= gl.load(x_scale + tokens, mask=tokens < M, other=0.0)[None, :]
        if parts is not None:  # eight lanes write 32 neighbouring bytes
            to = parts + (item // tiles).to(gl.int64) * M * N + (tokens.to(gl.int64) * N)[None, :] + rows[:, None]
            gl.store(to, sums, mask=(rows < N)[:, None] & (tokens < M)[None, :])
        else:
            if bias is not None:
                sums += gl.load(bias + rows, mask=rows < N, other=0.0).to(gl.float32)[:, None]
            out = out_ring.index(WHICH)
            tma.store_wait(0)
            out.permute((1, 0)).store(sums.to(KIND))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_desc, [pm * BM, pn * BN + WHICH * RM], out)
    tma.store_wait(0)
    if parts is not None and WHICH == 0:
        gdc_launch_dependents()  # the reduction of split-K: its blocks start while the last tiles are computed, and wait


@gluon.jit(do_not_specialize=("M", "N", "stripes", "groups", "per_group", "blocks", "each", "items", "tiles", "group"))
def _product(x_desc, codes_desc, high_desc, out_desc, parts, scale, zero, x_scale, bias, M, N, stripes, groups, per_group, blocks, each,
             items, tiles, group, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, FORMAT: gl.constexpr,
             BITS: gl.constexpr, GROUP: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr):
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES] + x_desc.block_type.shape, x_desc.layout)
    codes_ring = gl.allocate_shared_memory(codes_desc.dtype, [STAGES] + codes_desc.block_type.shape, codes_desc.layout)
    WORDS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    words = codes_ring._reinterpret(gl.int32, [STAGES, BN // 16, codes_desc.block_type.shape[2] // 4, 32, 4], WORDS)
    if high_desc is None:
        high_ring: gl.constexpr = None
        high_words: gl.constexpr = None
    else:
        high_ring = gl.allocate_shared_memory(high_desc.dtype, [STAGES] + high_desc.block_type.shape, high_desc.layout)
        high_words = high_ring._reinterpret(gl.int32, [STAGES, BN // 16, 1, 32, 4], WORDS)
    out_ring = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_type.shape, out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    if GROUPS == 2:
        gl.warp_specialize([
            (_consume, (0, x_ring, words, high_words, out_ring, full, empty, out_desc, parts, scale, zero, x_scale, bias, M, N, stripes,
                       groups, per_group, blocks, each, items, tiles, group, BM, BN, STAGES, GROUPS, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (1, x_ring, words, high_words, out_ring, full, empty, out_desc, parts, scale, zero, x_scale, bias, M, N, stripes,
                       groups, per_group, blocks, each, items, tiles, group, BM, BN, STAGES, GROUPS, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_load, (x_desc, codes_desc, high_desc, x_ring, codes_ring, high_ring, full, empty, M, N, blocks, each, items, tiles, group,
                     BM, BN, STAGES)),
        ], [4, 1], [232, 40])
    else:
        gl.warp_specialize([
            (_consume, (0, x_ring, words, high_words, out_ring, full, empty, out_desc, parts, scale, zero, x_scale, bias, M, N, stripes,
                       groups, per_group, blocks, each, items, tiles, group, BM, BN, STAGES, GROUPS, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (1, x_ring, words, high_words, out_ring, full, empty, out_desc, parts, scale, zero, x_scale, bias, M, N, stripes,
                       groups, per_group, blocks, each, items, tiles, group, BM, BN, STAGES, GROUPS, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (2, x_ring, words, high_words, out_ring, full, empty, out_desc, parts, scale, zero, x_scale, bias, M, N, stripes,
                       groups, per_group, blocks, each, items, tiles, group, BM, BN, STAGES, GROUPS, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_consume, (3, x_ring, words, high_words, out_ring, full, empty, out_desc, parts, scale, zero, x_scale, bias, M, N, stripes,
                       groups, per_group, blocks, each, items, tiles, group, BM, BN, STAGES, GROUPS, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
            (_load, (x_desc, codes_desc, high_desc, x_ring, codes_ring, high_ring, full, empty, M, N, blocks, each, items, tiles, group,
                     BM, BN, STAGES)),
        ], [4, 4, 4, 1], [112, 112, 112, 40])


@triton.jit(do_not_specialize=("count", "N"))
def _add_parts(parts, bias, out, count, N, SPLIT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The reduction of split-K, in the order of K, and the bias."""
    if PDL:
        gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    sums = tl.load(parts + at, there, other=0)
    for piece in tl.static_range(1, SPLIT):
        sums += tl.load(parts + (tl.full((), piece, tl.int64) * count + at), there, other=0)
    if bias is not None:
        sums += tl.load(bias + at % N, there, other=0).to(tl.float32)
    tl.store(out + at, sums.to(out.dtype.element_ty), there)


def choose(p: Problem) -> Config:
    return ranked(p)[0][1]


def for_any_rows(p: Problem) -> Config:
    """One chain along all of K, whatever the tile."""
    return next(config for _, config in ranked(p) if config.SPLIT == 1)


def configs(p: Problem) -> list[Config]:
    return [config for _, config in ranked(p)]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    m, n, _ = sizes(p)
    count = pieces(config, p)[1]
    return {"parts": Meta((count, m, n), "f32")} if count > 1 else {}


def launches(p: Problem, config: Config) -> list[Launch]:
    m, n, k = sizes(p)
    x, codes, out = p["x"], p["codes"], p["out"]
    stripes, blocks, width = codes.shape
    bits, bn, bm, rows = bits_of(p), config.BN, config.BM, config.BN // config.GROUPS
    group, per_group = grouping(p)  # of groups of fewer columns a place is a block
    plain = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=4)

    def plane(b: int) -> Descriptor:
        return Descriptor(
            "codes", (bn // 16, 1, 2 * b, 128), plain, shape=(stripes, blocks, 2 * bits, 128), strides=(blocks * width, width, 128, 1)
        )

    tiles, (each, count) = tiles_of(config, p), pieces(config, p)
    bias = "bias" if p.get("bias") is not None else None
    args = {
        "x_desc": Descriptor("x", (bm, 64), gl.NVMMASharedLayout.get_default_for([bm, 64], TYPES[x.dtype])),
        "codes_desc": plane(4 if bits == 6 else bits), "high_desc": plane(2) if bits == 6 else None,
        "out_desc": Descriptor("out", (bm, rows), gl.NVMMASharedLayout.get_default_for([bm, rows], TYPES[out.dtype])),
        "parts": "parts" if count > 1 else None, "scale": "scale", "zero": "zero" if p.get("zero") is not None else None,
        "x_scale": "x_scale" if p.get("x_scale") is not None else None, "bias": bias, "M": m, "N": n,
        "stripes": stripes, "groups": p["scale"].shape[1], "per_group": per_group, "blocks": blocks, "each": each, "items": tiles * count,
        "tiles": tiles, "group": config.GROUP, "BM": bm, "BN": bn,
        "STAGES": config.STAGES, "GROUPS": config.GROUPS, "FORMAT": FORMATS.index(str(p.option("format"))), "BITS": bits, "GROUP": group,
        "CHANNEL": int(p.option("group")) == k, "L": words_layout(rows // 16, *plane_shape(bits)), "L2": words_layout(rows // 16, 1, 2),
    }
    made = [Launch(kernel=_product, grid=(min(tiles * count, p.device.sms),), args=args, warps=4)]
    if count > 1:
        shared = {
            "parts": "parts", "bias": bias, "out": "out", "count": m * n, "N": n, "SPLIT": count, "BLOCK": 1024, "PDL": p.device.pdl
        }
        made.append(Launch(kernel=_add_parts, grid=(-(-m * n // 1024),), args=shared, warps=4, pdl=p.device.pdl))
    return made
