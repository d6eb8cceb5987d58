"""Float32 where a TPU's vector unit falls short of IEEE: subnormal numbers, which it takes for zero, and quotients, which need not be rounded to nearest.

Kernels take the long way in strips that hold a row of tiny values alone: elsewhere a subnormal number is below 2^-26 of its row's largest."""

from __future__ import annotations

from typing import Any

from rooftop.kernels._device.tpu import jnp, lax

TINY = 2.0**-60  # a row whose largest value is below this is worked on 2^64 times larger
RAISE = 2.0**64


def raised(x: Any) -> Any:
    """x · 2^64 exactly, of float32 below 2^63, subnormal ones included: their bits count as a whole number."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    size = (bits & 0x7FFFFF).astype(jnp.float32) * (RAISE * 2.0**-149)
    return jnp.where((bits & 0x7F800000) == 0, jnp.where(bits < 0, -size, size), x * RAISE)


def lowered(y: Any) -> Any:
    """y · 2^-64 rounded once, where it is subnormal too."""
    size = jnp.abs(y)
    bits = jnp.round(jnp.minimum(size, RAISE * 2.0**-126) * (2.0**149 / RAISE)).astype(jnp.int32)
    bits = bits | (lax.bitcast_convert_type(y, jnp.int32) & jnp.int32(-(2**31)))
    return jnp.where(size < RAISE * 2.0**-126, lax.bitcast_convert_type(bits, jnp.float32), y / RAISE)


def quotient(x: Any, y: Any) -> Any:
    """x / y rounded to nearest, from a division that errs by a bit or two: what is left of x is exact in four products of 12 bits by 12 bits each
    (Dekker 1971, "A floating-point technique for extending the available precision"), whether or not they are fused with the differences."""
    q = x / y
    (qh, ql), (yh, yl) = _halved(q), _halved(y)
    left = (((x - qh * yh) - qh * yl) - ql * yh) - ql * yl
    return jnp.where(jnp.abs(left) < jnp.inf, q + left / y, q)


def _halved(x: Any) -> tuple[Any, Any]:
    """Its upper 12 bits, and the rest."""
    x = jnp.asarray(x, jnp.float32)
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-4096), jnp.float32)
    return high, x - high
