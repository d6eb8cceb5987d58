"""Layers for Hugging Face's `kernels` (`rooftop export-hf`), without a state of their own: `kernels` puts their `forward` in the place of
a model's. Each does what the layer does that it replaces, by an op of rooftop, and runs under torch.compile and autograd.

Limits: tensors that no kernel takes run as plain torch, as everything does on a CPU. Nothing here knows of sharded tensors (DTensor)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rooftop.ops.cross_entropy import cross_entropy
from rooftop.ops.rms_norm import rms_norm
from rooftop.ops.rope import rope
from rooftop.ops.swiglu import swiglu


class RMSNorm(nn.Module):  # type: ignore[misc]
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, of the layer's `weight` and its `variance_epsilon` or `eps`. In float32,
    rounded once."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: Tensor) -> Tensor:
        eps = getattr(self, "variance_epsilon", None)
        return rms_norm(hidden_states, self.weight.shape, self.weight.to(hidden_states.dtype), float(self.eps if eps is None else eps))


class SiLUAndMul(nn.Module):  # type: ignore[misc]
    """silu(a) · b of a tensor [..., 2 C] that holds a and then b: [..., C]."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return swiglu(x)


class RotaryEmbedding(nn.Module):  # type: ignore[misc]
    """Transformers' `apply_rotary_pos_emb` (its layer `rotary_pos_emb`): q and k [B, H, S, D], or [B, S, H, D] with `unsqueeze_dim` 2;
    cos and sin [B, S, R], each value twice, R at most D."""

    can_torch_compile = True
    has_backward = True

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        order = "bhsd" if unsqueeze_dim == 1 else "bshd"
        out_q, out_k = rope(q, k, cos, sin, rotary_dim=cos.shape[-1], order=order)
        return out_q, out_k


class ForCausalLMLoss(nn.Module):  # type: ignore[misc]
    """Transformers' `ForCausalLMLoss`: the cross-entropy of each token's logits [..., S, V] with the next token's label, a scalar in
    float32. The logits are not copied to float32."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self, logits: Tensor, labels: Tensor | None, vocab_size: int, num_items_in_batch: Any = None, ignore_index: int = -100,
        shift_labels: Tensor | None = None, **kwargs: Any,
    ) -> Tensor:
        if shift_labels is None:
            shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        targets = shift_labels.reshape(-1).to(logits.device)
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss = cross_entropy(logits.reshape(-1, vocab_size), targets, ignore_index=ignore_index, reduction=reduction)
        if num_items_in_batch is None:
            return loss
        return loss / (num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch)
