"""Formats of 4, 6 and 8 bits and what is made of them: `rooftop.quantize` returns a `Quantized`, `rooftop.dequantize` takes it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rooftop.quant.formats import ALIASES, FORMATS, ROUNDINGS, SCALES, Format, decode, encode, format_of, pack, unpack

if TYPE_CHECKING:
    from rooftop.quant.quantized import Quantized
    from rooftop.quant.straight_through import fake_quantize

__all__ = [
    "ALIASES", "FORMATS", "ROUNDINGS", "SCALES", "Format", "Quantized", "decode", "encode", "fake_quantize", "format_of", "pack", "unpack",
]  # fmt: skip
_NEED_TORCH = {"Quantized": "quantized", "fake_quantize": "straight_through"}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'rooftop.quant' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"rooftop.quant.{_NEED_TORCH[name]}"), name)
