"""Models of Hugging Face Transformers, and others, with the functions of this package: `patch` and its proof, decoding, a cache."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftop.models.patching import Report, is_patched, patch, unpatch
    from rooftop.models.proving import Proof, prove

__all__ = ["Proof", "Report", "is_patched", "patch", "prove", "unpatch"]
_WHERE = {**dict.fromkeys(("Report", "is_patched", "patch", "unpatch"), "patching"), "Proof": "proving", "prove": "proving"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'rooftop.models' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"rooftop.models.{_WHERE[name]}"), name)
