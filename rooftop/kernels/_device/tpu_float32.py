"""Float32 where a TPU's vector unit is not IEEE: it treats subnormal numbers as zero, and its division need not round to nearest. Kernels
use the slow path only for strips that contain a row of tiny values: elsewhere a subnormal number is below 2^-26 of its row's largest."""

from __future__ import annotations

from typing import Any

from rooftop.kernels._device.tpu import jnp, lax

TINY = 2.0**-60  # a row whose largest value is below this is scaled by 2^64
RAISE = 2.0**64


def raised(x: Any) -> Any:
    """x · 2^64 exactly, for float32 below 2^63, also subnormal: their bits are an integer multiple of 2^-149."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    size = (bits & 0x7FFFFF).astype(jnp.float32) * (RAISE * 2.0**-149)
    return jnp.where((bits & 0x7F800000) == 0, jnp.where(bits < 0, -size, size), x * RAISE)


def lowered(y: Any) -> Any:
    """y · 2^-64 rounded once, also if it is subnormal."""
    size = jnp.abs(y)
    bits = jnp.round(jnp.minimum(size, RAISE * 2.0**-126) * (2.0**149 / RAISE)).astype(jnp.int32)
    bits = bits | (lax.bitcast_convert_type(y, jnp.int32) & jnp.int32(-(2**31)))
    return jnp.where(size < RAISE * 2.0**-126, lax.bitcast_convert_type(bits, jnp.float32), y / RAISE)


def quotient(x: Any, y: Any) -> Any:
    """x / y rounded to nearest, from a division that may be off by a bit or two: the remainder is exact in four products of 12 bits by 12
    bits each (Dekker 1971, "A floating-point technique for extending the available precision"), whether or not they are fused with the
    differences."""
    q = x / y
    (qh, ql), (yh, yl) = _halved(q), _halved(y)
    left = (((x - qh * yh) - qh * yl) - ql * yh) - ql * yl
    return jnp.where(jnp.abs(left) < jnp.inf, q + left / y, q)


def _halved(x: Any) -> tuple[Any, Any]:
    """Its upper 12 bits, and the rest."""
    x = jnp.asarray(x, jnp.float32)
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-4096), jnp.float32)
    return high, x - high
