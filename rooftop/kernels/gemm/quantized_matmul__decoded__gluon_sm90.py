"""out = x Wᵀ + bias with a packed weight on Hopper, for many rows of x: the product of matmul__gluon_sm90 whose right operand is decoded on
the way. Contract: rooftop/ops/quantized_matmul.py

Persistent and warp-specialised: two groups of four producing warps take turns. One starts TMA's copy of 64 columns of x, loads the codes of
as many columns of the weight to registers, a turn ahead, unpacks them, and writes the 16-bit weight to the same stage of the ring; two
consumer warp groups multiply the two with wgmma, as if both had come by TMA (rooftop/kernels/gemm/_product_gluon.py). A code is unpacked
once for the 128 or 256 rows of x of a tile, by warps that the tensor cores do not wait for: a slice takes them fewer cycles than its two
products.

A group's scale, rounded to the dtype of x, is multiplied into the 16-bit weight, as if it were dequantised first; one scale per row is
multiplied into the sums in float32. How the tiles are divided is decided by the model of matmul (rooftop/kernels/gemm/_model.py)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels._device.gluon_tiles import TYPES
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm._lowbit_plan import FORMATS, bits_of, grouping, refused_by_tma, sizes
from rooftop.kernels.gemm._model import Config
from rooftop.kernels.gemm._product_gluon import consume, item, share
from rooftop.kernels.gemm._product_launches import Product, explanation, pitch_of
from rooftop.kernels.gemm._unpack_wgmma import half_block, half_scales, half_words, plane_shape, words_layout

__all__ = ["Config", "choose", "configs", "explains", "for_any_rows", "launches", "scratch", "supports"]

DEMANDS = {"has": ["HGMMA", "UTMALDG"], "spills": 0}
TRIED = 12
place = gluon.jit(gemm_epilogue.place.fn)


@gluon.jit
def _bring(WHICH: gl.constexpr, x_desc, codes, scale, zero, x_ring, w_ring, full, empty, M, N, K, whole, streamed, group, stripes, groups, blocks, per_group,
            BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, STREAM: gl.constexpr, SPLIT: gl.constexpr, FORMAT: gl.constexpr,
            BITS: gl.constexpr, GROUP: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr):
    """Producing warps WHICH of two: every second slice of x by TMA, and of the weight, decoded."""
    RM: gl.constexpr = BM // 2
    HIGH: gl.constexpr = BN // 16
    KIND: gl.constexpr = w_ring.dtype
    slices = gl.cdiv(K, 64)
    turns, begin, end, pieces = share(whole, streamed, slices, SPLIT)
    items = turns + pieces if STREAM else turns
    n = 0
    for i in range(items):
        tile, first, last = item(i, turns, begin, end, whole, streamed, slices, STREAM, SPLIT)
        pm, pn, _ = place(tile, M, N, group, BM, BN)
        stripe = pn * HIGH
        begin_at = first + ((WHICH - n) & 1)
        w = half_words(codes, stripe, stripes, blocks, begin_at, 0, BITS, L)
        v = half_words(codes, stripe, stripes, blocks, begin_at, 1, BITS, L2) if BITS == 6 else w
        s = half_scales(scale, zero, stripe, stripes, groups, begin_at // 2, begin_at % 2, per_group, HIGH, BITS, GROUP, CHANNEL, L, KIND)
        for k in range(begin_at, last, 2):
            after = gl.minimum(k + 2, last - 1)
            next_w = half_words(codes, stripe, stripes, blocks, after, 0, BITS, L)
            next_v = half_words(codes, stripe, stripes, blocks, after, 1, BITS, L2) if BITS == 6 else next_w
            next_s = half_scales(scale, zero, stripe, stripes, groups, after // 2, after % 2, per_group, HIGH, BITS, GROUP, CHANNEL, L, KIND)
            slot = n + k - first
            stage = slot % STAGES
            mbarrier.wait(empty.index(stage), (slot // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), 2 * x_desc.block_type.nbytes)
            for g in gl.static_range(2):
                tma.async_copy_global_to_shared(x_desc, [pm * BM + g * RM, k * 64], full.index(stage), x_ring.index(stage * 2 + g))
            factors = (s[0], s[1], s[0], s[1], s[2], s[3], s[2], s[3])
            w_ring.index(stage).store(half_block(w, v, 0, factors, BN, FORMAT, BITS, zero is not None, CHANNEL, L, KIND))
            fence_async_shared()
            mbarrier.arrive(full.index(stage), count=1)
            w, v, s = next_w, next_v, next_s
        n += last - first
    if STREAM or SPLIT > 1:
        gdc_launch_dependents()  # the reduction of the parts: its blocks start while the last tiles are computed, and wait


@gluon.jit(do_not_specialize=("M", "K", "whole", "streamed", "group", "stripes", "groups", "blocks"))
def _product(x_desc, out_desc, codes, scale, zero, parts, M, N, K, whole, streamed, group, stripes, groups, blocks, per_group, scale_a,
             scale_b, bias, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, STREAM: gl.constexpr, SPLIT: gl.constexpr,
             EN: gl.constexpr, RAW: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, CHANNEL: gl.constexpr,
             L: gl.constexpr, L2: gl.constexpr, W: gl.constexpr):
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES] + x_desc.block_type.shape, x_desc.layout)
    w_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BN, 64], W)
    out_ring = gl.allocate_shared_memory(out_desc.dtype, [4] + out_desc.block_type.shape, out_desc.layout)
    VECTORS: gl.constexpr = (0 if scale_b is None else 1) + (0 if bias is None else 1)
    if VECTORS == 0:
        vectors: gl.constexpr = None
    else:
        vectors = gl.allocate_shared_memory(gl.float32, [VECTORS * 2, BN], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=2)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (consume, (0, x_ring, w_ring, out_ring, vectors, full, empty, out_desc, None, 0, 0, parts, M, N, K, whole, streamed, group, 1.0,
                   0.0, scale_a, scale_b, None, 0, 0, bias, None, 0, 0, None, 0, 0, BM, BN, 64, 2, STAGES, False, True, False, STREAM,
                   SPLIT, False, RAW, False, 0, 0, True, EN)),
        (consume, (1, x_ring, w_ring, out_ring, vectors, full, empty, out_desc, None, 0, 0, parts, M, N, K, whole, streamed, group, 1.0,
                   0.0, scale_a, scale_b, None, 0, 0, bias, None, 0, 0, None, 0, 0, BM, BN, 64, 2, STAGES, False, True, False, STREAM,
                   SPLIT, False, RAW, False, 0, 0, True, EN)),
        (_bring, (0, x_desc, codes, scale, zero, x_ring, w_ring, full, empty, M, N, K, whole, streamed, group, stripes, groups, blocks,
                  per_group, BM, BN, STAGES, STREAM, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
        (_bring, (1, x_desc, codes, scale, zero, x_ring, w_ring, full, empty, M, N, K, whole, streamed, group, stripes, groups, blocks,
                  per_group, BM, BN, STAGES, STREAM, SPLIT, FORMAT, BITS, GROUP, CHANNEL, L, L2)),
    ], [4, 4, 4], [168, 88, 88])


def as_product(p: Problem) -> Product:
    """The product as if the weight lay in memory in 16 bits."""
    _, n, k = sizes(p)
    metas: dict[str, Meta | None] = {"x": p["x"], "weight": Meta((k, n), p["x"].dtype, (1, pitch_of(k, 2))), "out": p["out"]}
    metas |= {name: p.get(name) for name in ("bias", "x_scale", "scale")}
    return Product(
        metas, p.device.sms, a="x", b="weight", scale_a="x_scale" if p.get("x_scale") is not None else "",
        scale_b="scale" if int(p.option("group")) == k else "",
    )


def supports(p: Problem) -> str | None:
    if reason := refused_by_tma(p):
        return reason
    if int(p.option("group")) == p["x"].shape[1] and p["scale"].dtype == "u8":
        return "scales of rows are floats"
    return None


def configs(p: Problem) -> list[Config]:
    return [c for c in as_product(p).ranked() if _possible(c)][:TRIED]


def _possible(config: Config) -> bool:
    """Sixteen warps have 128 registers a thread to begin with, fewer than wgmma's instruction for 256 columns takes."""
    return config.BK == 64 and config.GROUPS == 2 and not config.SWAP and config.BN <= 128


