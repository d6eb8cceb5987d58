"""A planted fault: the columns of a block, and with them the order of sums, depend on the number of rows."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem


@triton.jit
def kernel(x, y, columns, step, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * step
    out = tl.program_id(0) * columns
    total = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.exp(tl.load(x + row + at, mask=at < columns, other=float("-inf"))), 0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(y + out + at, tl.exp(tl.load(x + row + at, mask=at < columns)) / total, mask=at < columns)


def supports(p: Problem) -> str | None:
    return None if p["x"].dtype == "f32" and p["x"].shape[2] == 1 else "takes rows of float32"


def choose(p: Problem) -> dict[str, int]:
    return {}


def launches(p: Problem, config: dict[str, int]) -> list[Launch]:
    rows, columns, _ = p["x"].shape
    return [Launch(kernel, (rows,), {"x": "x", "y": "y", "columns": columns, "step": p["x"].strides[0], "BLOCK": 16 if rows < 8 else 64})]
