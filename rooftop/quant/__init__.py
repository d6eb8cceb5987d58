"""Formats of 4, 6 and 8 bits: `rooftop.quantize` returns a `Quantized`, `rooftop.dequantize` decodes it. Packed weights of 2 to 8
bits for `rooftop.quantized_matmul`, linear layers and models that use them, and import of checkpoints of other libraries."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rooftop.formats.codes import decode, encode, pack, unpack
from rooftop.formats.number_formats import ALIASES, FORMATS, ROUNDINGS, SCALES, Format, format_of

if TYPE_CHECKING:
    from rooftop.formats.packed import PackedWeight, pack_codes, pack_weight
    from rooftop.formats.quantized import Quantized
    from rooftop.quant.calibrate import gptq, hqq, nearest
    from rooftop.quant.checkpoints import from_awq, from_gptq, from_hqq, import_checkpoint, load_quantized, save_quantized
    from rooftop.quant.experts import QuantExperts
    from rooftop.quant.linear import QuantLinear
    from rooftop.quant.model import quantize_model, register_quantizer
    from rooftop.quant.optimizer import AdamW8bit, adamw_8bit_states
    from rooftop.quant.pretrained import QuantConfig
    from rooftop.quant.straight_through import fake_quantize

__all__ = [
    "ALIASES", "FORMATS", "ROUNDINGS", "SCALES", "AdamW8bit", "Format", "PackedWeight", "QuantConfig", "QuantExperts", "QuantLinear",
    "Quantized", "adamw_8bit_states", "decode", "encode", "fake_quantize", "format_of", "from_awq", "from_gptq", "from_hqq", "gptq", "hqq",
    "import_checkpoint", "load_quantized", "nearest", "pack", "pack_codes", "pack_weight", "quantize_model", "register_quantizer",
    "save_quantized", "unpack",
]
_NEED_TORCH = {
    "Quantized": "formats.quantized", "fake_quantize": "quant.straight_through",
    **dict.fromkeys(("PackedWeight", "pack_codes", "pack_weight"), "formats.packed"),
    "AdamW8bit": "quant.optimizer", "adamw_8bit_states": "quant.optimizer", "QuantLinear": "quant.linear",
    "QuantExperts": "quant.experts", "quantize_model": "quant.model",
    **dict.fromkeys(("nearest", "hqq", "gptq"), "quant.calibrate"),
    "QuantConfig": "quant.pretrained", "register_quantizer": "quant.model",
    **dict.fromkeys(("from_awq", "from_gptq", "from_hqq", "import_checkpoint", "load_quantized", "save_quantized"), "quant.checkpoints"),
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'rooftop.quant' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"rooftop.{_NEED_TORCH[name]}"), name)


def __dir__() -> list[str]:
    return __all__
