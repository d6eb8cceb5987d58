"""gelu by tanh and its slope for a gated unit, which multiplies them by values of any size.

For negative x they are 0, as x (1 + tanh z) / 2 in float32, where tanh z rounds to -1: an infinite value times it is NaN. The sigmoid
alone, of rooftop/kernels/_device/activations.py, is 0 only where exp overflows, and has the product infinite between."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.kernels._device.activations import TANH_CUBE, TANH_SCALE, sigmoid

LEAST = tl.constexpr(-18.021826694558577)  # of 2 z: there 1 + tanh z is 2^-25, half of float32's step below 1


@triton.jit
def gelu_tanh_or_zero(x):  # type: ignore[no-untyped-def]
    z = TANH_SCALE * (x + TANH_CUBE * x * x * x)
    return x * tl.where(z < LEAST, 0.0, sigmoid(z))


@triton.jit
def gelu_tanh_slope_or_zero(x):  # type: ignore[no-untyped-def]
    """s + x s (1 - s) (2 z)' with s = sigmoid(2 z); from e = exp(-|2 z|), so that 1 - s keeps its digits."""
    z = TANH_SCALE * (x + TANH_CUBE * x * x * x)
    e = tl.where(z < LEAST, 0.0, tl.exp(-tl.abs(z)))
    r = 1 / (1 + e)
    return tl.where(z < 0, e, 1) * r + x * (e * r * r) * (TANH_SCALE * (1 + 3 * TANH_CUBE * x * x))
