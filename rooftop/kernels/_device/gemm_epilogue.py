"""The epilogue of a matrix product, the order of the tiles, and the reduction of split-K and stream-K. Plain Triton functions; a Gluon
kernel uses them as `gluon.jit(f.fn)`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.kernels._device.activations import gelu, gelu_short, gelu_tanh, silu

ACTIVATIONS = ("none", "relu", "silu", "gelu", "gelu_tanh")  # a kernel is given the index of one
SCALES = ("rows", "one", "blocks")  # scales [M] of a and [N] of b; one each; [M, ceil(K / 128)] and [ceil(K / 128), ceil(N / 128)]
ONE, BLOCKS = (tl.constexpr(SCALES.index(name)) for name in SCALES[1:])
RELU, SILU, GELU, GELU_TANH = (tl.constexpr(ACTIVATIONS.index(name)) for name in ACTIVATIONS[1:])


@triton.jit
def activate(x, ACT: tl.constexpr, SHORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """SHORT: the result has at most 16 bits, so a shorter polynomial is accurate enough."""
    if ACT == RELU:
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACT == SILU:
        x = silu(x)
    elif ACT == GELU:
        if SHORT:
            x = gelu_short(x)
        else:
            x = gelu(x)
    elif ACT == GELU_TANH:
        x = gelu_tanh(x)
    return x


@triton.jit
def vector(x, places, limit):  # type: ignore[no-untyped-def]
    """x[places] in float32, 0 past `limit`; for None a dummy value."""
    if x is None:
        return places
    else:  # noqa: RET505
        return tl.load(x + places, mask=places < limit, other=0.0).to(tl.float32)


@triton.jit
def scale_of(x, places, limit, SCALES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The scales of rows or columns; with SCALES == ONE the single scale."""
    if SCALES == ONE:
        places = places * 0
    return vector(x, places, limit)


