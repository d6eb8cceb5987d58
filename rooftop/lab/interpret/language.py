"""What a kernel's Python code does between Triton's builtins: assignments, loops, conditions, arguments, reductions.

Mixed into the session of ``interpret``, which has ``tl`` (triton.language), ``builder`` and ``semantic`` (Triton's, on that builder)."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rooftop.lab.interpret.memory import Memory, StaticAssert

MARK = "__rooftop_interpreted__"  # in the globals of every interpreted function


def tensor_of(value: Any) -> Any:
    """The tensor of a tensor or of a TensorDescriptor, else None."""
    if hasattr(value, "data_ptr"):
        return value
    return value.base if hasattr(value, "block_shape") and hasattr(value, "base") else None


def cpu(name: str, tensor: Any) -> Any:
    if getattr(getattr(tensor, "device", None), "type", None) != "cpu" or str(tensor.layout) != "torch.strided":
        raise TypeError(f"argument {name!r} is {getattr(tensor, 'device', type(tensor))}; a strided torch tensor on the CPU is accepted")
    return tensor


def bounds_of(bounds: tuple[Any, ...], step: Any) -> list[int]:
    """The arguments of Python's range for those of tl.range, where ``step`` may be named."""
    given = bounds if step is None else (*((0,) if len(bounds) == 1 else ()), *bounds, step)
    return [int(getattr(b, "value", b)) for b in given]


def truth(tensor: Any) -> bool:
    """Whether a scalar is not 0. Triton's own code asks only whether there is a tensor at all (``if other``): to that the answer is yes."""
    data = tensor.handle.data
    if MARK not in sys._getframe(1).f_globals:
        return True
    if data.size != 1:
        raise TypeError(f"the truth of a block of shape {data.shape}: `if` and `while` take scalars")
    return bool(data.item())


