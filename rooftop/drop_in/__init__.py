"""Functions with the signatures of other libraries, over the ops of this one, for code that calls those: torch's scaled dot-product
attention, the attention interface of Hugging Face Transformers. Nothing is replaced by importing this."""

from __future__ import annotations

from rooftop.drop_in.attention import scaled_dot_product_attention
from rooftop.drop_in.transformers import register_transformers, transformers_attention
from rooftop.drop_in.transformers_masks import transformers_mask

__all__ = ["register_transformers", "scaled_dot_product_attention", "transformers_attention", "transformers_mask"]
