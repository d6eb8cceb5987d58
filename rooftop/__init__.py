"""rooftop: every operation climbed from the naive kernel to the roof; the kernel at the top shipped as a drop-in function.

Importing it loads nothing: an op, torch and the toolchain are loaded by the first use of a name."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    from rooftop.core import api

    return api.public(name)


def __dir__() -> list[str]:
    from rooftop.core import api

    return [*globals(), *api.names()]
