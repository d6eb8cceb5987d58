"""Arithmetic as the GPU does it, on NumPy arrays: conversions, minima, fused multiply-add, products of matrices, libdevice.

Triton's interpreter keeps bf16 and fp8 as raw integers and computes on these. Here they are ml_dtypes arrays, so that NumPy's functions
give every operation in its own precision, rounded to nearest even. What a GPU does was read from the PTX that Triton 3.6 writes for
sm_90 and from NVIDIA's PTX ISA 8.7 (cvt, min, max, mma); it is said at each function where it is not plain IEEE arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from rooftop.lab.interpret.memory import Array, NotSimulated

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8_MAX = {  # largest finite value; no arithmetic on these: Triton compiles none
    np.dtype(ml_dtypes.float8_e4m3fn): 448.0,
    np.dtype(ml_dtypes.float8_e5m2): 57344.0,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 240.0,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 57344.0,
}
SMALL = {
    "bf16": BF16,
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == BF16 or dtype in FP8_MAX


def _odd(wide: Array, narrow: np.dtype[Any]) -> Array:
    """f64 to f32 rounded to odd: where inexact, towards zero with the last bit set. Rounding this to a type at least two bits narrower
    gives what rounding the f64 at once would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008)."""
    near = wide.astype(narrow)
    bits = near.view(UNSIGNED[narrow.itemsize])
    back = near.astype(wide.dtype)
    bits[np.abs(back) > np.abs(wide)] -= 1
    bits[(back != wide) & ~np.isnan(wide)] |= 1
    return near


def to_float(data: Array, to: np.dtype[Any], toward_zero: bool = False) -> Array:
    """Any numbers to a floating dtype: one rounding, to nearest even or towards zero. To fp8 values beyond the largest finite one,
    infinities too, become it, and NaN stays NaN (cvt.rn.satfinite; torch does so for e4m3 but overflows to infinity for e5m2)."""
    if data.dtype == to:
        return data
    if not is_float(data.dtype):
        data = data.astype(np.float64)  # exact to 53 bits; cvt.rn.bf16.s32 rounds once
    elif data.dtype == np.float16 or data.dtype == BF16 or data.dtype in FP8_MAX:
        data = data.astype(np.float32)  # exact
    wide = _odd(data, np.dtype(np.float32)) if data.dtype == np.float64 and to in SMALL.values() else data
    if to in FP8_MAX:
        wide = np.clip(wide, -FP8_MAX[to], FP8_MAX[to])
    out = wide.astype(to)
    if toward_zero:
        bits = out.view(UNSIGNED[to.itemsize])
        bits[np.abs(out.astype(np.float64)) > np.abs(data.astype(np.float64))] -= 1
    return out


def to_int(data: Array, to: np.dtype[Any]) -> Array:
    """Floating numbers to integers: towards zero, clamped to the range, NaN to 0 (cvt.rzi; 8-bit results are the low byte of a 16-bit
    one, as Triton compiles them)."""
    wide = to if to.itemsize > 1 else np.dtype(np.int16 if to.kind == "i" else np.uint16)
    low, high = np.iinfo(wide).min, np.iinfo(wide).max
    data = data.astype(np.float64)
    inside = (data > low) & (data < high)
    whole = np.where(inside, data, 0.0).astype(wide)
    out = np.where(data >= high, np.asarray(high, wide), np.where(data <= low, np.asarray(low, wide), whole))
    return out.astype(to)


def fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z with one rounding for dtypes of up to 32 bits (f64: two roundings)."""
    if z.dtype == np.float64:
        return np.asarray(x * y + z)
    product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)  # exact
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)  # Knuth's two-sum: total + error is exact
    even = (total.view(np.int64) & 1) == 0
    total = np.where((error != 0) & even & np.isfinite(total), np.nextafter(total, np.copysign(np.inf, error)), total)  # to odd
    return to_float(total, z.dtype)


def smaller(a: Array, b: Array) -> Array:
    """min.f32: NaN only where both are, and -0 below +0."""
    out = np.fmin(a, b)
    return np.where((a == 0) & (b == 0), -((-a) + (-b)), out) if is_float(out.dtype) else out


def larger(a: Array, b: Array) -> Array:
    """max.f32: NaN only where both are, and +0 above -0."""
    out = np.fmax(a, b)
    return np.where((a == 0) & (b == 0), a + b, out) if is_float(out.dtype) else out


