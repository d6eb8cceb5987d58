"""16 random bits of an element in Triton, for rounding. Definition: rooftop/ops/_random.py; in CUDA C++: random.cuh."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.kernels._device.random import _mix


@triton.jit
def random_halves(seed, index):  # type: ignore[no-untyped-def]
    """uint32 below 2^16; `seed` a 32-bit number, `index` int64."""
    key = tl.full((), seed, tl.int32).to(tl.uint32, bitcast=True)
    block = index >> 3
    state = _mix(block.to(tl.uint32) ^ (key * tl.full((), 0x9E3779B9, tl.uint32))) ^ (key + (block >> 32).to(tl.uint32) * tl.full((), 0x7FEB352D, tl.uint32))
    pair = (index >> 1) & 3
    first = tl.where(pair == 0, tl.full((), 0x9E3779B9, tl.uint32), tl.full((), 0x85EBCA6B, tl.uint32))
    factor = tl.where(pair < 2, first, tl.where(pair == 2, tl.full((), 0xC2B2AE35, tl.uint32), tl.full((), 0x7FEB352D, tl.uint32)))
    word = tl.umulhi(state, factor) ^ (state * factor)
    return (word >> ((index & 1) * 16).to(tl.uint32)) & 0xFFFF