def choose(p: Problem) -> Config:
    return configs(p)[0]


def for_any_rows(p: Problem) -> Config:
    """One chain along all of K, whatever the tile."""
    return next(c for c in as_product(p).ranked() if _possible(c) and not c.STREAM and c.SPLIT == 1)


def seconds(p: Problem) -> float:
    """Predicted time."""
    return as_product(p).seconds(choose(p))


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return _product_launches.scratch(as_product(p), config)


def launches(p: Problem, config: Config) -> list[Launch]:
    product, bits, (group, per_group) = as_product(p), bits_of(p), grouping(p)
    made = _product_launches.launches(product, config, p.device.pdl)
    given, (stripes, blocks) = made[0].args, p["codes"].shape[:2]
    same = ("out_desc", "parts", "M", "N", "K", "whole", "streamed", "group", "scale_a", "scale_b", "bias", "BM", "BN", "STAGES", "STREAM",
            "SPLIT", "EN")
    args = {
        **{name: given[name] for name in same}, "x_desc": given["a_desc"], "codes": "codes", "scale": "scale",
        "zero": "zero" if p.get("zero") is not None else None, "stripes": stripes, "groups": p["scale"].shape[1], "blocks": blocks,
        "per_group": per_group, "RAW": not any(given[name] for name in ("scale_a", "scale_b", "bias")),
        "FORMAT": FORMATS.index(str(p.option("format"))), "BITS": bits, "GROUP": group, "CHANNEL": product.scale_b != "",
        "L": words_layout(config.BN // 16, *plane_shape(bits)), "L2": words_layout(config.BN // 16, 1, 2),
        "W": gl.NVMMASharedLayout.get_default_for([config.BN, 64], TYPES[p["x"].dtype]),
    }
    return [Launch(kernel=_product, grid=made[0].grid, args=args, warps=4), *made[1:]]


def explains(p: Problem, config: Config) -> str:
    return f"decoded to 16 bits in shared memory by four warps; {explanation(as_product(p), config)}"
