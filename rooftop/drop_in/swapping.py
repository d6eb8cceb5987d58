"""A module gets a subclass of its class with another forward: state_dict, hooks, isinstance and the class's name stay as they were.

The subclass has the name of its base: frameworks find layers by it (FSDP's and accelerate's wrapping, `architectures` in a saved
configuration). It is made once for all modules of one class, part and options, so that layers which are compiled one by one share a graph.
Copies and pickles say how the class is made."""

from __future__ import annotations

import copyreg
import functools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Builder = Callable[..., dict[str, Any]]  # (the class, *options) -> the attributes of its subclass


@dataclass(frozen=True)
class Swap:
    """How a subclass is made: `options` are what the builder of `part` is given; `decompose`: under torch.compile the plain forward
    runs."""

    base: type
    part: str
    options: tuple[Hashable, ...]
    decompose: bool = False


_BUILDERS: dict[str, Builder] = {}
_CLASSES: dict[Swap, type] = {}
_MAKING = threading.Lock()


def builder(part: str) -> Callable[[Builder], Builder]:
    def register(function: Builder) -> Builder:
        _BUILDERS[part] = function
        return function

    return register


def swap_of(module: nn.Module) -> Swap | None:
    """How the class of a module was made; None for one that nothing was done to."""
    return vars(type(module)).get("_rooftop_swap")


def buried(module: nn.Module) -> bool:
    """Whether a class of ours is below another that was put on it later (fully_shard)."""
    return swap_of(module) is None and getattr(type(module), "_rooftop_swap", None) is not None


def swap(module: nn.Module, part: str, options: tuple[Hashable, ...] = (), decompose: bool = False) -> None:
    module.__class__ = swapped_class(Swap(type(module), part, options, decompose))


def restore(module: nn.Module) -> None:
    if (found := swap_of(module)) is not None:
        module.__class__ = found.base


def swapped_class(how: Swap) -> type:
    with _MAKING:
        if how not in _CLASSES:
            body = _BUILDERS[how.part](how.base, *how.options)
            if how.decompose and "forward" in body:
                body["forward"] = _plain_when_compiled(how.base.forward, body["forward"])  # type: ignore[attr-defined]
            body |= {"__module__": how.base.__module__, "__qualname__": how.base.__qualname__, "__doc__": how.base.__doc__}
            body |= {"_rooftop_swap": how, "__reduce_ex__": _reduced}
            _CLASSES[how] = type(how.base)(how.base.__name__, (how.base,), body)
        return _CLASSES[how]


def _plain_when_compiled(plain: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ours)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return plain(self, *args, **kwargs)
        return ours(self, *args, **kwargs)

    return forward


def _reduced(self: Any, protocol: Any) -> Any:
    """Of copy and pickle: the class has no name under which it could be found."""
    how = type(self)._rooftop_swap
    made, given, *rest = how.base.__reduce_ex__(self, protocol)
    if made is not copyreg.__newobj__ or given != (type(self),):  # type: ignore[attr-defined]
        raise TypeError(f"{type(self).__name__} says itself how it is copied; rooftop.unpatch(model) first")
    return (_REMAKING[0], (how,), *rest)


def remaking(function: Callable[[Swap], Any]) -> Callable[[Swap], Any]:
    """`function` makes the modules of copies and pickles; its file is imported where they are read."""
    _REMAKING.append(function)
    return function


_REMAKING: list[Callable[[Swap], Any]] = []
