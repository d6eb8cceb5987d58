"""What each operation of Triton's IR computes on the CPU: the builder that ``interpret`` puts in the place of Triton's own.

Triton's interpreter keeps bf16 and fp8 as raw integers and computes on these. Here they are ml_dtypes arrays, so that NumPy's functions
give every operation in its own precision, rounded to nearest even. What a GPU does was read from the PTX that Triton 3.6 writes for
sm_90 and from NVIDIA's PTX ISA 8.7 (cvt, min, max, mma); it is said at each function where it is not plain IEEE arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from rooftop.lab.interpret_memory import Array, DeviceAssert, Memory, NotSimulated, OutOfBounds

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


def dot(a: Array, b: Array, d: Array, truncate: bool) -> Array:
    """d + a @ b as tl.dot: products and sums in the accumulator's precision, f32 for 16-bit accumulators, modulo 2**32 for int32."""
    if d.dtype.kind == "i":
        whole = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)  # exact: products of at most 2**16, K < 2**37
        return (whole + d).astype(d.dtype)
    work = np.dtype(np.float64 if d.dtype == np.float64 else np.float32)
    if truncate and a.dtype == np.float32:
        a, b = tf32(np.ascontiguousarray(a)), tf32(np.ascontiguousarray(b))
    return to_float(np.matmul(a.astype(work), b.astype(work)) + d.astype(work), d.dtype)


def _torch(name: str) -> Callable[[Array], Array]:
    def apply(x: Array) -> Array:
        import torch

        return np.asarray(getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy())

    return apply


def _away(x: Array) -> Array:
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
    "round": _away,
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


ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "ADD": np.add,
    "FADD": np.add,
    "AND": np.bitwise_and,
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "MIN": np.minimum,
    "UMIN": np.minimum,
    "MAX": np.maximum,
    "UMAX": np.maximum,
    "XCHG": lambda old, new: new,
}


