"""Shared by the forward and the backward of cross_entropy in Triton: soft-capped logits, and rows at any alignment.

A row of an odd number of 16-bit logits may start at an address that is not a multiple of 16, and Triton would load it in accesses of 2
bytes. So a row is split into a few logits up to the first multiple of 16, a middle in vectors of 16 bytes, and a few logits at its end; the
two ends together are its edges. Nothing outside the row is accessed."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from rooftop.core.spec import Problem

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
EXACT = tl.constexpr(1)  # soft cap to float32's last digits
SHORT = tl.constexpr(2)  # to 2e-7 of the cap, which neither 16-bit logits nor a loss over a thousand classes show
FEW = 1024  # fewer classes than this: a loss would show it


@triton.jit
def exp(v):  # type: ignore[no-untyped-def]
    """exp(v), 0 if it is subnormal: supporting subnormals costs tl.exp three instructions of seven."""
    return libdevice.exp2(v * LOG2E)


@triton.jit
def scaled(v, factor):  # type: ignore[no-untyped-def]
    """factor · v, rounded before anything is subtracted: the only class of a row has gradient 0 if the row's maximum is its very value."""
    return libdevice.mul_rn(tl.full((), factor, tl.float32), v)


@triton.jit
def capped(v, cap):  # type: ignore[no-untyped-def]
    """cap · tanh(v / cap), to float32's last digits. Rounded as `scaled`."""
    return libdevice.mul_rn(tl.full((), cap, tl.float32), libdevice.tanh(v / cap))


@triton.jit
def raised(v, cap):  # type: ignore[no-untyped-def]
    """1 + exp(2 v / cap), at most 1 + 2^30, where the tanh is 1 - 2e-9; cap · tanh(v / cap) = cap - 2 cap / raised."""
    return 1 + libdevice.exp2(tl.minimum(v * (2 * LOG2E / cap), 30.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def bounded(a, b, c, d, cap, unit):  # type: ignore[no-untyped-def]
    """cap · tanh(v / cap) · unit of four tensors: one reciprocal for four logits, because the special function unit is the bottleneck."""
    a, b, c, d = raised(a, cap), raised(b, cap), raised(c, cap), raised(d, cap)
    p, q = a * b, c * d
    part = libdevice.fast_dividef(-2 * cap * unit, p * q)
    first, second = part * q, part * p
    most = cap * unit
    return tl.fma(first, b, most), tl.fma(first, a, most), tl.fma(second, d, most), tl.fma(second, c, most)


@triton.jit
def middle(row, stride, C, EACH: tl.constexpr):  # type: ignore[no-untyped-def]
    """For row `row`, whose first element is row · stride: the index in the tensor of the first element of its middle, and the numbers of
    elements before and in it. EACH elements are 16 bytes; 0: the whole row is its middle."""
    if EACH == 0:
        return row * stride, 0, C
    first = (row * stride + (EACH - 1)) // EACH * EACH
    before = tl.minimum(first - row * stride, C).to(tl.int32)
    return first, before, (C - before) // EACH * EACH


@triton.jit
def edges(before, within, C, EACH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The columns of a row's edges, 2 EACH of them, and which of those exist."""
    at = tl.arange(0, 2 * EACH)
    column = tl.where(at < EACH, at, before + within + at - EACH)
    return column, tl.where(at < EACH, at < before, column < C)


def each(p: Problem) -> int:
    """Elements of 16 bytes if the rows of logits are misaligned and their middles can be determined; else 0."""
    ragged = [m for name, m in p.tensors if name in ("input", "dinput") and m is not None]
    size = 16 // ragged[0].itemsize
    told = all(m.align >= 16 and m.strides[0] == ragged[0].strides[0] for m in ragged)
    divided = all(n % 16 == 0 for n in (ragged[0].strides[0], ragged[0].shape[1]))
    return size if told and not divided and ragged[0].shape[1] >= 4 * size else 0


def how(p: Problem) -> int:
    """0, EXACT or SHORT; SHORT requires that exp(± cap) is a normal number."""
    cap, x = float(p.option("softcap")), p["input"]
    return 0 if cap == 0 else EXACT.value if x.itemsize >= 4 or x.shape[1] < FEW or not 1e-30 < cap <= 70 else SHORT.value
