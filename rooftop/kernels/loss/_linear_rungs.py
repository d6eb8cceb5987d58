"""Shared by several rungs of the ladder linear_ce: the softmax of a chunk of logits in two kernels, and the problem without options that
the rungs support."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from rooftop.core.spec import Launch, Problem, View


@triton.jit
def row_losses(z, target, state, losses, zs, columns, row0, ignore, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The statistics and the loss of one row of whole logits. The chunk's row 0 is token `row0`."""
    row = row0 + tl.program_id(0).to(tl.int64)
    z += tl.program_id(0).to(tl.int64) * zs
    t = tl.load(target + row)
    live = t != ignore
    m = tl.full((COLUMNS,), -3.4028234663852886e38, tl.float32)
    s = tl.zeros((COLUMNS,), tl.float32)
    for k in tl.range(0, tl.cdiv(columns, COLUMNS)):
        at = k * COLUMNS + tl.arange(0, COLUMNS)
        v = tl.load(z + at, (at < columns) & live, other=-float("inf")).to(tl.float32)
        most = tl.maximum(m, v)
        s = s * tl.exp(m - most) + tl.exp(v - most)
        m = most
    most = tl.max(m, 0)
    sum_ = tl.sum(s * tl.exp(m - most), 0)
    known = live & (t >= 0) & (t < columns)
    picked = tl.load(z + t, known, other=0).to(tl.float32)
    keep(state, losses, row, most, sum_, picked, live, known)


@triton.jit
def keep(state, losses, row, most, sum_, picked, live, known):  # type: ignore[no-untyped-def]
    """Writes a row's state and its loss: 0 if it is ignored, NaN if its target is not a class."""
    to = state + 4 * row
    tl.store(to, tl.where(live, most, 0))
    tl.store(to + 1, tl.where(live, sum_, 1))
    tl.store(to + 2, 0.0)
    tl.store(to + 3, tl.where(known, picked, 0))
    tl.store(losses + row, tl.where(live, tl.where(known, tl.log(sum_) + (most - picked), float("nan")), 0))


@triton.jit
def gradient(  # type: ignore[no-untyped-def]
    z, target, state, divisor, zo, zs, columns, blocks, row0, first, classes, ignore, BLOCK: tl.constexpr
):
    """Replaces BLOCK logits of a row, classes from `first` on, by their gradient."""
    row = row0 + (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    z += zo + (tl.program_id(0) // blocks).to(tl.int64) * zs
    t = tl.load(target + row)
    live = t != ignore
    v = tl.load(z + at, (at < columns) & live, other=0).to(tl.float32)
    d = tl.exp(v - tl.load(state + 4 * row)) / tl.load(state + 4 * row + 1)
    d = tl.where(at == t - first, d - 1, d) / tl.load(divisor)
    d = tl.where((t >= 0) & (t < classes), d, float("nan"))
    tl.store(z + at, tl.where(live, d, 0).to(z.dtype.element_ty), at < columns)


def plain(p: Problem) -> str | None:
    """The rungs support the loss with both gradients, without options."""
    if p["x"].numel == 0:
        return "there is nothing to compute"
    if any(p.get(n) is None for n in ("unit_x", "unit_weight")) or p["unit_weight"].dtype != p["x"].dtype or p["x"].itemsize != 2:
        return "this rung makes both gradients, in the 16 bits of x"
    if p.get("bias") is not None or any(p.option(n) for n in ("label_smoothing", "lse_square_scale", "softcap", "start", "classes")):
        return "this rung has no bias and no options"
    return None if p["x"].contiguous and p["weight"].contiguous else "this rung takes tensors without gaps"


def losses_of(p: Problem, z: View, row0: int) -> Launch:
    args = {
        "z": z.tensor, "target": "target", "state": "state", "losses": "losses", "zs": z.strides[0], "columns": z.shape[1], "row0": row0
    }
    return Launch(row_losses, (z.shape[0],), {**args, "ignore": int(p.option("ignore_index")), "COLUMNS": 2048}, 4)


def gradient_of(p: Problem, z: View, row0: int, first: int = 0) -> Launch:
    blocks = -(-z.shape[1] // 2048)
    args: dict[str, Any] = {"z": z.tensor, "target": "target", "state": "state", "divisor": "divisor", "zo": z.offset, "zs": z.strides[0]}
    args |= {"columns": z.shape[1], "blocks": blocks, "row0": row0, "first": first, "classes": p["weight"].shape[0]}
    return Launch(gradient, (z.shape[0] * blocks,), {**args, "ignore": int(p.option("ignore_index")), "BLOCK": 2048}, 4)