class Builder:
    """Operations on handles (a NumPy array and a Triton type). Mixed in before Triton's ``InterpreterBuilder``, whose other operations
    only move data and are right as they are. A scalar's array has shape (1,)."""

    def __init__(self, triton: Any, memory: Memory, poison: bool) -> None:
        """``triton``: the module ``triton.runtime.interpreter``. ``poison``: what masked lanes of a load without ``other`` hold, which
        Triton leaves undefined, is NaN, or 0x7f in every byte of an integer; else 0, as Triton 3.6 to 3.9 happen to compile it."""
        super().__init__()
        self.interpreter, self.tl, self.memory, self.poison = triton, triton.tl, memory, poison
        self.plain_numpy_type = triton._get_np_dtype
        self.grid_dim = self.grid_idx = (1, 1, 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("create_", "get_", "new_")):
            raise NotSimulated(f"the operation {name} is not simulated")
        raise AttributeError(name)

    def handle(self, data: Array, dtype: Any) -> Any:
        return self.interpreter.TensorHandle(data, dtype)

    def numpy_type(self, dtype: Any) -> np.dtype[Any]:
        """The NumPy dtype of a Triton type's elements; pointers are uint64."""
        small = SMALL.get(dtype.scalar.name)
        return small if small is not None else self.plain_numpy_type(dtype)

    # memory

    def _lanes(self, pointers: Any, mask: Any) -> tuple[Array, Array]:
        """Addresses (uint64) and which of them are active, in one shape. Masks are handles, or arrays in 3.6's descriptor loads."""
        on = np.ones((1,), bool) if mask is None else np.asarray(mask.data, bool)
        addresses, active = np.broadcast_arrays(pointers.data, on)
        return addresses, active

    def _undefined(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        fill = 0 if not self.poison else 0xFF if is_float(dtype) else 0x01 if dtype.kind == "b" else 0x7F
        return np.full((math.prod(shape) * dtype.itemsize,), fill, np.uint8).view(dtype).reshape(shape)

    def create_load(self, pointers: Any, *policy: Any, **hints: Any) -> Any:
        return self.create_masked_load(pointers, None, None)

    def create_store(self, pointers: Any, value: Any, *policy: Any, **hints: Any) -> None:
        self.create_masked_store(pointers, value, None)

    def create_masked_load(self, pointers: Any, mask: Any, other: Any, *policy: Any, **hints: Any) -> Any:
        kind = pointers.get_element_ty()
        dtype = self.numpy_type(kind)
        addresses, on = self._lanes(pointers, mask)
        shape = addresses.shape
        out = self._undefined(shape, dtype) if other is None else np.broadcast_to(other.data, shape).astype(dtype)
        values = np.empty(int(on.sum()), dtype)
        for region, lanes, index in self.memory.locate(addresses[on], dtype.itemsize, "load"):
            values[lanes] = region.cells(dtype)[index]
        out[on] = values
        return self.handle(out, kind)

    def create_masked_store(self, pointers: Any, value: Any, mask: Any, *policy: Any, **hints: Any) -> None:
        dtype = self.numpy_type(pointers.get_element_ty())
        addresses, on = self._lanes(pointers, mask)
        values = np.broadcast_to(value.data, addresses.shape)[on].astype(dtype, copy=False)
        for region, lanes, index in self.memory.locate(addresses[on], dtype.itemsize, "store"):
            region.cells(dtype)[index] = values[lanes]

    def _update(self, pointers: Any, mask: Any, value: Any, new: Callable[[Any, Any, Any], Any]) -> Any:
        """One atomic access per active lane, in order: memory becomes ``new(old, lane's value, lane)``; returns what stood there."""
        addresses, on = self._lanes(pointers, mask)
        values = np.broadcast_to(value.data, addresses.shape)[on]
        old = np.empty_like(values)
        for region, lanes, index in self.memory.locate(addresses[on], values.itemsize, "atomic"):
            cells, places = region.cells(values.dtype), np.arange(values.size)[lanes]
            if np.unique(index).size == index.size:
                old[places] = cells[index]
                cells[index] = new(old[places], values[places], places)
            else:
                for cell, lane in zip(index, places, strict=True):
                    old[lane] = cells[cell]
                    cells[cell] = new(old[lane], values[lane], lane)
        out = self._undefined(addresses.shape, values.dtype)
        out[on] = old
        return self.handle(out, value.dtype.scalar)

    def create_atomic_rmw(self, op: Any, pointers: Any, value: Any, mask: Any, *order: Any) -> Any:
        function = ATOMICS[str(op).rsplit(".", 1)[-1]]
        return self._update(pointers, mask, value, lambda old, new, lane: function(old, new))

    def create_atomic_cas(self, pointers: Any, compare: Any, value: Any, *order: Any) -> Any:
        wanted = np.broadcast_to(compare.data, pointers.data.shape).reshape(-1)
        return self._update(pointers, None, value, lambda old, new, lane: np.where(old == wanted[lane], new, old))

    def create_descriptor_reduce(self, op: Any, descriptor: Any, value: Any, offsets: Any) -> None:
        pointers, mask = descriptor.materialize_pointers(offsets)
        self.create_atomic_rmw(op, pointers, value, mask)

    # casts

    def create_fp_to_fp(self, source: Any, to: Any, rounding: Any) -> Any:
        dtype = self.numpy_type(to)
        toward_zero = rounding is not None and str(rounding).endswith("RTZ")
        return self.handle(to_float(source.data, dtype, toward_zero), to.scalar)

    def cast_impl(self, source: Any, to: Any) -> Any:
        dtype, data = self.numpy_type(to), source.data
        if is_float(dtype):
            data = to_float(data, dtype)
        else:
            data = to_int(data, dtype) if is_float(data.dtype) else data.astype(dtype)
        return self.handle(data, to.scalar)

    def get_bf16(self, value: float) -> Any:
        return self.handle(to_float(np.array([value], np.float64), BF16), self.tl.bfloat16)

    def get_all_ones_value(self, kind: Any) -> Any:
        return self.handle(np.full(1, -1, np.int64).astype(self.numpy_type(kind)), kind.scalar)

    # arithmetic

    def _arithmetic(self, op: Callable[..., Any], *operands: Any) -> Any:
        """``op`` on the operands' arrays; the result has the last operand's type, or is boolean."""
        arrays = [operand.data for operand in operands]
        kind = operands[-1].dtype.scalar
        if any(a.dtype in FP8_MAX for a in arrays):
            raise NotSimulated(f"arithmetic or comparison on {kind}: Triton compiles none for NVIDIA GPUs; cast to a wider type first")
        if arrays[0].dtype == bool and op in (np.add, np.subtract, np.multiply):
            out = (op(arrays[0].astype(np.int8), arrays[1].astype(np.int8)) & 1).astype(bool)  # int1 wraps modulo 2
        else:
            out = np.asarray(op(*arrays))
        if out.dtype == bool:
            return self.handle(out, self.tl.int1)
        return self.handle(out.astype(self.numpy_type(kind), copy=False), kind)

    def binary_op(self, lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        return self._arithmetic(op, lhs, rhs)

    def unary_op(self, arg: Any, op: Callable[..., Any]) -> Any:
        return self._arithmetic(op, arg)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self._arithmetic(smaller, lhs, rhs)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self._arithmetic(larger, lhs, rhs)

    def create_clampf(self, x: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        if str(propagate_nans).endswith("NONE"):
            return self._arithmetic(lambda a, b, c: smaller(larger(a, b), c), x, low, high)
        return self._arithmetic(lambda a, b, c: np.minimum(np.maximum(a, b), c), x, low, high)

    def create_select(self, condition: Any, lhs: Any, rhs: Any) -> Any:
        return self.handle(np.where(condition.data, lhs.data, rhs.data), rhs.dtype.scalar)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        return self._arithmetic(fma, x, y, z)

    def create_idiv(self, lhs: Any, rhs: Any) -> Any:
        return self._arithmetic(lambda a, b: (a - np.fmod(a, b)) // b, lhs, rhs)

    def create_ashr(self, lhs: Any, rhs: Any) -> Any:
        signed = np.dtype(f"i{lhs.data.dtype.itemsize}")
        return self._arithmetic(lambda a, b: (a.view(signed) >> b.astype(signed)).view(a.dtype), lhs, rhs)

    def create_umulhi(self, lhs: Any, rhs: Any) -> Any:
        bits = 8 * lhs.data.dtype.itemsize
        high = np.vectorize(lambda a, b: (int(a) * int(b)) >> bits, otypes=[UNSIGNED[bits // 8]])
        return self._arithmetic(lambda a, b: high(*(v.view(UNSIGNED[bits // 8]) for v in (a, b))).view(a.dtype), lhs, rhs)

    def create_erf(self, arg: Any) -> Any:
        return self._arithmetic(lambda x: libdevice("erf", [x], x.dtype), arg)

    def create_dot(self, a: Any, b: Any, d: Any, precision: Any, *limits: Any) -> Any:
        out = dot(a.data, b.data, d.data, str(precision).endswith("TF32"))
        return self.handle(out, d.dtype.scalar)

    def create_dot_scaled(self, *operands: Any) -> Any:
        raise NotSimulated("tl.dot_scaled is not simulated")

    def create_extern_elementwise(self, lib: str, path: str, symbol: str, args: Any, to: Any, pure: bool) -> Any:
        return self.handle(libdevice(symbol, [a.data for a in args], self.numpy_type(to)), to.scalar)

    # other

    def create_histogram(self, data: Any, bins: int, mask: Any) -> Any:
        values = data.data
        kept = (values >= 0) & (values < bins) & (True if mask is None else mask.data)
        return self.handle(np.bincount(values[kept].astype(np.int64), minlength=bins).astype(np.int32), self.tl.int32)

    def create_gather(self, source: Any, indices: Any, axis: int) -> Any:
        index, extent = indices.data, source.data.shape[axis]
        if ((index < 0) | (index >= extent)).any():
            raise OutOfBounds(f"tl.gather wants indices {index.min()} to {index.max()} of axis {axis}, which holds 0 to {extent - 1}")
        return self.handle(np.take_along_axis(source.data, index, axis=axis), source.dtype.scalar)

    def create_inline_asm(self, asm: str, *rest: Any) -> Any:
        raise NotSimulated(f"not simulated: inline assembly {asm.strip()!r}")

    def create_assert(self, condition: Any, message: str) -> None:
        if not condition.data.all():
            raise DeviceAssert(f"device_assert: {message}" if message else "device_assert")

    def create_assume(self, condition: Any) -> None:
        if not condition.data.all():
            raise DeviceAssert("what tl.assume states is false")
