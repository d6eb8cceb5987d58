"""The random bits of a seed and an element's index in Triton. Definition: rooftop/formats/random_bits.py"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix(h):  # type: ignore[no-untyped-def]
    h = h ^ (h >> 16)
    h = h * tl.full((), 0x85EBCA6B, tl.uint32)
    h = h ^ (h >> 13)
    h = h * tl.full((), 0xC2B2AE35, tl.uint32)
    return h ^ (h >> 16)


@triton.jit
def random_bits(seed, index):  # type: ignore[no-untyped-def]
    """uint32 random bits; `seed` a 32-bit number, `index` int64, or uint32 if all elements are below 2^32, which saves the high half."""
    key = tl.full((), seed, tl.int32).to(tl.uint32, bitcast=True)
    first = _mix(index.to(tl.uint32) ^ (key * tl.full((), 0x9E3779B9, tl.uint32)))
    if index.dtype == tl.int64:
        key += (index >> 32).to(tl.uint32) * tl.full((), 0x7FEB352D, tl.uint32)
    return _mix(first ^ key)


@triton.jit
def kept(seed, row, column, C, THRESHOLD: tl.constexpr, SHORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether dropout keeps element [row, column] of C columns (row int64). THRESHOLD: rooftop/formats/random_bits.py. SHORT: at most 2^32
    elements."""
    if SHORT:
        return random_bits(seed, (row * C).to(tl.uint32) + column.to(tl.uint32)) >= tl.full((), THRESHOLD, tl.uint32)
    return random_bits(seed, row * C + column) >= tl.full((), THRESHOLD, tl.uint32)


@triton.jit
def random_halves(seed, index):  # type: ignore[no-untyped-def]
    """16 random bits of an element, for rounding: uint32 below 2^16; `seed` a 32-bit number, `index` int64."""
    key = tl.full((), seed, tl.int32).to(tl.uint32, bitcast=True)
    block = index >> 3
    state = _mix(block.to(tl.uint32) ^ (key * tl.full((), 0x9E3779B9, tl.uint32))) ^ (
        key + (block >> 32).to(tl.uint32) * tl.full((), 0x7FEB352D, tl.uint32)
    )
    pair = (index >> 1) & 3
    first = tl.where(pair == 0, tl.full((), 0x9E3779B9, tl.uint32), tl.full((), 0x85EBCA6B, tl.uint32))
    factor = tl.where(pair < 2, first, tl.where(pair == 2, tl.full((), 0xC2B2AE35, tl.uint32), tl.full((), 0x7FEB352D, tl.uint32)))
    word = tl.umulhi(state, factor) ^ (state * factor)
    return (word >> ((index & 1) * 16).to(tl.uint32)) & 0xFFFF
