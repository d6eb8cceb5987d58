"""What each operation of Triton's IR does on the CPU: the builder that ``interpret`` puts in the place of Triton's own.

Its numbers are those of ``interpret_numbers``, its memory is that of ``interpret_memory``."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np

from rooftop.lab.interpret.memory import Array, DeviceAssert, Memory, NotSimulated, OutOfBounds
from rooftop.lab.interpret.numbers import BF16, FP8_MAX, SMALL, UNSIGNED, dot, fma, is_float, larger, libdevice, smaller, to_float, to_int
from rooftop.lab.interpret.races import Races

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

UINTS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(values: Array) -> Array:
    """The same as unsigned integers, so that a NaN equals itself and -0.0 is not 0.0."""
    return np.ascontiguousarray(values).view(UINTS[values.itemsize])


class _Results:
    """Of an operation with several results."""

    def __init__(self, results: list[Any]) -> None:
        self.get_result = results.__getitem__


class Builder:
    """Operations on handles (a NumPy array and a Triton type). Mixed in before Triton's ``InterpreterBuilder``, whose other operations
    only move data and are right as they are. A scalar's array has shape (1,)."""

    def __init__(self, triton: Any, memory: Memory, races: Races, poison: bool) -> None:
        """``triton``: the module ``triton.runtime.interpreter``. ``poison``: what masked lanes of a load without ``other`` hold, which
        Triton leaves undefined, is NaN, or 0x7f in every byte of an integer; else 0, as Triton 3.6 to 3.9 happen to compile it."""
        super().__init__()
        self.interpreter, self.tl, self.memory, self.races, self.poison = triton, triton.tl, memory, races, poison
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
        return self.create_masked_load(pointers, None, None, *policy, **hints)

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
            self.races.loaded(region, index, dtype.itemsize, volatile=True in policy)  # the only flag among a load's policies
            values[lanes] = region.cells(dtype)[index]
        out[on] = values
        return self.handle(out, kind)

    def create_masked_store(self, pointers: Any, value: Any, mask: Any, *policy: Any, **hints: Any) -> None:
        dtype = self.numpy_type(pointers.get_element_ty())
        addresses, on = self._lanes(pointers, mask)
        values = np.broadcast_to(value.data, addresses.shape)[on].astype(dtype, copy=False)
        for region, lanes, index in self.memory.locate(addresses[on], dtype.itemsize, "store"):
            cells, new = region.cells(dtype), values[lanes]
            self.races.stored(region, index, dtype.itemsize, _bits(cells[index]) != _bits(new))
            cells[index] = new

    def _update(self, pointers: Any, mask: Any, value: Any, new: Callable[[Any, Any, Any], Any], order: Any) -> Any:
        """One atomic access per active lane, in order: memory becomes ``new(old, lane's value, lane)``; returns what stood there."""
        addresses, on = self._lanes(pointers, mask)
        values = np.broadcast_to(value.data, addresses.shape)[on]
        old = np.empty_like(values)
        for region, lanes, index in self.memory.locate(addresses[on], values.itemsize, "atomic"):
            self.races.updated(region, index, values.itemsize, " ".join(map(str, order)))
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
        return self._update(pointers, mask, value, lambda old, new, lane: function(old, new), order)

    def create_atomic_cas(self, pointers: Any, compare: Any, value: Any, *order: Any) -> Any:
        wanted = np.broadcast_to(compare.data, pointers.data.shape).reshape(-1)
        return self._update(pointers, None, value, lambda old, new, lane: np.where(old == wanted[lane], new, old), order)

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

    def create_inline_asm(self, asm: str, constraints: str, args: Any, types: Any, pure: bool, pack: int) -> Any:
        """That of attention's decode kernel: of words of two codes of e4m3 the even codes and the odd ones."""
        if asm != import_module("rooftop.kernels.attention.attention__decode__triton").PAIRS:
            raise NotSimulated(f"not simulated: inline assembly {asm.strip()!r}")
        codes = np.ascontiguousarray(args[0].data).astype(np.uint16)
        even, odd = (part.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float16) for part in (codes & 255, codes >> 8))
        return _Results([self.handle(x, to.scalar) for x, to in zip((even, odd), types, strict=True)])

    def create_assert(self, condition: Any, message: str) -> None:
        if not condition.data.all():
            raise DeviceAssert(f"device_assert: {message}" if message else "device_assert")

    def create_assume(self, condition: Any) -> None:
        if not condition.data.all():
            raise DeviceAssert("what tl.assume states is false")
