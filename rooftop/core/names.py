"""Names that are looked up: what to say of one that is not there."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


class RegistryError(LookupError):
    """A name that is not there, or a file whose name cannot be right."""


def hint(name: str, known: Sequence[str]) -> str:
    """The name that comes closest to a mistyped one, else all of them."""
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"


class UnknownName(RegistryError):
    """There is no `kind` of that name."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no {kind} {name!r}; {hint(name, known)}")


PACKAGES = {"liger_kernel": "liger-kernel", "pynvml": "nvidia-ml-py", "cuda.bindings": "cuda-bindings", "cuda": "cuda-core", "nvidia": "nvidia-cuda-runtime"}


def package_of(module: str) -> str:
    """What to install where a module is missing: `cuda.bindings.nvrtc` is in cuda-bindings."""
    parts = module.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((PACKAGES[p] for p in prefixes if p in PACKAGES), parts[0])
