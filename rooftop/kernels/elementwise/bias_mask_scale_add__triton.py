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
def _load(pointer, inside):  # type: ignore[no-untyped-def]
    return tl.load(pointer) if inside is None else tl.load(pointer, inside, other=0)


@triton.jit
def _tile(x, bias, residual, mask, out, xs, rs, ms, os, scale, seed, row, column, of_bias, C, inside, with_bias,
          THRESHOLD: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The elements of a program, and those of the bias beside them; `inside`, `with_bias`: which there are, None: all."""
    v = _load(x + row * xs + column, inside).to(tl.float32)
    if bias is not None:
        v += _load(bias + of_bias, with_bias).to(tl.float32)
    v *= scale
    if mask is not None:
        # declared contiguous only in groups of eight: 16 bytes of the mask a thread would be another layout than that of x, and need an
        # exchange
        flag = row * ms + column
        if BLOCK >= 16:  # Triton makes a tensor of one element a scalar, for which this declaration fails
            flag = tl.max_contiguous(flag, [1, 8])
        v = tl.where(_load(mask + flag, inside) != 0, v, 0)
    elif THRESHOLD > 0:
        v = tl.where(kept(seed, row, column, C, THRESHOLD, not FAR), v, 0)
    if residual is not None:
        v += _load(residual + row * rs + column, inside).to(tl.float32)
    tl.store(out + row * os + column, v.to(out.dtype.element_ty), inside)


@triton.jit
def _add(x, bias, residual, mask, out, xs, rs, ms, os, scale, seed, R, C, period,
         THRESHOLD: tl.constexpr, EVEN: tl.constexpr, HIGH: tl.constexpr, FAR: tl.constexpr, TURNS: tl.constexpr, BLOCK: tl.constexpr,
         LANES: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """LANES × BLOCK elements. Row strides of x, residual, mask and out in elements; THRESHOLD 0: no mask is generated. Programs are along
    the columns (axis 0) and the rows (axis 1, with axis 2 as its high part if HIGH). EVEN: no program is partial; where some are, the others
    take no mask. FAR: an element is 2**31 or further from the first. TURNS: there is one row, of C elements, along which the bias, of
    `period` elements, repeats: fewer than a program's (-1), more (1). 0: it has C elements."""
    if PDL:
        gdc_wait()
    first, group = tl.program_id(0), tl.program_id(1)
    if HIGH:
        group += tl.program_id(2) * tl.num_programs(1)
    if FAR:
        first, group = first.to(tl.int64), group.to(tl.int64)
    row = group * LANES + tl.arange(0, LANES)[:, None]
    column = first * BLOCK + tl.arange(0, BLOCK)[None, :]
    if TURNS == 0:
        of_bias = column
    else:
        of_bias = ((first * BLOCK) % period).to(tl.int32) + tl.arange(0, BLOCK)[None, :]
        of_bias = tl.where(of_bias >= period, of_bias - period, of_bias) if TURNS > 0 else of_bias % period
    if EVEN or ((group + 1) * LANES <= R) & ((first + 1) * BLOCK <= C):
        _tile(x, bias, residual, mask, out, xs, rs, ms, os, scale, seed, row, column, of_bias, C, None, None, THRESHOLD, FAR, BLOCK)
    else:
        _tile(
            x, bias, residual, mask, out, xs, rs, ms, os, scale, seed, row, column, of_bias, C, (row < R) & (column < C), column < C,
            THRESHOLD, FAR, BLOCK
        )


@dataclass(frozen=True)
class Config:
    """Elements along a row, rows and warps of one program."""

    block: int
    lanes: int
    warps: int


def _extents(p: Problem) -> tuple[int, int]:
    """Rows and columns as the programs see them: one row where the tensors have no gaps and vectors of 16 elements cross the ends of rows."""
    rows, columns = p["out"].shape
    dense = all(m.strides[0] == columns for _, m in p.tensors if m is not None and len(m.shape) == 2)
    return (1, rows * columns) if columns % 16 and dense and rows > 1 else (rows, columns)


def _grid(p: Problem, config: Config) -> tuple[int, int, int]:
    rows, columns = _extents(p)
    groups = -(-rows // config.lanes)
    return -(-columns // config.block), min(groups, GRID), -(-groups // GRID)


def supports(p: Problem) -> str | None:
    if p["out"].numel == 0:
        return "there is nothing to compute"
    rows, columns = p["out"].shape
    if columns >= 2**31 - 2**14 or rows >= 2**31:
        return f"takes fewer than 2**31 - 2**14 columns and 2**31 rows; given {columns} and {rows}"
    if _grid(p, choose(p))[0] >= 2**31:
        return "more programs than one launch may have"
    return None


def choose(p: Problem) -> Config:
    """Measured on an H100. Four elements a thread: more programs in flight, which short tensors need most; two packs of 16 bytes for 32-bit
    elements from 2^26 on."""
    rows, columns = _extents(p)
    size, warps = 1024, 4 if rows * columns >= 1 << 26 and p["out"].itemsize >= 4 else 8
    block = min(size, 1 << (columns - 1).bit_length())
    return Config(block, min(size // block, 1 << (rows - 1).bit_length()), warps)


def configs(p: Problem) -> list[Config]:
    return [
        Config(block, lanes, warps)
        for block in (256, 512, 1024, 2048, 4096) for lanes in ((1,) if _extents(p)[0] == 1 else (1, 2, 4)) for warps in (1, 2, 4, 8)
        if 128 * warps <= block * lanes <= 1024 * warps
    ]


def launches(p: Problem, config: Config) -> list[Launch]:
    (rows, columns), period = _extents(p), p["out"].shape[1]
    metas = {n: m for n, m in p.tensors if m is not None}
    far = max(
        (m.shape[0] - 1) * abs(m.strides[0]) + period for m in metas.values() if len(m.shape) == 2
    ) + config.block * config.lanes >= 2**31
    args = {n: n for n in ("x", "bias", "residual", "mask", "out")}
    strides = {f"{n[0]}s": (m.strides[0] if rows > 1 else 0) if (m := p.get(n)) is not None else None for n in ("x", "residual", "mask", "out")}
    sizes = {"R": rows, "C": columns, "period": period, **strides, "scale": float(p.option("scale")), "seed": "seed"}
    even, high = rows % config.lanes == 0 and columns % config.block == 0, -(-rows // config.lanes) > GRID
    turns = 0 if columns == period else 1 if config.block <= period else -1
    made = {"THRESHOLD": threshold(float(p.option("p"))), "EVEN": even and not high, "HIGH": high, "TURNS": turns, "BLOCK": config.block}
    made |= {"LANES": config.lanes, "FAR": far or rows * columns >= 2**31, "PDL": p.device.pdl}
    return [Launch(_add, _grid(p, config), {**args, **sizes, **made}, config.warps, pdl=p.device.pdl)]