class Language:
    """The language between the builtins, on ``builder``'s arrays."""

    tl: Any
    builder: Any
    semantic: Any
    memory: Memory

    def replacement(self, member: Any) -> Any:
        raise NotImplementedError

    # statements

    def assign(self, value: Any) -> Any:
        """What a variable holds after an assignment: numbers become scalars on the device."""
        if isinstance(value, self.tl.constexpr):
            value = value.value
        return self.semantic.to_tensor(value) if isinstance(value, bool | int | float) else value

    def logical_and(self, *parts: Callable[[], Any]) -> Any:
        return self._logical(parts, False, "logical_and")

    def logical_or(self, *parts: Callable[[], Any]) -> Any:
        return self._logical(parts, True, "logical_or")

    def _logical(self, parts: tuple[Callable[[], Any], ...], deciding: bool, method: str) -> Any:
        """Values known to the compiler decide at once, as Python's do; tensors are combined lane by lane."""
        out: Any = None
        for part in parts:
            value = part()
            if isinstance(value, self.tl.tensor):
                out = getattr(out, method)(value) if isinstance(out, self.tl.tensor) else value
            elif bool(value) is deciding:
                return value
            elif not isinstance(out, self.tl.tensor):
                out = value
        return out

    def logical_not(self, value: Any) -> Any:
        return self.semantic.not_(value) if isinstance(value, self.tl.tensor) else not value

    def check(self, condition: Any, message: Any = "") -> None:
        holds = condition.handle.data.all() if isinstance(condition, self.tl.tensor) else condition
        if not holds:
            raise StaticAssert(f"assertion failed: {message}" if message else "assertion failed")

    def range(self, *bounds: Any, step: Any = None, **hints: Any) -> Iterator[Any]:
        """``range`` and ``tl.range``: scalars of the bounds' type (at least 32 bits), as a loop on the device counts."""
        given = [*bounds, *([] if step is None else [step])]
        kinds = [b.dtype for b in given if isinstance(b, self.tl.tensor)]
        whole = bounds_of(bounds, step)
        wide = any(k.primitive_bitwidth == 64 for k in kinds) or any(not -(2**31) <= w < 2**31 for w in whole)
        dtype = self.tl.int64 if wide else self.tl.int32
        for i in range(*whole):
            yield self.tensor(np.array([i], self.builder.numpy_type(dtype)), dtype)

    def _extreme(self, name: str) -> Callable[..., Any]:
        plain, device = getattr(builtins, name), self.replacement(getattr(self.tl.core, f"builtin_{name}"))
        return lambda *args, **kw: (device if any(isinstance(a, self.tl.tensor) for a in args) else plain)(*args, **kw)

    # tensors

    def tensor(self, data: Any, dtype: Any) -> Any:
        """A Triton tensor; an array of no dimensions, or of shape (1,) from a scalar, is a scalar."""
        block = data.ndim > 0 and data.shape != (1,)
        return self.tl.tensor(self.builder.handle(data.reshape(-1) if not data.ndim else data, dtype), self._type(data, dtype, block))

    def _type(self, data: Any, dtype: Any, block: bool) -> Any:
        return self.tl.block_type(dtype, list(data.shape)) if block else dtype

    def argument(self, parameter: Any, value: Any, readonly: bool) -> Any:
        """What the kernel's function gets for one argument of a launch."""
        if parameter.is_constexpr:
            return value.value if isinstance(value, self.tl.constexpr) else value
        if type(value) is int and value == 1 and not (parameter.do_not_specialize or parameter.annotation_type):
            return value  # Triton compiles an integer of 1 in, so that it is no tensor and has no .to()
        return self._device(parameter.name, value, parameter.annotation_type, readonly)

    def _device(self, name: str, value: Any, annotation: str, readonly: bool) -> Any:
        from triton._utils import canonicalize_dtype

        tl = self.tl
        if isinstance(value, tuple):
            parts = [self._device(f"{name}[{i}]", v, "", readonly) for i, v in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if hasattr(value, "data_ptr"):
            address = self.memory.add(name, cpu(name, value), readonly)
            kind = tl.str_to_ty(f"*{canonicalize_dtype(value.dtype)}", None)
            return self.tensor(np.array([address], np.uint64), kind)
        if tensor_of(value) is not None:
            shape, strides = ([self._device(name, int(n), "", False) for n in s] for s in (value.shape, value.strides[:-1]))
            base, block = self._device(name, value.base, "", readonly), [tl.constexpr(b) for b in value.block_shape]
            made = self.semantic.make_tensor_descriptor(base, shape, [*strides, tl.constexpr(1)], block, padding_option=value.padding)
            if hasattr(value, "round_f32_to_tf32"):
                made.handle.round_f32_to_tf32 = value.round_f32_to_tf32
            return made
        if not isinstance(value, bool | int | float):
            return value
        natural = "u1" if isinstance(value, bool) else "fp32" if isinstance(value, float) else "i32"
        if natural == "i32" and not -(2**31) <= value < 2**31:
            natural = "i64" if value < 2**63 else "u64"
        kind = tl.str_to_ty(annotation or natural, None)
        wide = np.array([value], np.float64 if isinstance(value, float) else np.uint64 if natural == "u64" else np.int64)
        return tl.tensor(self.builder.cast_impl(self.builder.handle(wide, tl.float64), kind), kind)

    # reductions

    def _combine(self, function: Any, left: list[Any], right: list[Any], kinds: list[Any]) -> list[Any]:
        """``function`` on arrays, elementwise; it returns arrays of the same types."""
        blocks = [self.tl.tensor(self.builder.handle(d, k), self._type(d, k, True)) for d, k in zip(left + right, kinds * 2, strict=True)]
        out = function(*blocks)
        parts = list(out) if isinstance(out, tuple | self.tl.tuple) else [out]
        parts = [self.semantic.cast(self.semantic.to_tensor(p), k).handle.data for p, k in zip(parts, kinds, strict=True)]
        return [np.broadcast_to(p, d.shape) for p, d in zip(parts, left, strict=True)]

    def reduce(self, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **kwargs: Any) -> Any:
        """A tree over neighbours, so every step is rounded to the elements' type, as on a GPU (whose tree is another)."""
        several = isinstance(input, tuple | self.tl.tuple)
        tensors = list(input) if several else [input]
        kinds, data = [t.dtype for t in tensors], [t.handle.data for t in tensors]
        axis, keep, rank = getattr(axis, "value", axis), getattr(keep_dims, "value", keep_dims), data[0].ndim
        if axis is None:
            data, at = [d.reshape(-1) for d in data], 0
        else:
            at = axis + rank if axis < 0 else axis
        data = [np.moveaxis(d, at, -1) for d in data]
        while data[0].shape[-1] > 1:
            data = self._combine(combine_fn, [d[..., 0::2] for d in data], [d[..., 1::2] for d in data], kinds)
        data = [np.array(d[..., 0]) for d in data]
        if keep:
            data = [np.reshape(d, (1,) * rank) if axis is None else np.expand_dims(d, at) for d in data]
        made = [
            self.tl.tensor(self.builder.handle(d.reshape(d.shape or (1,)), k), self._type(d, k, d.ndim > 0)) for d,
            k in zip(data, kinds, strict=True)
        ]
        return tuple(made) if several else made[0]

    def scan(self, input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **kwargs: Any) -> Any:
        """Inclusive scan by doubling distances (Kogge and Stone 1973)."""
        several = isinstance(input, tuple | self.tl.tuple)
        tensors = list(input) if several else [input]
        kinds, data = [t.dtype for t in tensors], [t.handle.data for t in tensors]
        axis, back = getattr(axis, "value", axis), getattr(reverse, "value", reverse)
        turn = [np.moveaxis(d, axis, -1) for d in data]
        turn = [d[..., ::-1] for d in turn] if back else turn
        distance, extent = 1, turn[0].shape[-1]
        while distance < extent:
            ahead = np.arange(extent) >= distance
            joined = self._combine(combine_fn, [np.roll(d, distance, -1) for d in turn], turn, kinds)
            turn = [np.where(ahead, j, d) for j, d in zip(joined, turn, strict=True)]
            distance *= 2
        turn = [np.moveaxis(d[..., ::-1] if back else d, -1, axis) for d in turn]
        made = [
            self.tl.tensor(self.builder.handle(np.ascontiguousarray(d), k), t.type) for d, k, t in zip(turn, kinds, tensors, strict=True)
        ]
        return tuple(made) if several else made[0]
