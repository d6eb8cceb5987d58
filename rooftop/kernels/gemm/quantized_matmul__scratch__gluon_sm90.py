"""out = x Wᵀ + bias with a packed weight on Hopper, for very many rows of x: the weight is decoded to 16 bits first, then multiplied as
matmul__gluon_sm90 multiplies. Contract: rooftop/ops/quantized_matmul.py

Decoding reads the codes and writes 2 bytes of scratch memory a weight, at the speed of a copy; the product then loses nothing to it. The
more rows of x, the smaller the part of that copy; with few rows the kernels that decode on the way are faster. The scratch memory, 2 N K
bytes, is that of one call: layers share it."""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.kernels._device.gluon_tiles import TYPES
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm import quantized_matmul__decoded__gluon_sm90 as decoded
from rooftop.kernels.gemm._lowbit_plan import FORMATS, bits_of, grouping, sizes
from rooftop.kernels.gemm._model import Config
from rooftop.kernels.gemm._product_launches import Product, explanation, pitch_of
from rooftop.kernels.gemm._unpack_wgmma import half_block, half_scales, half_words, plane_shape, words_layout

__all__ = ["Config", "choose", "configs", "explains", "for_any_rows", "launches", "scratch", "supports"]

DEMANDS = {"has": ["HGMMA", "UTMALDG", "UTMASTG"]}
TRIED = 12
COPY = 3.6e12  # bytes a second of codes read and weights written
LAUNCH = 2.5e-6  # seconds of the first launch
HIGH, ROWS = 8, 128  # stripes and rows of a block


@gluon.jit(do_not_specialize=("stripes", "groups", "blocks"))
def _decode(codes, scale, zero, out_desc, stripes, groups, blocks, per_group, HIGH: gl.constexpr, FORMAT: gl.constexpr, BITS: gl.constexpr,
            GROUP: gl.constexpr, CHANNEL: gl.constexpr, L: gl.constexpr, L2: gl.constexpr):
    """128 rows by a block of 128 columns, in halves."""
    KIND: gl.constexpr = out_desc.dtype
    halves = gl.allocate_shared_memory(KIND, [2] + out_desc.block_type.shape, out_desc.layout)
    block = gl.program_id(0) % blocks
    stripe = gl.program_id(0) // blocks * HIGH
    for half in gl.static_range(2):
        k = 2 * block + half
        w = half_words(codes, stripe, stripes, blocks, k, 0, BITS, L)
        v = half_words(codes, stripe, stripes, blocks, k, 1, BITS, L2) if BITS == 6 else w
        s = half_scales(scale, zero, stripe, stripes, groups, block, half, per_group, HIGH, BITS, GROUP, CHANNEL, L, KIND)
        factors = (s[0], s[1], s[0], s[1], s[2], s[3], s[2], s[3])
        halves.index(half).store(half_block(w, v, 0, factors, HIGH * 16, FORMAT, BITS, zero is not None, CHANNEL, L, KIND))
    fence_async_shared()
    for half in gl.static_range(2):
        tma.async_copy_shared_to_global(out_desc, [stripe * 16, block * 128 + half * 64], halves.index(half))
    tma.store_wait(0)


def supports(p: Problem) -> str | None:
    return decoded.supports(p)


def _product(p: Problem) -> Product:
    return decoded.as_product(p)


def _ranked(p: Problem) -> list[Config]:
    return _product(p).ranked()


def choose(p: Problem) -> Config:
    return _ranked(p)[0]


def configs(p: Problem) -> list[Config]:
    return _ranked(p)[:TRIED]


def for_any_rows(p: Problem) -> Config:
    """One chain along all of K, whatever the tile."""
    return next(c for c in _ranked(p) if c.SPLIT == 1 and not c.STREAM)


def decoding(p: Problem) -> float:
    """Predicted seconds until the weight is decoded."""
    _, n, k = sizes(p)
    return LAUNCH + (p["codes"].numel + p["scale"].nbytes + 2 * n * k) / COPY


def seconds(p: Problem) -> float:
    """Predicted time."""
    product = _product(p)
    return decoding(p) + product.seconds(product.ranked()[0])


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    _, n, k = sizes(p)
    return {"weight": Meta((n, pitch_of(k, 2)), p["x"].dtype), **_product_launches.scratch(_product(p), config)}


def launches(p: Problem, config: Config) -> list[Launch]:
    product, bits, (group, per_group) = _product(p), bits_of(p), grouping(p)
    stripes, blocks = p["codes"].shape[:2]
    _, n, k = sizes(p)
    layout: Any = gl.NVMMASharedLayout.get_default_for([ROWS, 64], TYPES[p["x"].dtype])
    args = {
        "codes": "codes", "scale": "scale", "zero": "zero" if p.get("zero") is not None else None,
        "out_desc": Descriptor("weight", (ROWS, 64), layout, shape=(n, k), strides=(pitch_of(k, 2), 1)), "stripes": stripes,
        "groups": p["scale"].shape[1], "blocks": blocks, "per_group": per_group, "HIGH": HIGH,
        "FORMAT": FORMATS.index(str(p.option("format"))), "BITS": bits, "GROUP": group, "CHANNEL": product.scale_b != "",
        "L": words_layout(HIGH, *plane_shape(bits)), "L2": words_layout(HIGH, 1, 2),
    }
    made = _product_launches.launches(product, config, p.device.pdl)
    return [Launch(kernel=_decode, grid=(-(-stripes // HIGH) * blocks,), args=args, warps=4), *made]


def explains(p: Problem, config: Config) -> str:
    _, n, k = sizes(p)
    return (
        f"the weight is decoded first, to {2 * n * k / 1e6:.0f} MB of scratch memory, predicted {decoding(p) * 1e6:.1f} µs; "
        f"{explanation(_product(p), config)}"
    )