def tf32(data: Array) -> Array:
    """f32 as the tensor cores read it: Triton passes all 32 bits and the hardware ignores the lowest 13."""
    return (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


_one_order = False


@contextmanager
def one_order() -> Iterator[None]:
    """tl.dot sums in the order of K at every place of a tile, as tensor cores do at each in theirs. A BLAS sums rows at the edge of a block in another."""
    global _one_order
    before, _one_order = _one_order, True
    try:
        yield
    finally:
        _one_order = before


def dot(a: Array, b: Array, d: Array, truncate: bool) -> Array:
    """d + a @ b as tl.dot: products and sums in the accumulator's precision, f32 for 16-bit accumulators, modulo 2**32 for int32."""
    if d.dtype.kind == "i":
        whole = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)  # exact: products of at most 2**16, K < 2**37
        return (whole + d).astype(d.dtype)
    work = np.dtype(np.float64 if d.dtype == np.float64 else np.float32)
    if truncate and a.dtype == np.float32:
        a, b = tf32(np.ascontiguousarray(a)), tf32(np.ascontiguousarray(b))
    a, b, total = a.astype(work), b.astype(work), d.astype(work)
    if not _one_order:
        return to_float(np.matmul(a, b) + total, d.dtype)
    for k in range(a.shape[-1]):
        total = total + a[..., :, k, None] * b[..., None, k, :]
    return to_float(total, d.dtype)


def _torch(name: str) -> Callable[[Array], Array]:
    def apply(x: Array) -> Array:
        import torch

        return np.asarray(getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy())

    return apply


def _round_half_away(x: Array) -> Array:
    return np.asarray(np.copysign(np.floor(np.abs(x) + 0.5), x))


_NUMPY = "tanh sinh cosh tan sin cos exp exp2 expm1 log log2 log10 log1p sqrt cbrt floor ceil trunc rint fmod copysign hypot"
_NUMPY += " isnan isinf isfinite signbit fmin fmax nextafter ldexp"
_ARCS = "asin acos atan asinh acosh atanh"
_TORCH = "erf erfc erfinv erfcx log_ndtr i0 i1"
LIBDEVICE: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _NUMPY.split()},
    **{name: getattr(np, "arc" + name[1:]) for name in _ARCS.split()},
    **{name: _torch(name) for name in _TORCH.split()},
    "fabs": np.abs,
    "pow": np.power,
    "powi": np.power,
    "atan2": np.arctan2,
    "nearbyint": np.rint,
    "round": _round_half_away,
    "finite": np.isfinite,
    "lgamma": _torch("gammaln"),
    "normcdf": _torch("ndtr"),
    "normcdfinv": _torch("ndtri"),
    "cyl_bessel_i0": _torch("i0"),
    "cyl_bessel_i1": _torch("i1"),
    "tgamma": np.vectorize(math.gamma, otypes=[np.float64]),
    "exp10": lambda x: np.power(10.0, x),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2.0)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2.0)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "remainder": np.vectorize(lambda x, y: math.remainder(x, y) if math.isfinite(x) and y else math.nan, otypes=[np.float64]),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fdim": lambda x, y: np.fmax(x - y, 0.0),
    "fdivide": np.divide,
    "saturate": lambda x: np.nan_to_num(np.clip(x, 0.0, 1.0)),
}


def libdevice(symbol: str, args: list[Array], to: np.dtype[Any]) -> Array:
    """``__nv_<name>``: computed in f64 and rounded once to ``to``. CUDA's own are within a few units in the last place of that, and
    the ``fast_`` ones within more."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    if name in ("fma", "fmaf", "fma_rn", "fmaf_rn"):
        return fma(*args)
    if name.startswith(("popc", "clz")):
        bits = np.unpackbits(args[0].astype(args[0].dtype.newbyteorder(">"))[..., None].view(np.uint8), axis=-1)
        first = np.where(bits.any(-1), bits.argmax(-1), bits.shape[-1])
        return np.asarray(bits.sum(-1) if name.startswith("popc") else first).astype(to)
    if name in ("abs", "llabs"):
        return np.abs(args[0]).astype(to)
    names = [name, name.removesuffix("f"), name.removesuffix("d"), name.removesuffix("_rn")[1:]]  # __nv_tanhf, _isnand, _fsqrt_rn
    function = next((LIBDEVICE[n] for n in names if n in LIBDEVICE), None)
    if function is None:
        raise NotSimulated(f"libdevice function {symbol} is not simulated; simulated are {', '.join(sorted(LIBDEVICE))}")
    wide = [a.astype(np.float64) if is_float(a.dtype) else a for a in args]
    out = np.asarray(function(*wide))
    return to_float(out, to) if is_float(to) else out.astype(to)
