"""Kinds of tensors that no public function takes: sparse, nested, quantised and MKL-DNN ones. One refusal for all of them, with the way
out.

Complex numbers are a matter of dtypes, which each function names itself; tensors on the meta device have results on it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def kind_of(t: Any) -> tuple[str, str] | None:
    """What a tensor is that no function takes, and the way out; None for all others, and for what is no tensor."""
    import torch

    if not isinstance(t, torch.Tensor):
        return None
    if t.is_nested:
        return "a nested tensor", "torch.nested.to_padded_tensor makes it one"
    if t.is_quantized:
        return f"a quantised tensor of {t.dtype}", "its dequantize() makes it one"
    if t.layout != torch.strided:
        layout = str(t.layout).removeprefix("torch.").lstrip("_")
        more = " (rooftop.sparse.SparseTensor is for sparse matrices)" if "sparse" in layout else ""
        return f"a tensor in the layout {layout}", f"its to_dense() makes it one{more}"
    return None


def refuse(op: str, named: Iterable[tuple[str, Any]]) -> None:
    """Raises TypeError for the first of these arguments that is such a tensor, or a list with one."""
    for name, value in named:
        for t in value if isinstance(value, (list, tuple)) else (value,):
            if (found := kind_of(t)) is not None:
                raise TypeError(f"{op}: {name} is {found[0]}; it must be a dense tensor (torch.strided): {found[1]}")


def refusing(function: F) -> F:
    """A public function whose errors for such tensors say so, whatever in it met them first. A call that is right costs nothing more."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception:
            names = list(inspect.signature(function).parameters)
            refuse(function.__name__, [*zip(names, args, strict=False), *kwargs.items()])
            raise

    return cast(F, call)
