"""Calls of `rooftop.matmul` in other forms: vectors as operands, one call of oneDNN."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def has_vector(a: Any, b: Any) -> bool:
    """Whether one of two tensors has one dimension, and neither has none."""
    import torch

    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and min(a.dim(), b.dim()) == 1


def of_vectors(matmul: Callable[..., Any], a: Tensor, b: Tensor, shaped: dict[str, Any], more: dict[str, Any]) -> Tensor:
    """The product where `a`, or `b`, has one dimension. `shaped`: tensors of the shape of the result."""
    row, column = a.dim() == 1, b.dim() == 1
    if a.shape[-1] != b.shape[0 if column else -2]:
        raise ValueError(f"matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}; a's last dimension must be as long as b's {'one' if column else 'rows'}")
    if row:
        a = a.expand(*b.shape[:-2], 1, -1) if b.dim() == 3 else a[None]
    if column:
        b = b[:, None]
    for name, t in shaped.items():
        if hasattr(t, "unsqueeze"):
            t = t.unsqueeze(-1) if column else t
            shaped[name] = t.unsqueeze(-2) if row else t
    out: Tensor = matmul(a, b, **shaped, **more)
    out = out.squeeze(-2) if row else out
    return out.squeeze(-1) if column else out


ONEDNN = {"none": ("none", None), "relu": ("relu", None), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "silu": ("swish", None)}


@cache
def onednn_takes_bfloat16() -> bool:
    """Not on every CPU: without AVX-512 or AMX oneDNN raises."""
    import torch

    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def fused(a: Tensor, b: Tensor, bias: Tensor | None, activation: str) -> Any:
    """act(a b + bias) of bfloat16 in one call of oneDNN, rounded once; it has no gradient. What is so large or so small that oneDNN errs
    (rooftop/ops/gelu.py), or not finite, is left to the reference."""
    import torch

    made = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if a.dim() == b.dim() == 2 and onednn_takes_bfloat16() else None
    followed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (a, b, bias))
    if made is None or followed or not a.numel() or not b.numel() or (bias is not None and bias.dtype != a.dtype):
        return NotImplemented
    out = made(a, b.t(), bias, ONEDNN[activation][0], [], ONEDNN[activation][1])
    least, most = (t.item() for t in torch.aminmax(out))
    return out if 1e-30 < max(-least, most) < 1e37 else NotImplemented
