"""out = x Wᵀ + bias with a packed weight on Hopper, for so many rows of x that unpacking the whole weight first costs little. Contract:
rooftop/ops/quantized_matmul.py

A first launch unpacks the weight to 16 bits in scratch memory: it reads the codes and writes 2 N K bytes. The second is the product of
matmul__gluon_sm90.py, at its rate; unpacking inside the product, as quantized_matmul__gluon_sm90.py does, repeats the work for every tile
of rows. A group's scale, rounded to the dtype of x, is multiplied into the 16-bit weight; one scale per row is multiplied into the sums in
float32."""

from __future__ import annotations

from functools import lru_cache

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.kernels._device.gluon_tiles import TYPES
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm._lowbit_plan import FORMATS, bits_of, grouping, sizes, supports, unpacking
from rooftop.kernels.gemm._model import CLOCK, FMAS, Config
from rooftop.kernels.gemm._product_launches import Product
from rooftop.kernels.gemm._unpack_wgmma import left_operand, pair_scales, plane_descriptors, plane_shape, words_layout

__all__ = ["Config", "choose", "configs", "explains", "for_any_rows", "launches", "least", "scratch", "seconds", "supports"]

DEMANDS = {"has": ["HGMMA", "UTMALDG", "UTMASTG"], "spills": 0}
ROWS = 128  # of the weight that a block unpacks, by 128 columns
TRIED = 12


@gluon.jit(do_not_specialize=("stripes", "groups", "per_group", "blocks"))
def _unpack(codes_desc, high_desc, weight_desc, scale, zero, stripes, groups, per_group, blocks, ROWS: gl.constexpr, FORMAT: gl.constexpr,
            BITS: gl.constexpr, GROUP: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr):
    """ROWS rows of the weight by 128 columns: codes to registers, as the left operand of wgmma, and by shared memory to the matrix."""
    HIGH: gl.constexpr = ROWS // 16
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    KIND: gl.constexpr = weight_desc.dtype
    WORDS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    if high_desc is None:
        HIGH_BYTES: gl.constexpr = 0
    else:
        HIGH_BYTES: gl.constexpr = high_desc.block_type.nbytes
    tile, block = gl.program_id(0) // blocks, gl.program_id(0) % blocks
    full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(full.index(0), count=1)
    fence_async_shared()
    codes_ring = gl.allocate_shared_memory(codes_desc.dtype, [1] + codes_desc.block_type.shape, codes_desc.layout)
    words = codes_ring._reinterpret(gl.int32, [1, HIGH, codes_desc.block_type.shape[2] // 4, 32, 4], WORDS).index(0)
    mbarrier.expect(full.index(0), codes_desc.block_type.nbytes + HIGH_BYTES)
    tma.async_copy_global_to_shared(codes_desc, [tile * HIGH, block, 0, 0], full.index(0), codes_ring.index(0))
    if high_desc is None:
        high_words: gl.constexpr = None
    else:
        high_ring = gl.allocate_shared_memory(high_desc.dtype, [1] + high_desc.block_type.shape, high_desc.layout)
        high_words = high_ring._reinterpret(gl.int32, [1, HIGH, 1, 32, 4], WORDS).index(0)
        tma.async_copy_global_to_shared(high_desc, [tile * HIGH, block, 8, 0], full.index(0), high_ring.index(0))
    out = gl.allocate_shared_memory(KIND, [2] + weight_desc.block_type.shape, weight_desc.layout)
    factors = pair_scales(scale, zero, tile * HIGH, stripes, groups, block, per_group, HIGH, BITS, GROUP, CHANNEL, L, KIND)
    mbarrier.wait(full.index(0), 0)
    for half in gl.static_range(2):
        part = left_operand(words, high_words, half, factors, MMA, ROWS, FORMAT, BITS, zero is not None, CHANNEL, L, L2, KIND)
        out.index(half).store(part)
        fence_async_shared()
        tma.async_copy_shared_to_global(weight_desc, [tile * ROWS, block * 128 + 64 * half], out.index(half))
    tma.store_wait(0)


@lru_cache(maxsize=32)
def _product(p: Problem) -> Product:
    """The product that follows, its b the transposed weight in scratch memory."""
    (_, n, k), x = sizes(p), p["x"]
    metas = {**dict(p.tensors), "weight": Meta((k, n), x.dtype, (1, _product_launches.pitch_of(k, 2)))}
    scale_a = "x_scale" if p.get("x_scale") is not None else ""
    return Product(metas, p.device.sms, a="x", b="weight", scale_a=scale_a, scale_b="scale" if _channel(p) else "")


def _channel(p: Problem) -> bool:
    """Whether one scale a row is left to the sums; powers of two are exact in the weight."""
    return int(p.option("group")) == sizes(p)[2] and p["scale"].dtype != "u8"


def least(p: Problem) -> float:
    """A lower bound of the predicted time, that no config need be ranked for."""
    m, n, k = sizes(p)
    return unpacking(p) + m * n * k / (FMAS * CLOCK * p.device.sms)


def seconds(p: Problem) -> float:
    """Predicted time."""
    return unpacking(p) + _product(p).seconds(choose(p))


def choose(p: Problem) -> Config:
    return _product(p).ranked()[0]


def for_any_rows(p: Problem) -> str:
    return "it unpacks the whole weight, which few rows do not pay for"


def configs(p: Problem) -> list[Config]:
    return _product(p).ranked()[:TRIED]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    _, n, k = sizes(p)
    weight = Meta((n, _product_launches.pitch_of(k, 2)), p["x"].dtype)
    return {"weight": weight, **_product_launches.scratch(_product(p), config)}


def launches(p: Problem, config: Config) -> list[Launch]:
    _, n, k = sizes(p)
    (stripes, blocks, width), bits, (group, per_group) = p["codes"].shape, bits_of(p), grouping(p)
    layout = gl.NVMMASharedLayout.get_default_for([ROWS, 64], TYPES[p["x"].dtype])
    args = {
        **plane_descriptors(stripes, blocks, width, bits, ROWS),
        "weight_desc": Descriptor("weight", (ROWS, 64), layout, shape=(n, k), strides=(_product_launches.pitch_of(k, 2), 1)),
        "scale": "scale", "zero": "zero" if p.get("zero") is not None else None, "stripes": stripes, "groups": p["scale"].shape[1],
        "per_group": per_group, "blocks": blocks, "ROWS": ROWS, "FORMAT": FORMATS.index(str(p.option("format"))), "BITS": bits,
        "GROUP": group, "CHANNEL": _channel(p), "L": words_layout(ROWS // 16, *plane_shape(bits)), "L2": words_layout(ROWS // 16, 1, 2),
    }
    unpack = Launch(kernel=_unpack, grid=(-(-stripes * 16 // ROWS) * blocks,), args=args, warps=4)
    return [unpack, *_product_launches.launches(_product(p), config, p.device.pdl)]


def explains(p: Problem, config: Config) -> str:
    first = f"the weight is unpacked to 16 bits first, predicted {unpacking(p) * 1e6:.1f} µs"
    return f"{first}; {_product_launches.explanation(_product(p), config)}"
