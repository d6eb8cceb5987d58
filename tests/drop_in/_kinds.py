"""Tiny random models of the kinds that Transformers holds, found from its own tables."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # some configurations would look for a backbone; read when Transformers is imported

TABLES = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION")
SMALL: dict[str, Any] = {  # what configurations call their sizes
    **dict.fromkeys(("vocab_size", "text_vocab_size", "vocab_size_per_layer_input", "seq_length"), 64),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "word_embed_proj_dim", "hidden_dim"), 64),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 64),
    **dict.fromkeys(("ffn_hidden_size", "mlp_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_num_layers", "decoder_num_layers", "num_encoder_layers", "first_k_dense_replace"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "global_head_dim", "swa_head_dim", "v_head_dim", "kv_channels"), 16),
    **dict.fromkeys(("swa_v_head_dim", "q_lora_rank", "kv_lora_rank", "o_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"), 16),
    "rotary_dim": 16,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k", "num_experts_per_token"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_groups"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    "moe_ffn_hidden_size": 32,
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention", "attention_chunk_size", "index_topk"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "index_n_heads", "type_vocab_size"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "index_head_dim", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 4), **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 32),
    "mamba_d_state": 8, "image_size": 16, "patch_size": 8, "num_labels": 8, "num_kv_shared_layers": 0, "attention_dropout": 0.0,
    "pad_token_id": 0, "decoder_start_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}
# Where those sizes do not go together: all heads alike (latent attention), more layers (one in four has attention), or both.
HEADS, LAYERS = {"num_key_value_heads": 4, "num_kv_heads": 4}, {"num_hidden_layers": 4}
OTHERWISE: tuple[dict[str, Any], ...] = ({}, HEADS, LAYERS, {**HEADS, **LAYERS})


def tiny(kind: type, **more: Any) -> Any:
    """A configuration of `kind` with small sizes, in all of its parts."""
    known = {f.name: f.default for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    given = {n: v for n, v in {**SMALL, **more}.items() if n in known}
    for name, part in (getattr(kind, "sub_configs", None) or {}).items():
        if name in known and part.__name__ != "AutoConfig":
            given[name] = tiny(part, **more).to_dict()
    return kind(**given)


def tokens(rows: int = 2, length: int = 9, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(seed))


def inputs(model: Any) -> dict[str, Any]:
    """What the model is called with: tokens, or an image."""
    known = inspect.signature(model.forward).parameters
    given: dict[str, Any] = {}
    if "input_ids" in known:
        given["input_ids"] = tokens()
        if model.config.is_encoder_decoder:
            given["decoder_input_ids"] = tokens(length=5, seed=2)
    elif "pixel_values" in known:
        given["pixel_values"] = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return given


def made(cls: Any, config: Any, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model whose weights depend on nothing but its configuration; those that start at 0 (biases by position, sinks) are drawn too."""
    torch.manual_seed(0)
    model = cls._from_config(copy.deepcopy(config), attn_implementation=attention).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.is_floating_point() and ("relative" in name or "sink" in name or not bool(p.any())):
                p.normal_(0, 0.3)
            elif p.is_floating_point() and p.dim() > 1:
                p.mul_(3)  # so that attention is not uniform
    return model.to(dtype)


@cache
def found() -> dict[str, str]:
    """The model class of each kind, the first of the tables that has it."""
    from transformers.models.auto import modeling_auto as auto

    names: dict[str, str] = {}
    for table in TABLES:
        for kind, name in getattr(auto, f"MODEL_FOR_{table}_MAPPING_NAMES").items():
            names.setdefault(kind, name if isinstance(name, str) else name[0])
    return names


def takes_interface(cls: Any) -> bool:
    return "ALL_ATTENTION_FUNCTIONS" in vars(sys.modules[cls.__module__])


def small(kind: str) -> Iterator[tuple[Any, Any]]:
    """(class, configuration) of a kind, in each way in which its sizes may go together; none where it cannot be small."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = getattr(transformers, found()[kind])
    for more in OTHERWISE:
        try:
            config = tiny(CONFIG_MAPPING[kind], **more)
            with torch.device("meta"):
                size = sum(p.numel() for p in cls._from_config(config, attn_implementation="eager").parameters())
        except Exception:
            continue
        if size < 3e6:
            yield cls, config


@cache
def works(kind: str) -> tuple[Any, Any] | str:
    """(class, configuration) with which the kind runs in eager, or why there is none."""
    why = "no small configuration"
    for cls, config in small(kind):
        try:
            model = made(cls, config, "eager")
            with torch.no_grad():
                model(**inputs(model))
            return cls, config
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return why
