"""The language that this process compiles, if it is a compiler's: kernel files import it from kernels/_device/cute.py or cutile.py, which
is a placeholder elsewhere."""

from __future__ import annotations

from typing import Any

_MODULES: dict[str, Any] = {}


def provide(**modules: Any) -> None:
    """To be called before a kernel's file is loaded."""
    _MODULES.update(modules)


def language(name: str, placeholder: Any) -> Any:
    return _MODULES.get(name, placeholder)
