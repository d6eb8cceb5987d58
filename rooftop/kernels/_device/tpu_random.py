"""The random bits of a seed and an element's index on a TPU: 16 an element, for rounding. Definition: rooftop/ops/_random.py

The vector unit multiplies 32 by 32 bits to the low 32 only; the high half of a product is computed from four products of 16 bits."""

from __future__ import annotations

from typing import Any

from rooftop.kernels._device.tpu import jnp

FACTORS = (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35, 0x7FEB352D)


def _mix(h: Any) -> Any:
    h = h ^ (h >> 16)
    h = h * jnp.uint32(0x85EBCA6B)
    h = h ^ (h >> 13)
    h = h * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def _folded(a: Any, b: Any) -> Any:
    """The low 32 bits of a * b xor the high ones."""
    low, high = (lambda x: x & jnp.uint32(0xFFFF)), (lambda x: x >> 16)
    middle = low(a) * high(b) + high(low(a) * low(b))  # below 2^32
    other = high(a) * low(b) + low(middle)
    return (a * b) ^ (high(a) * high(b) + high(middle) + high(other))


def halves(seed: Any, index: Any) -> Any:
    """uint32 of 0 to 65535. `seed`: uint32; `index`: uint32, of fewer than 2^32 elements."""
    state = _mix((index >> 3) ^ (seed * jnp.uint32(FACTORS[0]))) ^ seed
    turn = (index >> 1) & jnp.uint32(3)
    first, second, third, fourth = (jnp.uint32(f) for f in FACTORS)
    factor = jnp.where(turn == 0, first, jnp.where(turn == 1, second, jnp.where(turn == 2, third, fourth)))
    return (_folded(state, factor) >> ((index & jnp.uint32(1)) * jnp.uint32(16))) & jnp.uint32(0xFFFF)
