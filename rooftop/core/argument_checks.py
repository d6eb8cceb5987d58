"""Checks of arguments that are not tensors: what the errors of all public functions say alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import float_info
from typing import Any

LARGEST = float_info.max
FLOAT32 = (2 - 2**-23) * 2.0**127  # the largest finite one, in which kernels get numbers
NORMAL32 = 2.0**-126  # the smallest above 0 that kernels do not take for 0


def number(op: str, name: str, value: Any, accepted: str, *, whole: bool = False, finite: bool = False) -> None:
    """Raises TypeError unless `value` is a number, a whole one where asked for, and ValueError for one that is not finite as a float32
    where that is, for a whole one of more than 64 bits, or for one that no float holds.

    Comparisons alone: torch.compile traces them for numbers that it takes as dynamic, as it does not `isfinite`."""
    if (isinstance(value, int) and -(2**31) < value < 2**31) or (isinstance(value, float) and not whole and -1e38 < value < 1e38):  # nearly all
        return
    import torch

    kinds = (int, torch.SymInt) if whole else (int, float, torch.SymInt, torch.SymFloat)
    if not isinstance(value, kinds):
        raise TypeError(f"{op}: {name} is {value!r}, a {type(value).__name__}; it must be {accepted}")
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{op}: {name} is a whole number of {value.bit_length()} bits, beyond float64; it must be {accepted}")
    if whole:
        fits, more = -(2**63) <= value < 2**63, " of at most 64 bits"
    elif finite:
        fits, more = -FLOAT32 <= value <= FLOAT32, " that a float32 holds" if -LARGEST <= value <= LARGEST else ""
    else:
        fits, more = True, ""
    if not fits:
        first, comma, rest = accepted.partition(",")
        raise ValueError(f"{op}: {name} is {value}; it must be {first}{more}{comma}{rest}")


def positive(op: str, name: str, value: Any) -> None:
    """Raises unless `value` is a finite number above 0, as a float32 too."""
    accepted = "a finite number above 0, or None"
    number(op, name, value, accepted, finite=True)
    if not value > 0:
        raise ValueError(f"{op}: {name} is {value}; it must be {accepted}")
    if value < NORMAL32:
        raise ValueError(f"{op}: {name} is {value}; it must be a finite number above 0 that a float32 holds, at least {NORMAL32}, or None")


def among(value: Any, accepted: Iterable[Any]) -> bool:
    """``value in accepted`` for shapes and extents: torch.compile does not trace `in` for sizes that it takes as dynamic, as it does
    `==`."""
    return any(value == a for a in accepted)


def in_order(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """The dimensions of `rank` that are in `dims`, each once. torch.compile does not trace `sorted` for numbers that it takes as
    dynamic."""
    return tuple(dims) if len(dims) < 2 else tuple([i for i in range(rank) if among(i, dims)])


def whole_seed(op: str, value: Any) -> None:
    """Raises TypeError unless `value` is a whole number, of any size: its low 32 bits count."""
    import torch

    if not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{op}: seed is {value!r}, a {type(value).__name__}; it must be a whole number")


def flag(op: str, name: str, value: Any) -> None:
    """Raises TypeError unless `value` is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{op}: {name} is {value!r}, a {type(value).__name__}; it must be True or False")


def written(op: str, name: str, t: Any) -> None:
    """Raises ValueError where several elements of `t`, which is written into, have one memory address."""
    import torch

    tracing = torch.compiler.is_compiling()  # a trace does not order strides that it takes as dynamic
    if not tracing and t.is_contiguous():
        return
    if any(step == 0 and n > 1 for step, n in zip(t.stride(), t.shape, strict=True)):
        raise ValueError(
            f"{op}: {name} has shape {tuple(t.shape)} and strides {tuple(t.stride())}: it is expanded, and cannot be written into"
        )
    if tracing:
        return
    reach = 0  # from the first to the last element of the dimensions so far
    for step, n in sorted((step, n) for step, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if step <= reach:
            raise ValueError(
                f"{op}: {name} has shape {tuple(t.shape)} and strides {tuple(t.stride())}: its elements overlap, and it cannot be written "
                f"into"
            )
        reach += (n - 1) * step


def apart(op: str, first: str, a: Any, second: str, b: Any) -> None:
    """Raises ValueError where `a` and `b`, which are both written into, are one tensor or begin at one memory address."""
    import torch

    same = a is b
    # a fake one has no address
    if not same and type(a) is torch.Tensor is type(b) and not torch.compiler.is_compiling() and a.numel() and b.numel():
        try:
            same = a.data_ptr() == b.data_ptr() != 0
        except RuntimeError:  # nor has one under a transform
            same = False
    if same:
        raise ValueError(
            f"{op}: {first} and {second} are the same tensor, or begin at the same address; they must not overlap, as each is written into"
        )


def wants_gradient(t: Any) -> bool:
    """Whether a gradient of the tensor `t`, or None, may be asked for. Under torch.func.vmap a tensor does not say: then it may."""
    import torch

    if t is None or not torch.is_grad_enabled():
        return False
    return t.requires_grad or (not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None)


def shape(op: str, name: str, value: Any) -> tuple[int, ...]:
    """A shape given as a number or as numbers. Raises TypeError for anything else."""
    if isinstance(value, int):
        return (value,)
    import torch

    found = (
        (value,) if isinstance(value, (int, torch.SymInt)) else tuple(value) if isinstance(value, Sequence) and not isinstance(value, str)
        else None
    )
    if found is None or not all(isinstance(n, (int, torch.SymInt)) for n in found):
        said = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r}, a {type(value).__name__}"
        raise TypeError(f"{op}: {name} is {said}; it must be a whole number or a sequence of them")
    return found
