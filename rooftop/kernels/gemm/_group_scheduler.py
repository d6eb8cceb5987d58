"""The next tile of a grouped product: the walk over offsets that are only known on the device. Plain Triton functions; a Gluon kernel uses
them as `gluon.jit(f.fn)`."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.kernels._device.gemm_epilogue import place

FORMS = ("rows", "depth", "masked")
ROWS, DEPTH, MASKED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def offset(offsets, g, G, most):  # type: ignore[no-untyped-def]
    """offsets[g], clamped to 0 .. most; `most` past the last."""
    return tl.minimum(tl.maximum(tl.load(offsets + tl.minimum(g, G - 1)), 0), most)


@triton.jit
def tiles_of(begin, end, N, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.cdiv(end - begin, BM) * tl.cdiv(N, BN)


@triton.jit
def advance(t, g, base, begin, end, offsets, G, M, N, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """The group of tile t, starting from any earlier group: its index, the tiles before it, its first row and one past its last. G: the
    rows past the last offset; G + 1: there is no such tile."""
    while (g <= G) & (t >= base + tiles_of(begin, end, N, BM, BN)):
        base += tiles_of(begin, end, N, BM, BN)
        begin = end
        g += 1
        if g < G:
            end = tl.maximum(offset(offsets, g, G, M), begin)
        else:
            end = M
            if g > G:
                begin = M
    return g, base, begin, end


@triton.jit
def start_of(offsets, G, M, FORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """One past the last row of the first group."""
    if FORM == ROWS:
        return offset(offsets, 0, G, M)
    else:  # noqa: RET505
        return M


@triton.jit
def work_of(  # type: ignore[no-untyped-def]
    t, g, base, begin, end, offsets, G, M, N, K, BM: tl.constexpr, BN: tl.constexpr, FORM: tl.constexpr
):
    """Tile t: matrix (group), first row, first column, one past the group's last row in it, the part of K."""
    first = 0
    last = K
    if FORM == ROWS:
        pm, pn, z = place(t - base, end - begin, N, 16, BM, BN)
        row = begin + pm * BM
        limit = end
        z = g
        if g == G:
            last = 0
    else:
        each = tl.cdiv(M, BM) * tl.cdiv(N, BN)
        z = t // each
        pm, pn, _zero = place(t % each, M, N, 16, BM, BN)
        row = pm * BM
        if FORM == DEPTH:
            limit = M
            last = offset(offsets, z, G, K)
            first = tl.minimum(offset(offsets, tl.maximum(z - 1, 0), G, K), last)
            if z == 0:
                first = 0
        else:
            limit = offset(offsets, z, G, M)
            if row >= limit:
                last = 0
    return z, row, pn * BN, limit, first, last
