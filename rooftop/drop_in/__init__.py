"""Replacements for functions of other libraries, with the same signatures: torch's scaled dot-product attention, and the attention
interface of Hugging Face Transformers. `patch` makes whole models use rooftop's ops, and `prove` compares such a model with the original. Importing
this module replaces nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.lazy_names import lazily
from rooftop.drop_in.attention import scaled_dot_product_attention
from rooftop.drop_in.transformers import register_transformers, transformers_attention
from rooftop.drop_in.transformers_masks import transformers_mask

if TYPE_CHECKING:
    from rooftop.drop_in.batching import generate_batch
    from rooftop.drop_in.caches import KVCache
    from rooftop.drop_in.decoding import Decoder, generate
    from rooftop.drop_in.loading import apply_to
    from rooftop.drop_in.mixtures import register_experts
    from rooftop.drop_in.one_line import patch
    from rooftop.drop_in.patching import Report, is_patched, unpatch
    from rooftop.drop_in.proving import Proof, prove

__all__ = [
    "Decoder", "KVCache", "Proof", "Report", "apply_to", "generate", "generate_batch", "is_patched", "patch", "prove", "register_experts",
    "register_transformers", "scaled_dot_product_attention", "transformers_attention", "transformers_mask", "unpatch",
]
__getattr__, __dir__ = lazily("drop_in", __all__, {
    "drop_in.patching": ("Report", "is_patched", "unpatch"), "drop_in.proving": ("Proof", "prove"), "drop_in.decoding": ("Decoder", "generate"),
    "drop_in.batching": "generate_batch", "drop_in.caches": "KVCache", "drop_in.loading": "apply_to", "drop_in.one_line": "patch",
    "drop_in.mixtures": "register_experts",
})
