"""Dropout on Hopper: the bits of _tiles.py, in the registers that hold the weights. A thread has two neighbours of 8 columns, which share a
word."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _mix(h):
    h = h ^ (h >> 16)
    h = h * gl.full((), 0x85EBCA6B, gl.uint32)
    h = h ^ (h >> 13)
    h = h * gl.full((), 0xC2B2AE35, gl.uint32)
    return h ^ (h >> 16)


@gluon.jit
def _state(seed, eighth):
    """What the four words of eight elements are made of (`halves`, rooftop/formats/random_bits.py). `eighth`: index / 8."""
    key = gl.full((), seed, gl.int32).to(gl.uint32, bitcast=True)
    first = eighth.to(gl.uint32) ^ (key * gl.full((), 0x9E3779B9, gl.uint32))
    if eighth.dtype == gl.int64:
        key = key + (eighth >> 32).to(gl.uint32) * gl.full((), 0x7FEB352D, gl.uint32)
    return _mix(first) ^ key


@gluon.jit
def _word(state, pair):
    """The 32 random bits that two neighbours share. `pair`: index / 2 modulo 4."""
    few = gl.where(pair == 0, gl.full((), 0x9E3779B9, gl.uint32), gl.full((), 0x85EBCA6B, gl.uint32))
    more = gl.where(pair == 2, gl.full((), 0xC2B2AE35, gl.uint32), gl.full((), 0x7FEB352D, gl.uint32))
    factor = gl.where(pair < 2, few, more) + gl.zeros_like(state)
    return (state * factor) ^ gl.umulhi(state, factor)


@gluon.jit
def eighths(bh, row, SQ, EIGHTHS, SHORT: gl.constexpr):
    """Index / 8 of the first element of each row, EIGHTHS a row; SHORT: all indices of a call are below 2^32."""
    number = (bh.to(gl.int64) * SQ + row) * EIGHTHS
    if SHORT:
        number = number.to(gl.uint32)
    return number


@gluon.jit
def dropped(w, seed, limit, numbers, start):
    """w [queries, keys] with 0 where dropout drops. `numbers`: as `eighths` gives them; `start`: the first key, a multiple of 8."""
    M: gl.constexpr = w.shape[0]
    N: gl.constexpr = w.shape[1]
    L: gl.constexpr = w.type.layout
    a, b = w.reshape([M, N // 2, 2]).split()
    PAIRS: gl.constexpr = a.type.layout
    pair = gl.arange(0, N // 2, gl.SliceLayout(0, PAIRS))
    eighth = gl.convert_layout(numbers, gl.SliceLayout(1, PAIRS), assert_trivial=True)[:, None] + (start // 8 + pair // 4)[None, :]
    word = _word(_state(seed, eighth), (pair & 3)[None, :])
    cut = gl.full((), limit, gl.int32).to(gl.uint32, bitcast=True) << 16  # compares the upper 16 bits; the lower ones do not matter
    a = gl.where((word << 16) >= cut, a, 0.0)
    b = gl.where(word >= cut, b, 0.0)
    return gl.convert_layout(gl.join(a, b).reshape([M, N]), L, assert_trivial=True)


@gluon.jit
def kept_keys(like, seed, limit, bh, row, first_key, SQ, EIGHTHS, SHORT: gl.constexpr):
    """[64 keys, queries], in the layout of `like`: which dropout keeps, from query `row` and key `first_key` on, a multiple of 8.

    Eight lanes have the eight keys of a state, for the same queries. So the bits of 8 keys and the 4 queries of 16 that a lane has become one
    word, which is computed once and goes through shared memory. Dimensions: 8 keys, key, 16 queries, and of a query 8, 2 and 1 of those."""
    N: gl.constexpr = like.shape[1] // 16
    ONCE: gl.constexpr = gl.BlockedLayout([1, 1, 2, 1, 2], [8 // N, N, 1, 4, 1], [4, 1, 1, 1, 1], [4, 3, 2, 1, 0])
    PARTED: gl.constexpr = like.reshape([8, 8, N, 2, 4, 2]).type.layout
    WORDS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, gl.SliceLayout(5, PARTED)))
    a = gl.arange(0, 2)[None, None, :, None, None]
    c = gl.arange(0, 2)[None, None, None, None, :]
    query = 16 * gl.arange(0, N)[None, :, None, None, None] + 8 * a + 2 * gl.arange(0, 4)[None, None, None, :, None] + c
    block = first_key // 8 + gl.arange(0, 8)[:, None, None, None, None]
    state = _state(seed, gl.set_auto_layout(eighths(bh, row + query, SQ, EIGHTHS, SHORT) + block, ONCE))
    cut = gl.full((), limit, gl.int32).to(gl.uint32, bitcast=True) << 16
    bits = gl.zeros_like(state)
    for pair in gl.static_range(4):
        word = _word(state, gl.to_tensor(pair))
        bits |= ((word << 16) >= cut).to(gl.uint32) << (2 * pair)
        bits |= (word >= cut).to(gl.uint32) << (2 * pair + 1)
    bits = gl.sum(gl.sum(bits << (16 * a + 8 * c).to(gl.uint32), 4), 2)
    bits = gl.convert_layout(bits, WORDS).expand_dims(1).expand_dims(3).expand_dims(5)
    at = gl.arange(0, 8)[None, :, None, None, None, None] + 16 * gl.arange(0, 2)[None, None, None, :, None, None]
    at += 8 * gl.arange(0, 2)[None, None, None, None, None, :]
    keep = ((gl.zeros([8, 8, N, 2, 4, 2], gl.uint32, PARTED) + bits >> at.to(gl.uint32)) & 1) != 0
    return gl.convert_layout(keep.reshape(like.shape), like.type.layout, assert_trivial=True)


@gluon.jit
def marked(p, keep):
    """Weights, the dropped ones by their sign: no register holds more."""
    return gl.where(keep, p, -p)


@gluon.jit
def is_dropped(p):
    return p.to(gl.int32, bitcast=True) < 0
