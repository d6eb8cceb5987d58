"""The computation of the portable attention kernels on a tile of queries and keys: its mask, its scores with all terms, its dropout.

`rows` and `columns` are queries and keys within the sequence, broadcast over the tile: [rows, 1] and [1, columns], or the other way round
for a transposed tile. Every function supports both."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def sequence(tile, cu_q, cu_k, N, TQ, TK, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """(first query, queries, first key, keys, first row of the tile within the sequence, whether it belongs to a sequence) of tile number
    `tile` of packed sequences. Invalid offsets are clamped. Queries before the first and after the last sequence are treated as a sequence
    without keys, which is not a sequence. Past the last tile: no queries."""
    first = 0
    count = tl.minimum(tl.maximum(tl.load(cu_q).to(tl.int32), 0), TQ)
    first_key = 0
    keys = 0
    next_key = tl.minimum(tl.maximum(tl.load(cu_k).to(tl.int32), 0), TK)
    rest = tile
    n = 0
    while (n <= N) & (rest * BLOCK >= count):
        rest -= (count + BLOCK - 1) // BLOCK
        first += count
        first_key = next_key
        inner = n < N
        end = tl.load(cu_q + n + 1, mask=inner, other=0).to(tl.int32)
        end = tl.where(inner, tl.minimum(tl.maximum(end, first), TQ), TQ)
        end_key = tl.load(cu_k + n + 1, mask=inner, other=0).to(tl.int32)
        next_key = tl.where(inner, tl.minimum(tl.maximum(end_key, first_key), TK), first_key)
        count = end - first
        keys = next_key - first_key
        n += 1
    return first, count, first_key, keys, rest * BLOCK, (n > 0) & (n <= N)


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    """To 1e-6 of itself. Below 3/8 an odd polynomial, relative error 7e-8: there 1 - 2 / (1 + e) would cancel, the more the larger the
    cap."""
    far = 1 - 2 / (1 + tl.exp2(x * (2.0 * LOG2E)))
    v = x * x
    near = x * (1 + v * (-0.333323335 + v * (0.132897261 - 0.0484872872 * v)))
    return tl.where(tl.abs(x) < 0.375, near, far)


@triton.jit
def page_of(table, start, end, BN: tl.constexpr, PAGE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The entries of the page table for the tile of keys from `start`: one if pages are whole tiles, else one a key."""
    if PAGE % BN == 0:
        page = tl.load(table + start // PAGE, mask=start < end, other=0)
    else:
        columns = start + tl.arange(0, BN)
        page = tl.load(table + columns // PAGE, mask=columns < end, other=0)
    return page.to(tl.int64)


@triton.jit
def seen(rows, columns, position, keys, LEFT: tl.constexpr, RIGHT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The mask of causal order and window. `position`: keys - queries."""
    inside = columns < keys
    apart = columns - (rows + position)
    if LEFT >= 0:
        inside = inside & (apart >= -LEFT)
    if RIGHT >= 0:
        inside = inside & (apart <= RIGHT)
    return inside


@triton.jit
def scored(z, rows, columns, there, position, factor, cap, slope, bias, bias_row, bias_column, mask, mask_row, mask_column,
           CAP: tl.constexpr, ALIBI: tl.constexpr):  # type: ignore[no-untyped-def]
    """(the scores in base 2, tanh of the capped ones) for products `z`: capped, with bias and ALiBi added, -inf where masked. `there`:
    which elements of the tile are inside the tensors. Only called if one of these is needed."""
    t = z
    if CAP:
        t = tanh(z * cap)
    z = t * factor
    if bias is not None:
        at = rows.to(tl.int64) * bias_row + columns.to(tl.int64) * bias_column
        z += tl.load(bias + at, mask=there, other=0.0).to(tl.float32) * LOG2E
    if ALIBI:
        z -= tl.abs(columns - (rows + position)).to(tl.float32) * (slope * LOG2E)
    if mask is not None:
        at = rows.to(tl.int64) * mask_row + columns.to(tl.int64) * mask_column
        z = tl.where(tl.load(mask + at, mask=there, other=0) != 0, z, float("-inf"))
    return z, t


@triton.jit
def _mix(h):  # type: ignore[no-untyped-def]
    h = h ^ (h >> 16)
    h = h * tl.full((), 0x85EBCA6B, tl.uint32)
    h = h ^ (h >> 13)
    h = h * tl.full((), 0xC2B2AE35, tl.uint32)
    return h ^ (h >> 16)


@triton.jit
def _words(seed, eighth, pair):  # type: ignore[no-untyped-def]
    """The 32 random bits that two neighbours share (`halves`, rooftop/formats/random_bits.py). `eighth`: index / 8; `pair`: index / 2
    modulo 4."""
    key = tl.full((), seed, tl.int32).to(tl.uint32, bitcast=True)
    low = eighth.to(tl.uint32)
    if eighth.dtype == tl.int64:
        key += (eighth >> 32).to(tl.uint32) * tl.full((), 0x7FEB352D, tl.uint32)
    state = _mix(low ^ (tl.full((), seed, tl.int32).to(tl.uint32, bitcast=True) * tl.full((), 0x9E3779B9, tl.uint32))) ^ key
    few = tl.where(pair == 0, tl.full((), 0x9E3779B9, tl.uint32), tl.full((), 0x85EBCA6B, tl.uint32))
    more = tl.where(pair == 2, tl.full((), 0xC2B2AE35, tl.uint32), tl.full((), 0x7FEB352D, tl.uint32))
    factor = tl.where(pair < 2, few, more)
    return (state * factor) ^ tl.umulhi(state, tl.broadcast_to(factor, state.shape))


@triton.jit
def kept(seed, limit, row_start, start, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """[rows, COLUMNS]: which of the keys from `start` (a multiple of 8) on dropout keeps. `row_start` [rows, 1]: index / 8 of the rows'
    first elements."""
    pair = tl.arange(0, COLUMNS // 2)[None, :]
    word = _words(seed, row_start + (start // 8 + pair // 4), pair & 3)
    cut = tl.full((), limit, tl.int32).to(tl.uint32, bitcast=True) << 16
    # compares the upper 16 bits; the lower ones do not matter
    return tl.reshape(tl.join(word << 16, word), (row_start.shape[0], COLUMNS)) >= cut


@triton.jit
def kept_transposed(seed, limit, row_start, columns):  # type: ignore[no-untyped-def]
    """[columns, rows]: the same for a transposed tile, where the two elements of a word are not in one thread. `row_start` [1, rows],
    `columns` [columns, 1]."""
    word = _words(seed, row_start + columns // 8, (columns // 2) & 3)
    cut = tl.full((), limit, tl.int32).to(tl.uint32, bitcast=True) << 16
    return tl.where(columns % 2 == 0, word << 16, word) >= cut


@triton.jit
def numbered(batch, head, row, H, SQ, EIGHTHS, SHORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Index / 8 of the first element of each row, EIGHTHS a row; SHORT: all indices of a call are below 2^32."""
    number = ((batch * H + head) * SQ + row.to(tl.int64)) * EIGHTHS
    if SHORT:
        number = number.to(tl.uint32)
    return number
