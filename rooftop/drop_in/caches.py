"""A KV cache of Hugging Face Transformers that `rooftop.append_kv` writes: memory for all tokens from the start, tokens before heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from rooftop.ops.append_kv import append_kv


class KVLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of a layer, [B, max_length, H, D] in memory."""

    is_sliding = False
    is_compileable = False

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self.cache, self.seen = cache, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        rows, tokens = self.cache.pages or (key_states.shape[0], self.cache.max_length)
        self.keys, self.values = (
            torch.zeros(rows, tokens, t.shape[1], t.shape[3], dtype=t.dtype, device=t.device) for t in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append [B, H, N, D]. Returns what there is, [B, H, tokens, D]; of a static cache all of its memory."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        k, v = (t.transpose(1, 2).to(self.dtype) for t in (key_states, value_states))
        lengths = self.cache.before(self, k)
        with torch.no_grad():
            k, v = k.detach(), v.detach()
            if k.shape == v.shape:
                append_kv(self.keys, self.values, k, v, lengths, page_table=self.cache.table)
            else:  # heads of two sizes
                rows = torch.arange(k.shape[0], device=k.device)[:, None]
                at = lengths[:, None].long() + torch.arange(k.shape[1], device=k.device)
                if self.cache.table is not None:
                    rows, at = self.cache.table[
                        rows, (at // self.keys.shape[1]).clamp(max=self.cache.table.shape[1] - 1)
                    ], at % self.keys.shape[1]
                self.keys[rows, at], self.values[rows, at] = k, v
        end = self.keys.shape[1] if self.cache.static else self.seen
        return self.keys[:, :end].transpose(1, 2), self.values[:, :end].transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return self.cache.max_length

    def reset(self) -> None:
        self.seen = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.is_initialized:
            self.keys, self.values = (t.index_select(0, beam_idx.to(t.device)) for t in (self.keys, self.values))


class KVCache(Cache):  # type: ignore[misc]
    """``model.generate(ids, past_key_values=rooftop.drop_in.KVCache(model.config, 4096))``, for a patched model. Layers with a window keep
    all tokens.

    Args:
        config: of the model.
        max_length: tokens of a sequence, prompt and all.
        static: for `rooftop.generate`: `lengths` [B] says how many tokens each sequence has, whoever calls the model changes it, and layers
            are given all memory.
        pages: (pages, tokens of each) of a static cache that all sequences share; `table` [B, P] then names those of each sequence."""

    def __init__(
        self, config: Any, max_length: int, *, static: bool = False, lengths: Tensor | None = None, pages: tuple[int, int] | None = None,
        table: Tensor | None = None,
    ) -> None:
        if not isinstance(max_length, int) or max_length < 1:
            raise ValueError(f"KVCache: max_length is {max_length!r}; it must be a whole number of at least 1")
        if why := refusal(config):
            raise ValueError(f"KVCache: {why}")
        self.max_length, self.static, self.lengths, self.pages, self.table = max_length, static, lengths, pages, table
        super().__init__(layers=[KVLayer(self) for _ in range(config.get_text_config(decoder=True).num_hidden_layers)])

    def before(self, layer: KVLayer, k: Tensor) -> Tensor:
        """How many tokens the sequences have before these are appended. Raises ValueError where they do not fit."""
        if self.static:
            assert self.lengths is not None
            return self.lengths
        if layer.seen + k.shape[1] > self.max_length:
            raise ValueError(f"KVCache: {layer.seen} tokens and {k.shape[1]} more do not fit; max_length is {self.max_length}")
        if self.lengths is None or self.lengths.shape[0] != k.shape[0] or self.lengths.device != k.device:
            self.lengths = torch.zeros(k.shape[0], dtype=torch.int32, device=k.device)
        if layer is self.layers[0] or layer.seen != self.layers[0].seen - k.shape[1]:
            self.lengths.fill_(layer.seen)
        layer.seen += k.shape[1]
        return self.lengths


def refusal(config: Any) -> str:
    """Why a model has no such cache; "" where it may."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if getattr(config, "is_encoder_decoder", False):
        return f"{type(config).__name__} is of an encoder with a decoder"
    if kinds or getattr(text, "attention_chunk_size", None):
        return f"{type(config).__name__} has layers of {', '.join(sorted(kinds)) or 'chunked attention'}"
    return ""
