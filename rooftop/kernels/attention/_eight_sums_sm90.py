"""Weights times values in 8 bits on Hopper: the left operand, and products whose sums of a tile are added in float32."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from rooftop.kernels.attention._scores_sm90 import flat


@gluon.jit
def operand(w, LEFT_OPERAND: gl.constexpr):
    """The weights in 8 bits as the left operand of wgmma, in the order of keys in which the values are stored: nothing moves between threads."""
    M: gl.constexpr = w.shape[0]
    N: gl.constexpr = w.shape[1]
    p = w.reshape([M, N // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([M, N])
    p = gl.convert_layout(p, LEFT_OPERAND, assert_trivial=True)
    return p.to(gl.float8e4nv)


@gluon.jit
def _product(p, v, INDEX: gl.constexpr, COLUMNS: gl.constexpr):
    """Weights times part INDEX of the columns of the values, in accumulators of its own; not waited for."""
    PART: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 32])
    part = gl.zeros((64, COLUMNS), gl.float32, PART)
    of = flat(v).slice(INDEX * COLUMNS, COLUMNS, dim=0)
    return warpgroup_mma(p, of.permute((1, 0)), part, use_acc=False, is_async=True)


@gluon.jit
def _halves(acc):
    """The left and right half of the columns; no register moves."""
    N: gl.constexpr = acc.shape[1] // 2
    HALF: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 32])
    a, b = acc.reshape([64, 2, N]).permute((0, 2, 1)).split()
    return gl.convert_layout(a, HALF, assert_trivial=True), gl.convert_layout(b, HALF, assert_trivial=True)


@gluon.jit
def _joined(a, b):
    N: gl.constexpr = 2 * a.shape[1]
    WHOLE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 32])
    return gl.convert_layout(gl.join(a, b).permute((0, 2, 1)).reshape([64, N]), WHOLE, assert_trivial=True)


@gluon.jit
def _plus(acc, shrink, part):
    return acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout), assert_trivial=True)[:, None] + part


@gluon.jit
def begin_product(acc, shrink, p, v):
    """Begins acc · shrink + the product of weights and values: the part of columns that remains to be added runs when it returns."""
    if acc.shape[1] <= 128:
        last = _product(p, v, 0, acc.shape[1])
    else:
        a, c = _halves(acc)
        a, b = _halves(a)
        c, d = _halves(c)
        part = warpgroup_mma_wait(num_outstanding=0, deps=(_product(p, v, 0, 64),))
        running = _product(p, v, 1, 64)
        a = _plus(a, shrink, part)
        part = warpgroup_mma_wait(num_outstanding=0, deps=(running,))
        running = _product(p, v, 2, 64)
        b = _plus(b, shrink, part)
        part = warpgroup_mma_wait(num_outstanding=0, deps=(running,))
        last = _product(p, v, 3, 64)
        c = _plus(c, shrink, part)
        acc = _joined(_joined(a, b), _joined(c, d))
    return acc, last


@gluon.jit
def end_product(acc, shrink, last, OTHERS: gl.constexpr):
    """Adds what `begin_product` left running, after which OTHERS products were issued."""
    last = warpgroup_mma_wait(num_outstanding=OTHERS, deps=(last,))
    if acc.shape[1] <= 128:
        acc = _plus(acc, shrink, last)
    else:
        a, c = _halves(acc)
        c, d = _halves(c)
        acc = _joined(a, _joined(c, _plus(d, shrink, last)))
    return acc
