"""Functions with the signatures of other libraries, over the ops of this one, for code that calls those: torch's scaled dot-product
attention, the attention interface of Hugging Face Transformers; and whole models, patched by `patch` and compared by `prove`. Nothing is
replaced by importing this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    """What imports torch."""
    found: Any
    if name in ("Report", "is_patched", "unpatch"):
        from rooftop.drop_in import patching as found
    elif name in ("Proof", "prove"):
        from rooftop.drop_in import proving as found
    elif name in ("Decoder", "generate"):
        from rooftop.drop_in import decoding as found
    elif name == "generate_batch":
        from rooftop.drop_in import batching as found
    elif name == "KVCache":
        from rooftop.drop_in import caches as found
    elif name == "apply_to":
        from rooftop.drop_in import loading as found
    elif name == "patch":
        from rooftop.drop_in import one_line as found
    elif name == "register_experts":
        from rooftop.drop_in import mixtures as found
    else:
        raise AttributeError(f"module 'rooftop.drop_in' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(found, name)


def __dir__() -> list[str]:
    return __all__
