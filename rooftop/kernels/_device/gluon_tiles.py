"""Operands of tensor cores in Gluon: which matrices TMA reads, and their boxes on the way to wgmma."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from rooftop.core.spec import Meta

TYPES: Mapping[str, Any] = {
    "bf16": gl.bfloat16, "f16": gl.float16, "f8e4m3": gl.float8e4nv, "f8e5m2": gl.float8e5, "i8": gl.int8, "f32": gl.float32,
    "i32": gl.int32,
}


def readable(meta: Meta) -> str | None:
    """None, or why TMA can read the matrices of this tensor neither as stored nor transposed."""
    if meta.align % 16:
        return f"its address is a multiple of {meta.align} bytes; TMA needs 16"
    if len(meta.shape) == 3 and meta.shape[0] > 1 and meta.strides[0] * meta.itemsize % 16:
        return f"its matrices are {meta.strides[0] * meta.itemsize} bytes apart; TMA needs a multiple of 16"
    if not (lies(meta, -2, -1) or lies(meta, -1, -2)):
        return f"its strides are {meta.strides}; TMA needs one of 1 element and the other a multiple of 16 bytes"
    return None


def lies(meta: Meta, outer: int, inner: int) -> bool:
    neighbours = meta.strides[inner] == 1 or meta.shape[inner] == 1
    return neighbours and (meta.shape[outer] == 1 or (meta.strides[outer] * meta.itemsize % 16 == 0 and meta.strides[outer] >= 0))


def turned(meta: Meta) -> bool:
    """Whether TMA reads the transposed matrices: their columns are contiguous in memory."""
    return not lies(meta, -2, -1)


@gluon.jit
def bring(desc, z, row, column, TURNED: gl.constexpr, BATCHED: gl.constexpr, barrier, to):
    """One box by TMA. TURNED: the descriptor is of the transposed operand."""
    if BATCHED:
        if TURNED:
            tma.async_copy_global_to_shared(desc, [z, column, row], barrier, to)
        else:
            tma.async_copy_global_to_shared(desc, [z, row, column], barrier, to)
    elif TURNED:
        tma.async_copy_global_to_shared(desc, [column, row], barrier, to)
    else:
        tma.async_copy_global_to_shared(desc, [row, column], barrier, to)


@gluon.jit
def halves(x, LAYOUT: gl.constexpr):
    """The left and the right half of the columns, without data movement."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    left, right = x.reshape([M, 2, N // 2]).permute(0, 2, 1).split()
    return gl.convert_layout(left, LAYOUT, assert_trivial=True), gl.convert_layout(right, LAYOUT, assert_trivial=True)


@gluon.jit
def flat(x, TURNED: gl.constexpr, BATCHED: gl.constexpr):
    """A stage as the matrix that wgmma reads."""
    if BATCHED:
        x = x.reshape([x.shape[1], x.shape[2]])
    if TURNED:
        x = x.permute((1, 0))
    return x
