"""Formats of 4, 6 and 8 bits: `rooftop.quantize` returns a `Quantized`, `rooftop.dequantize` decodes it. Packed weights of 2 to 8
bits for `rooftop.quantized_matmul`, linear layers and models that use them, and import of checkpoints of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.lazy_names import lazily
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
__getattr__, __dir__ = lazily("quant", __all__, {
    "formats.quantized": "Quantized", "formats.packed": ("PackedWeight", "pack_codes", "pack_weight"), "quant.straight_through": "fake_quantize",
    "quant.optimizer": ("AdamW8bit", "adamw_8bit_states"), "quant.linear": "QuantLinear", "quant.experts": "QuantExperts",
    "quant.model": ("quantize_model", "register_quantizer"), "quant.calibrate": ("nearest", "hqq", "gptq"), "quant.pretrained": "QuantConfig",
    "quant.checkpoints": ("from_awq", "from_gptq", "from_hqq", "import_checkpoint", "load_quantized", "save_quantized"),
})
