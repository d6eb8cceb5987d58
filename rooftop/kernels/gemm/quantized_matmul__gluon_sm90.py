"""out = x Wᵀ + bias with a packed weight on Hopper, for many rows of x. Contract: rooftop/ops/quantized_matmul.py

A persistent block is one producer warp and two consumer warp groups. The producer brings, for 128 columns of K at a time, x and the codes by TMA into a ring of
stages with two mbarriers each, `full` and `empty`. A consumer group owns RM rows of the weight: it reads its codes from shared memory, each lane the 16 bytes
that the packing put there for it, unpacks them to the registers of wgmma's left operand, and multiplies; x is the right operand, in shared memory. So the
kernel makes the transposed result, and transposes it on its way through shared memory. While a group unpacks the second half of 128 columns the product of
the first half runs, and the other group's products run beside both.

A group's scale, rounded to the dtype of x, is multiplied into the 16-bit weight, as one who dequantises first would have it; one scale a row is multiplied to
the sums in float32.

On an H200, int4 g128 at 4096 x 8192 x 8192: 0.93 of cuBLAS in bf16; mxfp4 0.66. Unpacking takes 20 instructions for a product of 16 columns that lasts 64
clocks or more a group; 6 bits take 40, and two groups' worth of that no longer hides at 128 x 128."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftop.core.spec import Descriptor, Launch, Problem
from rooftop.core.tensor_maps import not_copied
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels._device.gemm_launch import TYPES
from rooftop.kernels._device.gemm_model import BARRIERS, EPILOGUE, FMAS, FROM_L2, SHARED, START
from rooftop.kernels._device.lowbit import FORMATS, grouping, sizes
from rooftop.kernels._device.lowbit_wgmma import left_operand, pair_scales, plane_shape, words_layout
from rooftop.ops.quantized_matmul import BITS

DEMANDS = {"has": ["HGMMA", "UTMALDG", "UTMASTG"], "spills": 0}
place = gluon.jit(gemm_epilogue.place.fn)


@gluon.jit
def _load(x_desc, codes_desc, high_desc, x_ring, codes_ring, high_ring, full, empty, M, N, K, tiles, group, BM: gl.constexpr, BN: gl.constexpr,
          STAGES: gl.constexpr):  # fmt: skip
    """The producer warp."""
    if high_desc is None:
        HIGH_BYTES: gl.constexpr = 0
    else:
        HIGH_BYTES: gl.constexpr = high_desc.block_type.nbytes
    BYTES: gl.constexpr = 2 * x_desc.block_type.nbytes + codes_desc.block_type.nbytes + HIGH_BYTES
    n = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        pn, pm, _ = place(tile, N, M, group, BN, BM)
        for block in range(gl.cdiv(K, 128)):
            stage = n % STAGES
            mbarrier.wait(empty.index(stage), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            tma.async_copy_global_to_shared(codes_desc, [pn * (BN // 16), block, 0, 0], full.index(stage), codes_ring.index(stage))
            if high_desc is not None:
                tma.async_copy_global_to_shared(high_desc, [pn * (BN // 16), block, 8, 0], full.index(stage), high_ring.index(stage))
            tma.async_copy_global_to_shared(x_desc, [pm * BM, block * 128], full.index(stage), x_ring.index(2 * stage))
            tma.async_copy_global_to_shared(x_desc, [pm * BM, block * 128 + 64], full.index(stage), x_ring.index(2 * stage + 1))
            n += 1


@gluon.jit
def _consume(WHICH: gl.constexpr, x_ring, words, high_words, out_ring, full, empty, out_desc, scale, zero, bias, M, N, K, stripes, groups, per_group,
             tiles, group, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
             CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr):  # fmt: skip
    """One consumer warp group: rows WHICH · RM and following of each tile of the weight."""
    RM: gl.constexpr = BN // 2
    HIGH: gl.constexpr = RM // 16
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16])
    KIND: gl.constexpr = x_ring.dtype
    n = 0
    acc = gl.zeros((RM, BM), gl.float32, MMA)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        pn, pm, _ = place(tile, N, M, group, BN, BM)
        stripe = pn * (BN // 16) + WHICH * HIGH
        factors = pair_scales(scale, zero, stripe, stripes, groups, 0, per_group, HIGH, BITS, GROUP, CHANNEL, L, KIND)
        blocks = gl.cdiv(K, 128)
        for block in range(blocks):
            stage = n % STAGES
            following = pair_scales(scale, zero, stripe, stripes, groups, gl.minimum(block + 1, blocks - 1), per_group, HIGH, BITS, GROUP, CHANNEL, L, KIND)
            mbarrier.wait(full.index(stage), n // STAGES & 1)
            mine = words.index(stage).slice(WHICH * HIGH, HIGH, dim=0)
            high = None if high_words is None else high_words.index(stage).slice(WHICH * HIGH, HIGH, dim=0)
            a = left_operand(mine, high, 0, factors, MMA, RM, FORMAT, BITS, zero is not None, CHANNEL, L, L2, KIND)
            acc = warpgroup_mma(a, x_ring.index(2 * stage).permute((1, 0)), acc, use_acc=block > 0, is_async=True)
            b = left_operand(mine, high, 1, factors, MMA, RM, FORMAT, BITS, zero is not None, CHANNEL, L, L2, KIND)
            acc = warpgroup_mma(b, x_ring.index(2 * stage + 1).permute((1, 0)), acc, is_async=True)
            acc, a, b = warpgroup_mma_wait(num_outstanding=0, deps=(acc, a, b))
            fence_async_shared()  # the codes were read by ordinary loads: TMA must not overwrite them before
            mbarrier.arrive(empty.index(stage), count=1)
            factors = following
            n += 1
        sums = acc
        rows = pn * BN + WHICH * RM + gl.arange(0, RM, gl.SliceLayout(1, MMA))
        if CHANNEL:
            of_row = gl.load(scale + rows, mask=rows < N, other=0)
            if scale.dtype.element_ty == gl.uint8:
                of_row = (of_row.to(gl.int32) << 23).to(gl.float32, bitcast=True)
            sums = sums * of_row.to(gl.float32)[:, None]
        if bias is not None:
            sums += gl.load(bias + rows, mask=rows < N, other=0.0).to(gl.float32)[:, None]
        to = out_ring.index(WHICH)
        tma.store_wait(0)
        to.permute((1, 0)).store(sums.to(KIND))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [pm * BM, pn * BN + WHICH * RM], to)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("M", "N", "K", "stripes", "groups", "per_group", "tiles", "group"))
def _product(x_desc, codes_desc, high_desc, out_desc, scale, zero, bias, M, N, K, stripes, groups, per_group, tiles, group, BM: gl.constexpr, BN: gl.constexpr,
             STAGES: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr,
             L2: gl.constexpr):  # fmt: skip
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
    out_ring = gl.allocate_shared_memory(out_desc.dtype, [2] + out_desc.block_type.shape, out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (_consume, (0, x_ring, words, high_words, out_ring, full, empty, out_desc, scale, zero, bias, M, N, K, stripes, groups, per_group, tiles, group, BM, BN,
                    STAGES, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
        (_consume, (1, x_ring, words, high_words, out_ring, full, empty, out_desc, scale, zero, bias, M, N, K, stripes, groups, per_group, tiles, group, BM, BN,
                    STAGES, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
        (_load, (x_desc, codes_desc, high_desc, x_ring, codes_ring, high_ring, full, empty, M, N, K, tiles, group, BM, BN, STAGES)),
    ], [4, 1], [232, 40])  # fmt: skip


@dataclass(frozen=True)
class Config:
    """BN rows of the weight by BM rows of x; STAGES of 128 columns in the ring; GROUP tiles of the weight walked together."""

    BN: int = 256
    BM: int = 128
    STAGES: int = 3
    GROUP: int = 8


def _format(p: Problem) -> str:
    return str(p.option("format"))


def supports(p: Problem) -> str | None:
    m, n, k = sizes(p)
    x, scale, zero, out = p["x"], p["scale"], p.get("zero"), p["out"]
    if m * n * k == 0:
        return "there is nothing to compute"
    if x.dtype not in ("bf16", "f16"):
        return f"takes bf16 and f16; given {x.dtype}"
    if max(m, n, k) >= 2**31 - 512 or scale.numel >= 2**31:
        return f"takes fewer than 2^31 rows, columns and scales; given {m} x {n} x {k}"
    for name, meta in (("x", x), ("codes", p["codes"]), ("out", out)):
        if reason := not_copied(meta, stored=name == "out"):
            return f"TMA does not copy {name}: {reason}"
    if int(p.option("group")) == k:
        if zero is not None:
            return "zero points go with groups here: one scale a row is multiplied to the sums"
        return None
    if zero is not None and zero.dtype != "u8":
        return f"takes whole zero points; given {zero.dtype}"
    if x.dtype == "f16" and scale.dtype != "f16":
        return f"takes scales of groups in f16 with f16, whose range others leave; given {scale.dtype}"
    return None


def _stage(config: Config, bits: int) -> int:
    return config.BM * 256 + config.BN * 16 * bits


def _seconds(config: Config, p: Problem) -> float:
    """Predicted time."""
    m, n, k = sizes(p)
    bits = BITS[_format(p)]
    tiles = -(-m // config.BM) * -(-n // config.BN)
    products = config.BM * config.BN * 128 / FMAS
    unpack = config.BN / 16 * 8 * (24 if bits != 6 and _format(p) != "e2m1" else 40) / 4
    brought = _stage(config, bits) / FROM_L2
    step = max(products, unpack * 1.2, brought) + 150
    each = -(-k // 128) * step + EPILOGUE + config.BM * config.BN * 2 / 64
    return (START + -(-tiles // p.device.sms) * each) / 1.7e9


def configs(p: Problem) -> list[Config]:
    bits = BITS[_format(p)]
    found = []
    for bn, bm in ((256, 128), (128, 128), (256, 64), (128, 64), (128, 32)):
        free = SHARED - BARRIERS - 2 * bn * bm
        stages = min(6, free // _stage(Config(bn, bm), bits))
        side = (p.device.sms * bn * bm) ** 0.5
        crowded = bn == 256 and p.get("zero") is not None and grouping(p)[0] == 32  # its scales and zero points do not fit the registers
        if stages >= 2 and not crowded:
            found.append(Config(bn, bm, stages, max(1, round(side / bn))))
    return sorted(found, key=lambda c: _seconds(c, p))


def choose(p: Problem) -> Config:
    return configs(p)[0]


def launches(p: Problem, config: Config) -> list[Launch]:
    m, n, k = sizes(p)
    x, codes, out = p["x"], p["codes"], p["out"]
    stripes, blocks, width = codes.shape
    bits, bn, bm = BITS[_format(p)], config.BN, config.BM
    group, per_group = grouping(p)
    plain = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=4)

    def plane(b: int) -> Descriptor:
        return Descriptor("codes", (bn // 16, 1, 2 * b, 128), plain, shape=(stripes, blocks, 2 * bits, 128), strides=(blocks * width, width, 128, 1))

    tiles = -(-m // bm) * -(-n // bn)
    args = {
        "x_desc": Descriptor("x", (bm, 64), gl.NVMMASharedLayout.get_default_for([bm, 64], TYPES[x.dtype])), "codes_desc": plane(4 if bits == 6 else bits),
        "high_desc": plane(2) if bits == 6 else None,
        "out_desc": Descriptor("out", (bm, bn // 2), gl.NVMMASharedLayout.get_default_for([bm, bn // 2], TYPES[out.dtype])),
        "scale": "scale", "zero": "zero" if p.get("zero") is not None else None, "bias": "bias" if p.get("bias") is not None else None, "M": m, "N": n, "K": k,
        "stripes": stripes, "groups": p["scale"].shape[1], "per_group": per_group, "tiles": tiles, "group": config.GROUP, "BM": bm, "BN": bn,
        "STAGES": config.STAGES, "FORMAT": FORMATS.index(_format(p)), "BITS": bits, "GROUP": group, "CHANNEL": int(p.option("group")) == k,
        "L": words_layout(bn // 32, *plane_shape(bits)), "L2": words_layout(bn // 32, 1, 2),
    }  # fmt: skip
    return [Launch(kernel=_product, grid=(min(tiles, p.device.sms),), args=args, warps=4)]
