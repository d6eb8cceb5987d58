"""Attention kernels of others as peers: torch's own, cuDNN's and FlashAttention-2, through the operators that give the normaliser too, and
cuDNN's as the wheel `nvidia-cudnn-frontend` chooses and launches them. The wheel has no cuDNN of its own: it loads the one that is installed,
torch's unless another backend's wheel is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.ops._peers import Kept

if TYPE_CHECKING:
    from torch import Tensor


def _plain(q: Tensor, k: Tensor, tensors: tuple[Any, ...], left: int, right: int, softcap: float, dropout_p: float) -> bool:
    """Whether the call is causal. Raises ValueError for what these kernels are not given here."""
    if any(t is not None for t in tensors) or left != -1 or right not in (-1, 0) or softcap or dropout_p:
        raise ValueError("torch's kernels are compared on plain and causal attention alone")
    if right == 0 and q.shape[1] != k.shape[1]:
        raise ValueError("torch's causal order begins at the first key")
    return right == 0


def _forward(name: str) -> Callable[..., Any]:
    import torch

    def run(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Any, ...]:
        tensors, (left, right, scale, softcap, dropout_p, _), ranges = rest[:11], rest[11:17], rest[17:]
        causal = _plain(q, k, (*tensors, *ranges), left, right, softcap, dropout_p)
        a, b, c = (x.transpose(1, 2) for x in (q, k, v))
        if name == "wheel":
            return torch.ops.cudnn.sdpa_fwd(a, b, c, scale, is_causal=causal)
        if name == "cudnn":
            return torch.ops.aten._scaled_dot_product_cudnn_attention(a, b, c, None, True, 0.0, causal, False, scale=scale)
        return torch.ops.aten._scaled_dot_product_flash_attention(a, b, c, 0.0, causal, False, scale=scale)

    return run


def _peer(name: str) -> Callable[..., Any]:
    forward = _forward(name)

    def run(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        out, lse, *_ = forward(q, *rest)
        return out.transpose(1, 2), lse.reshape(q.shape[0], q.shape[2], -1)[..., : q.shape[1]]

    return run


def _backward_peer(name: str) -> Callable[..., Any]:
    """What autograd runs; the forward's results, in the form that its own kernel left them, are made once for each input."""
    import torch

    forward = Kept(lambda q, *rest: _forward(name)(q, *rest))

    def run(dout: Tensor, dlse: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Any, ...]:
        *tensors, left, right, scale, softcap, dropout_p, seed = rest
        causal = _plain(q, k, tuple(tensors), left, right, softcap, dropout_p)
        kept = forward(q, k, v, *([None] * 11), left, right, scale, softcap, dropout_p, seed)
        d, a, b, c = (x.transpose(1, 2) for x in (dout, q, k, v))
        if name == "wheel":
            found = torch.ops.cudnn.sdpa_bwd(d, a, b, c, *kept, scale, is_causal=causal)
            return (*(x.transpose(1, 2) for x in found), None, None)
        o, norm, cu_q, cu_k, most_q, most_k, philox, offset = kept[:8]
        if name == "cudnn":
            found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
                d, a, b, c, o, norm, philox, offset, None, cu_q, cu_k, most_q, most_k, 0.0, causal, scale=scale
            )
        else:
            found = torch.ops.aten._scaled_dot_product_flash_attention_backward(
                d, a, b, c, o, norm, cu_q, cu_k, most_q, most_k, 0.0, causal, philox, offset, scale=scale
            )
        return (*(x.transpose(1, 2) for x in found[:3]), None, None)

    return run


def cudnn() -> Callable[..., Any]:
    return _peer("cudnn")


def flash() -> Callable[..., Any]:
    return _peer("flash")


def cudnn_wheel() -> Callable[..., Any]:
    import cudnn.sdpa.fwd.torch_op  # noqa: F401  registers its operators

    return _peer("wheel")


def cudnn_wheel_backward() -> Callable[..., Any]:
    import cudnn.sdpa.fwd.torch_op  # noqa: F401

    return _backward_peer("wheel")


def cudnn_backward() -> Callable[..., Any]:
    return _backward_peer("cudnn")


def flash_backward() -> Callable[..., Any]:
    return _backward_peer("flash")