@triton.jit
def finish(x, rows, columns, z, M, N, alpha, beta, row_scale, column_scale, c, ldc, zc, row_bias, column_bias, gate, ldg, zg, residual, ldr,
           zr, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, BIAS: tl.constexpr, SWAP: tl.constexpr, ACT: tl.constexpr,
           SHORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """act(alpha · row_scale · column_scale · x + beta c + bias) · gate + residual in float32, for matrix z of a batch.

    x [R, C]; rows [R] and columns [C]: their indices in the M x N product that the kernel sees; row_· [R], column_· [C]: values, if SCALE_A,
    SCALE_B and BIAS are. SWAP: x is of the transposed result: `columns` are rows of c, gate and residual. z·: elements of a matrix."""
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    wide_rows, wide_columns, batch = rows.to(tl.int64), columns.to(tl.int64), z.to(tl.int64)
    x = x.to(tl.float32) * alpha
    if SCALE_B and SWAP:  # the scale of a first, so that a swapped tile has the same bits
        x *= column_scale[None, :]
    if SCALE_A:
        x *= row_scale[:, None]
    if SCALE_B and not SWAP:
        x *= column_scale[None, :]
    if c is not None:
        at = wide_columns[None, :] * ldc + rows[:, None] if SWAP else (wide_rows * ldc)[:, None] + columns[None, :]
        x += beta * tl.load(c + batch * zc + at, mask=inside, other=0.0).to(tl.float32)
    if BIAS and SWAP:
        x += row_bias[:, None]
    if BIAS and not SWAP:
        x += column_bias[None, :]
    x = activate(x, ACT, SHORT)
    if gate is not None:
        at = wide_columns[None, :] * ldg + rows[:, None] if SWAP else (wide_rows * ldg)[:, None] + columns[None, :]
        x *= tl.load(gate + batch * zg + at, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        at = wide_columns[None, :] * ldr + rows[:, None] if SWAP else (wide_rows * ldr)[:, None] + columns[None, :]
        x += tl.load(residual + batch * zr + at, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def put(x, rows, columns, z, M, N, out, ldo, zo, SWAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Stores x [R, C] straight from registers, masked."""
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    if SWAP:
        at = columns.to(tl.int64)[None, :] * ldo + rows[:, None]
    else:
        at = (rows.to(tl.int64) * ldo)[:, None] + columns[None, :]
    tl.store(out + z.to(tl.int64) * zo + at, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def place(tile, M, N, group, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tile number -> its row and column among the tiles, and the matrix of the batch. Grouped order: `group` rows of tiles are processed
    column by column, so that concurrent tiles share their operands in the L2."""
    rows = (M + BM - 1) // BM
    columns = (N + BN - 1) // BN
    z = tile // (rows * columns)
    rest = tile % (rows * columns)
    width = group * columns
    first = rest // width * group
    size = tl.minimum(rows - first, group)
    return first + rest % width % size, rest % width // size, z


@triton.jit
def begin_of(block, blocks, units):  # type: ignore[no-untyped-def]
    """The first of the `units` slices of K that stream-K divides evenly among the blocks, in order."""
    return block * (units // blocks) + tl.minimum(block, units % blocks)


@triton.jit(do_not_specialize=("M", "N", "whole", "streamed", "slices", "blocks", "group"))
def add_pieces(parts, out, ldo, zo, M, N, whole, streamed, slices, blocks, group, alpha, beta, scale_a, scale_b, c, ldc, zc, bias, gate,
               ldg, zg, residual, ldr, zr,
               BM: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr, SWAP: tl.constexpr, ACT: tl.constexpr, SHORT: tl.constexpr,
               RAW: tl.constexpr, SCALES: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The reduction of stream-K: the sum of a tile's parts from several blocks, in the order of K, and the epilogue.

    The slices of K of `streamed` tiles were divided among the blocks; block p wrote the part that contains its first slice to parts[2 p]
    and a later one to parts[2 p + 1], each [BM, BN] of float32 (int32). Program (b, r) adds ROWS rows of the tile in which block b + 1
    starts, if that is the first block to start in it."""
    if PDL:
        gdc_wait()
    b = tl.program_id(0) + 1
    units = streamed * slices
    s = begin_of(b, blocks, units)
    t = s // slices
    start = t * slices
    if s == start or s == units:  # noqa: SIM109
        return
    if begin_of(b - 1, blocks, units) > start:
        return
    row = tl.program_id(1) * ROWS
    at = (row + tl.arange(0, ROWS))[:, None] * BN + tl.arange(0, BN)[None, :]
    slot = 2 * (b - 1) + (begin_of(b - 1, blocks, units) < start).to(tl.int32)
    x = tl.load(parts + slot.to(tl.int64) * (BM * BN) + at)
    p = b
    while (p < blocks) & (begin_of(p, blocks, units) < tl.minimum(start + slices, units)):
        if begin_of(p, blocks, units) < begin_of(p + 1, blocks, units):
            x += tl.load(parts + p.to(tl.int64) * (2 * BM * BN) + at)
        p += 1
    pm, pn, z = place(whole + t, M, N, group, BM, BN)
    rows, columns = pm * BM + row + tl.arange(0, ROWS), pn * BN + tl.arange(0, BN)
    if not RAW:
        x = finish(x, rows, columns, z, M, N, alpha, beta, scale_of(scale_a, rows, M, SCALES), scale_of(scale_b, columns, N, SCALES), c,
                   ldc, zc, vector(bias if SWAP else None, rows, M),
                   vector(None if SWAP else bias, columns, N), gate, ldg, zg, residual, ldr, zr, scale_a is not None, scale_b is not None,
                   bias is not None, SWAP, ACT, SHORT)
    put(x, rows, columns, z, M, N, out, ldo, zo, SWAP)


@triton.jit(do_not_specialize=("M", "N", "whole", "streamed", "group"))
def add_split(parts, out, ldo, zo, M, N, whole, streamed, group, alpha, beta, scale_a, scale_b, c, ldc, zc, bias, gate, ldg, zg, residual,
              ldr, zr, BM: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, SWAP: tl.constexpr, ACT: tl.constexpr,
              SHORT: tl.constexpr,
              RAW: tl.constexpr, SCALES: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The reduction of split-K: the sum of a tile's parts from SPLIT blocks, in the order of K, and the epilogue. Part s of tile t is
    parts[s · streamed + t], [BM, BN] of float32 (int32). Program (t, r) computes ROWS rows; the loads of all parts are in flight
    together."""
    if PDL:
        gdc_wait()
    t, row = tl.program_id(0), tl.program_id(1) * ROWS
    pm, pn, z = place(whole + t, M, N, group, BM, BN)
    rows, columns = pm * BM + row + tl.arange(0, ROWS), pn * BN + tl.arange(0, BN)
    if pm * BM + row >= M:
        return
    at = parts + t.to(tl.int64) * (BM * BN) + (row + tl.arange(0, ROWS))[:, None] * BN + tl.arange(0, BN)[None, :]
    x = tl.load(at)
    for _ in tl.static_range(1, SPLIT):
        at += streamed.to(tl.int64) * (BM * BN)
        x += tl.load(at)
    if not RAW:
        x = finish(x, rows, columns, z, M, N, alpha, beta, scale_of(scale_a, rows, M, SCALES), scale_of(scale_b, columns, N, SCALES), c,
                   ldc, zc, vector(bias if SWAP else None, rows, M), vector(None if SWAP else bias, columns, N), gate, ldg, zg, residual,
                   ldr, zr, scale_a is not None, scale_b is not None, bias is not None, SWAP, ACT, SHORT)
    put(x, rows, columns, z, M, N, out, ldo, zo, SWAP)
