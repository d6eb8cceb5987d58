"""The second stage of every sum over rows: partial rows in float32, added in a fixed order. No atomics: the same bits every time.

A program loads a few columns of all partial rows together if they fit its registers: one memory latency, not several in sequence, is the
whole cost of such a small launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Device, Launch

HEIGHT = 1024  # partial rows at a time, at most
LEAST = 64  # fewer are masked, which costs no memory traffic: one binary for many numbers of rows
TILE = 8192  # elements that a program holds


@triton.jit
def _add(parts, to, P, C, COLUMNS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((LANES, COLUMNS), tl.float32)
    for k in range(tl.cdiv(P, LANES)):
        row = k * LANES + tl.arange(0, LANES)[:, None]
        total += tl.load(parts + row.to(tl.int64) * C + column, (row < P) & (column < C), other=0)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(to + at, tl.sum(total, 0).to(to.dtype.element_ty), at < C)


@triton.jit(do_not_specialize=["P"])  # follows the row kernels of a call
def _columns(  # type: ignore[no-untyped-def]
    first, second, to_first, to_second, P, C, COLUMNS: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr
):
    """The sum of P partial rows, LANES of them at a time, always in the same order. If there are two such sums, axis 1 of the grid is which
    of them."""
    if PDL:
        gdc_wait()
    if tl.program_id(1) == 0:
        _add(first, to_first, P, C, COLUMNS, LANES)
    elif second is not None:
        _add(second, to_second, P, C, COLUMNS, LANES)


def column_sums(sums: list[tuple[str, str]], count: int, columns: int, device: Device) -> list[Launch]:
    """For each pair of one or two: adds the `count` rows of the first, a scratch tensor [count, columns] in float32, into the second,
    [columns]. One launch for all of them; none for none."""
    if not sums:
        return []
    lanes = min(HEIGHT, max(LEAST, 1 << (count - 1).bit_length()))
    width = max(8, min(64, TILE // lanes))  # 8: a sector of 32 bytes
    parts, to = zip(*(sums if len(sums) == 2 else [*sums, (None, None)]), strict=True)
    args = {"first": parts[0], "second": parts[1], "to_first": to[0], "to_second": to[1], "P": count, "C": columns}
    args |= {"COLUMNS": width, "LANES": lanes, "PDL": device.pdl}
    grid = (-(-columns // width), len(sums))[: len(sums)]
    return [Launch(_columns, grid, args, max(1, min(8, lanes * width // 1024)), pdl=device.pdl)]
