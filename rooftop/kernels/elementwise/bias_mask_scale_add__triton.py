"""out = residual + scale · mask · (x + bias) over [R, C]. Contract: rooftop/ops/bias_mask_scale_add.py

Bytes: x, residual and mask are read once, out is written once; the bias hits L2. A mask from a seed moves no bytes and costs about 14
integer instructions per element, far fewer than can be issued in the time of 6 bytes per element. Prediction: 0.97 of a copy from 256 MiB
on."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Problem
from rooftop.formats.random_bits import threshold
from rooftop.kernels._device.random import kept

GRID = 65535  # programs along the second and third axes of a launch


@triton.jit
def _add(x, bias, residual, mask, out, xs, rs, ms, os, scale, seed, R, C,
         THRESHOLD: tl.constexpr, EVEN: tl.constexpr, HIGH: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
         CHAINED: tl.constexpr):  # type: ignore[no-untyped-def]
    """LANES × BLOCK elements. Row strides of x, residual, mask and out in elements; THRESHOLD 0: no mask is generated. Programs are along
    the columns (axis 0) and the rows (axis 1, with axis 2 as its high part if HIGH). EVEN: no program is partial. FAR: an element is 2**31
    or further from the first."""
    if CHAINED:
        gdc_wait()
    row = tl.program_id(1)
    if HIGH:
        row += tl.program_id(2) * tl.num_programs(1)
    if FAR:
        row = row.to(tl.int64)
    row = row * LANES + tl.arange(0, LANES)[:, None]
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < R) & (column < C) | EVEN
    v = tl.load(x + row * xs + column, inside, other=0).to(tl.float32)
    if bias is not None:
        v += tl.load(bias + column, (column < C) | EVEN, other=0).to(tl.float32)
    v *= scale
    if mask is not None:
        # declared contiguous only in groups of eight: 16 bytes of the mask a thread would be another layout than that of x, and need an
        # exchange
        flag = row * ms + column
        if BLOCK >= 16:  # Triton makes a tensor of one element a scalar, for which this declaration fails
            flag = tl.max_contiguous(flag, [1, 8])
        v = tl.where(tl.load(mask + flag, inside, other=0) != 0, v, 0)
    elif THRESHOLD > 0:
        v = tl.where(kept(seed, row, column, C, THRESHOLD, not FAR), v, 0)
    if residual is not None:
        v += tl.load(residual + row * rs + column, inside, other=0).to(tl.float32)
    tl.store(out + row * os + column, v.to(out.dtype.element_ty), inside)


@dataclass(frozen=True)
class Config:
    """Elements along a row, rows and warps of one program."""

    block: int
    lanes: int
    warps: int


def _grid(p: Problem, config: Config) -> tuple[int, int, int]:
    rows, columns = p["out"].shape
    groups = -(-rows // config.lanes)
    return -(-columns // config.block), min(groups, GRID), -(-groups // GRID)


def supports(p: Problem) -> str | None:
    if p["out"].numel == 0:
        return "there is nothing to compute"
    rows, columns = p["out"].shape
    if columns >= 2**31 - 2**14 or rows >= 2**31:
        return f"takes fewer than 2**31 - 2**14 columns and 2**31 rows; given {columns} and {rows}"
    return None


def choose(p: Problem) -> Config:
    """Measured on an H100. Four elements a thread: more programs in flight, which short tensors need most; two packs of 16 bytes for 32-bit
    elements from 2^26 on."""
    rows, columns = p["out"].shape
    size, warps = 1024, 4 if rows * columns >= 1 << 26 and p["out"].itemsize >= 4 else 8
    block = min(size, 1 << (columns - 1).bit_length())
    return Config(block, min(size // block, 1 << (rows - 1).bit_length()), warps)


def configs(p: Problem) -> list[Config]:
    return [
        Config(block, lanes, warps)
        for block in (256, 512, 1024, 2048, 4096) for lanes in (1, 2, 4) for warps in (1, 2, 4, 8)
        if 128 * warps <= block * lanes <= 1024 * warps
    ]


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["out"].shape
    metas = {n: m for n, m in p.tensors if m is not None}
    far = max(
        (m.shape[0] - 1) * abs(m.strides[0]) + columns for m in metas.values() if len(m.shape) == 2
    ) + config.block * config.lanes >= 2**31
    args = {n: n for n in ("x", "bias", "residual", "mask", "out")}
    strides = {f"{n[0]}s": m.strides[0] if (m := p.get(n)) is not None else None for n in ("x", "residual", "mask", "out")}
    sizes = {"R": rows, "C": columns, **strides, "scale": float(p.option("scale")), "seed": "seed"}
    even, high = rows % config.lanes == 0 and columns % config.block == 0, -(-rows // config.lanes) > GRID
    made = {"THRESHOLD": threshold(float(p.option("p"))), "EVEN": even and not high, "HIGH": high, "BLOCK": config.block}
    made |= {"LANES": config.lanes, "FAR": far or rows * columns >= 2**31, "CHAINED": p.device.pdl}
    return [Launch(_add, _grid(p, config), {**args, **sizes, **made}, config.warps, chained=p.device.pdl)]
