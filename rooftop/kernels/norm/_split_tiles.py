"""Rows too long for a cluster: they are divided into tiles, one program each, in two launches. The first computes the statistics of each
tile; the second combines those of a row and reads the tile again for the result, the last tiles first, since they are still in the L2.

    bytes   a row is read twice and written once: 1.5 times the copy, less what hits the L2
    even    the tiles of all rows are one list: few rows keep all multiprocessors as busy as many rows do
    whole   tiles start on 16-byte boundaries of memory wherever the row starts, so every access is 16 bytes a thread. The elements of a row
            before its first and after its last whole vector, up to 2 (V - 1) with V elements a vector, are a tile of their own: its
            singles.

The tile is in registers, so its mean is computed first and then the squares about it, with no division an element. Kernels are not
specialised on sizes: the binary depends on dtypes, on which tensors are absent, and on whether there are singles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Meta, Problem, pow2

SINGLES = 16  # elements of a tile of singles
SMALLEST = 4096  # bytes of a tile: 32 a thread of four warps


@triton.jit
def located(row, stride, C, V: tl.constexpr):  # type: ignore[no-untyped-def]
    """For a row, in elements: the 16-byte boundary at or before its start; the number of elements from there to the row (its shift); and
    the places, counted from that boundary, of the first whole vector and past the last one."""
    start = row * stride
    begin = start // V * V
    shift = (start - begin).to(tl.int32)
    return begin, shift, (shift + V - 1) // V * V, (shift + C) // V * V


@triton.jit
def places(tile, shift, first, last, C, COLUMNS: tl.constexpr, SINGLES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The places of a tile's elements, counted as in `located`, and which of them are in the row: whole vectors, or with SINGLES the row's
    single elements, those before the first whole vector and then those after the last. A row without a whole vector has only single
    elements."""
    if SINGLES > 0:
        e = tl.arange(0, SINGLES)
        before = tl.minimum(first - shift, C)
        at = tl.where(e < before, shift + e, tl.maximum(last, first) + e - before)
        inside = at < shift + C
    else:
        at = tile * COLUMNS + tl.arange(0, COLUMNS)
        inside = (at >= first) & (at < last)
    return at, inside


@dataclass(frozen=True)
class Config:
    """Tiles of `columns` elements by `warps` warps; `singles`: rows have single elements."""

    columns: int
    warps: int
    singles: bool


def vector(m: Meta) -> int:
    """Elements of 16 bytes."""
    return 16 // m.itemsize


def refuses(p: Problem, row: str, equally: tuple[str, ...]) -> str | None:
    """Why rows of p[row] [R, C, ...] are not supported, or None. `equally`: the tensors whose rows must have the same offset from 16
    bytes."""
    x = p[row]
    rows, columns = x.shape[:2]
    if x.numel == 0:
        return "there is nothing to compute"
    if x.dtype not in ("f32", "f16", "bf16"):
        return f"takes f32, f16 or bf16; given {x.dtype}"
    if any(m.shape[2] != 1 for m in (x,) if len(m.shape) == 3):
        return "the dimension must be the last"
    if columns >= 2**31 - 2**20 or rows >= 2**24:
        return f"takes fewer than 2**31 - 2**20 columns and 2**24 rows; given {columns} and {rows}"
    found = [m for name in equally if (m := p.get(name)) is not None]
    if any(m.dtype != x.dtype or (columns > 1 and m.strides[1] != 1) for m in found):
        return "tensors have one dtype, and the elements of a row must be neighbours"
    if any(m.align < 16 or (rows > 1 and (m.strides[0] - x.strides[0]) % vector(x)) for m in found):
        return "rows must start equally far from 16 bytes in all tensors"
    return None


def choose(p: Problem, row: str, bytes_a_thread: int = 64) -> Config:
    """64 bytes of each tensor a thread: 1024 threads have 64 KiB in flight to a multiprocessor. For 16 bits, which take more instructions a
    byte, programs have 256 threads: while one computes, three others load. Smaller tiles, of fewer bytes a thread, where these are fewer
    than four programs a multiprocessor."""
    x = p[row]
    rows, columns = x.shape[:2]
    whole = columns % vector(x) == 0 and (
        rows == 1 or all(m.strides[0] % vector(x) == 0 for _, m in p.tensors if m is not None and m.shape[:2] == x.shape[:2])
    )
    warps = 16 if x.itemsize == 4 else 8
    tile = 32 * warps * bytes_a_thread // x.itemsize
    while tile * x.itemsize > SMALLEST and rows * -(-columns // tile) < 4 * p.device.sms:
        tile, warps = tile // 2, max(4, warps // 2)
    return Config(tile, warps, not whole)


def configs(one: Config) -> list[Config]:
    """The configs for tuning."""
    others = ((one.columns // 2, one.warps), (one.columns // 2, one.warps // 2), (2 * one.columns, 16))
    return [one, *(Config(columns, warps, one.singles) for columns, warps in others)]


def folded(tiles: int) -> int:
    """The number of tiles of a row, rounded up to one of a few sizes, because the binary depends on it. Up to 32 a warp folds them alone."""
    return 32 if tiles <= 32 else 128 if tiles <= 128 else max(1024, pow2(tiles))


def tiles(p: Problem, row: str, config: Config) -> int:
    """Tiles of a row: the most that any shift needs, and one of singles."""
    x = p[row]
    columns = x.shape[1] + (vector(x) - 1 if config.singles else 0)
    return -(-columns // config.columns) + config.singles


def arguments(p: Problem, row: str, config: Config) -> dict[str, Any]:
    """Those that all kernels have."""
    return {
        "found": "found", "C": p[row].shape[1], "tiles": tiles(p, row, config), "V": vector(p[row]),
        "COLUMNS": config.columns, "SINGLES": SINGLES if config.singles else 0, "PDL": p.device.pdl,
    }
