"""Shared by the forward and the backward of cross_entropy in Triton: capped logits, and rows that start at any address.

A row of an odd number of 16-bit logits starts at an address that is not a multiple of 16, and Triton would load it in pieces of 2 bytes. So a row is
a few logits up to the first multiple of 16, a middle in vectors of 16 bytes, and a few logits at its end: the two ends together are its
edges. Nothing outside of the row is touched."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from rooftop.core.spec import Problem

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
EXACT = tl.constexpr(1)  # how logits are bounded: to float32's last digits
SHORT = tl.constexpr(2)  # to 2e-7 of the cap, which 16-bit logits do not show, nor a loss over a thousand classes, unless all err alike
FEW = 1024  # classes, below which a loss would show it


@triton.jit
def exp(v):  # type: ignore[no-untyped-def]
    """exp(v), 0 where it is below the normal numbers: keeping those costs tl.exp three instructions of seven."""
    return libdevice.exp2(v * LOG2E)


@triton.jit
def capped(v, cap):  # type: ignore[no-untyped-def]
    """cap · tanh(v / cap), to float32's last digits."""
    return cap * libdevice.tanh(v / cap)


@triton.jit
def raised(v, cap):  # type: ignore[no-untyped-def]
    """1 + exp(2 v / cap), of which cap · tanh(v / cap) is cap - 2 cap / raised; 1 + 2^30 at most, where the tanh is 1 - 2e-9."""
    return 1 + libdevice.exp2(tl.minimum(v * (2 * LOG2E / cap), 30.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def bounded(a, b, c, d, cap, unit):  # type: ignore[no-untyped-def]
    """cap · tanh(v / cap) · unit of four tensors: one reciprocal for four logits, because the special functions are what bounds the speed."""
    a, b, c, d = raised(a, cap), raised(b, cap), raised(c, cap), raised(d, cap)
    p, q = a * b, c * d
    part = libdevice.fast_dividef(-2 * cap * unit, p * q)
    first, second = part * q, part * p
    most = cap * unit
    return tl.fma(first, b, most), tl.fma(first, a, most), tl.fma(second, d, most), tl.fma(second, c, most)


@triton.jit
def middle(row, stride, C, EACH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of row `row`, whose first element is row · stride: the first element of its middle, counted from the tensor's, and how many there are
    before it and in it. EACH elements are 16 bytes; 0: the whole row is its middle."""
    if EACH == 0:
        return row * stride, 0, C
    first = (row * stride + (EACH - 1)) // EACH * EACH
    before = tl.minimum(first - row * stride, C).to(tl.int32)
    return first, before, (C - before) // EACH * EACH


@triton.jit
def edges(before, within, C, EACH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The columns of a row's edges, 2 EACH of them, and which of those there are."""
    at = tl.arange(0, 2 * EACH)
    column = tl.where(at < EACH, at, before + within + at - EACH)
    return column, tl.where(at < EACH, at < before, column < C)


def each(p: Problem) -> int:
    """Elements of 16 bytes where the rows of logits start at addresses that 16 does not divide and their middles can be told; 0 elsewhere."""
    ragged = [m for name, m in p.tensors if name in ("input", "dinput") and m is not None]
    size = 16 // ragged[0].itemsize
    told = all(m.align >= 16 and m.strides[0] == ragged[0].strides[0] for m in ragged)
    divided = all(n % 16 == 0 for n in (ragged[0].strides[0], ragged[0].shape[1]))
    return size if told and not divided and ragged[0].shape[1] >= 4 * size else 0


def how(p: Problem) -> int:
    """0, EXACT or SHORT, which wants exp(± cap) to be a normal number."""
    cap, x = float(p.option("softcap")), p["input"]
    return 0 if cap == 0 else EXACT.value if x.itemsize >= 4 or x.shape[1] < FEW or not 1e-30 < cap <= 70 else SHORT.value
