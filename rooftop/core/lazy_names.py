"""Packages whose names are loaded at first use: most of them import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, listed: Sequence[str], places: Mapping[str, str | Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package of rooftop that has the names `listed`. `places`: module -> the names that come from it."""
    module_of = {name: module for module, names in places.items() for name in ([names] if isinstance(names, str) else names)}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module 'rooftop.{package}' has no attribute {name!r}; it has {', '.join(listed)}")
        return getattr(import_module(f"rooftop.{module_of[name]}"), name)

    return get, lambda: list(listed)
