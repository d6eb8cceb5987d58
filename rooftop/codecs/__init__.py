"""Compression of arrays and weights, error-bounded and lossless, in a portable container. docs/codecs.md defines its bytes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftop.codecs.api import Compressed, Statistics, compress, decompress, decompress_chunk, measured
    from rooftop.codecs.model import Progress, compress_model, decompress_model, weight, weights
    from rooftop.formats.container import FormatError

_FROM = {
    **dict.fromkeys(("Compressed", "Statistics", "compress", "decompress", "decompress_chunk", "measured"), "codecs.api"),
    "FormatError": "formats.container",
    **dict.fromkeys(("Progress", "compress_model", "decompress_model", "weight", "weights"), "codecs.model"),
}
__all__ = [
    "Compressed", "FormatError", "Progress", "Statistics", "compress", "compress_model", "decompress", "decompress_chunk",
    "decompress_model", "measured", "weight", "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'rooftop.codecs' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"rooftop.{_FROM[name]}"), name)


def __dir__() -> list[str]:
    return __all__
