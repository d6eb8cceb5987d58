"""The second stage of every sum over rows: partial rows in float32, added in a fixed order. No atomics: the same bits every time."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.lab.spec import Launch

HEIGHT = 32  # partial rows at a time


@triton.jit
def _columns(parts, dw, P, C, COLUMNS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of P partial rows, LANES of them at a time, always in the same order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((LANES, COLUMNS), tl.float32)
    for k in range(tl.cdiv(P, LANES)):
        row = k * LANES + tl.arange(0, LANES)[:, None]
        total += tl.load(parts + row.to(tl.int64) * C + column, (row < P) & (column < C), other=0)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(dw + at, tl.sum(total, 0).to(dw.dtype.element_ty), at < C)


def column_sums(parts: str, to: str, count: int, columns: int) -> Launch:
    """Adds the `count` rows of the scratch tensor `parts`, [count, columns] in float32, into the tensor `to`, [columns]."""
    width = 64 if columns <= 16384 else 256  # few columns: more programs; many: fewer of them, each with more under way
    args = {"parts": parts, "dw": to, "P": count, "C": columns, "COLUMNS": width, "LANES": HEIGHT}
    return Launch(_columns, (-(-columns // width),), args, width // 16 if width < 256 else 8)
