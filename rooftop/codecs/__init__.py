"""Compression of arrays and weights, error-bounded and lossless, in a portable container. docs/codecs.md defines its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.lazy_names import lazily

if TYPE_CHECKING:
    from rooftop.codecs.api import Compressed, Statistics, compress, decompress, decompress_chunk, measured
    from rooftop.codecs.model import Progress, compress_model, decompress_model, weight, weights
    from rooftop.formats.container import FormatError

__all__ = [
    "Compressed", "FormatError", "Progress", "Statistics", "compress", "compress_model", "decompress", "decompress_chunk",
    "decompress_model", "measured", "weight", "weights",
]
__getattr__, __dir__ = lazily("codecs", __all__, {
    "codecs.api": ("Compressed", "Statistics", "compress", "decompress", "decompress_chunk", "measured"), "formats.container": "FormatError",
    "codecs.model": ("Progress", "compress_model", "decompress_model", "weight", "weights"),
})
