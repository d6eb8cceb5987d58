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


def _flexible(q: Tensor, k: Tensor, *rest: Any) -> dict[str, Any]:
    """What FlexAttention is given for a call: the scores' changes and the mask of blocks. Raises ValueError for what is not given it here."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    _, bias, mask, cu_q, cu_k, pages, lengths, slopes, q_scale, k_scale, v_scale, sinks, left, right, scale, cap, dropout_p, _, *ranges = rest
    if str(q.dtype) != "torch.bfloat16":
        raise ValueError(f"compiled for bfloat16 alone, not {q.dtype}")
    if any(x is not None for x in (bias, mask, pages, q_scale, k_scale, v_scale, sinks, *ranges)) or dropout_p:
        raise ValueError("FlexAttention is compared on causal order, windows, soft caps, ALiBi, packed sequences and lengths alone")
    (batch, queries), keys, device = q.shape[:2], k.shape[1], q.device
    ends = torch.full((batch,), keys, device=device) if lengths is None else lengths.long().clamp(0, keys)
    place = torch.arange(queries, device=device) + (ends[:, None] - queries)  # of a query in the order of its keys
    token = torch.arange(keys, device=device)
    of_query, of_key = (torch.zeros(n, dtype=torch.long, device=device) for n in (queries, keys))
    if cu_q is not None:
        of_query, of_key = (torch.searchsorted(cu.long(), torch.arange(n, device=device), right=True) for cu, n in ((cu_q, queries), (cu_k, keys)))
        first_q, first_k = (torch.cat((cu.new_zeros(1), cu, cu[-1:])).long() for cu in (cu_q, cu_k))
        counts_q, counts_k = first_q[2:] - first_q[1:-1], first_k[2:] - first_k[1:-1]
        at = (of_query - 1).clamp(min=0)
        place = (torch.arange(queries, device=device) - first_q[of_query] + (counts_k - counts_q)[at])[None]
        token = token - first_k[of_key]
        of_query = torch.where((of_query > 0) & (of_query < cu_q.shape[0]), of_query, -1)

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        inside = (of_query[i] == of_key[j]) & ((token[j] < ends[b]) | (cu_q is not None))
        if left != -1:
            inside = inside & (token[j] >= place[b, i] - left)
        if right != -1:
            inside = inside & (token[j] <= place[b, i] + right)
        return inside

    def changed(z: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if cap:
            z = cap * torch.tanh(z / cap)
        if slopes is not None:
            z = z - (slopes[b, h] if slopes.dim() == 2 else slopes[h]) * (place[b, i] - token[j]).abs()
        return z

    plain = left == right == -1 and cu_q is None and lengths is None
    blocks = None if plain else create_block_mask(seen, batch, None, queries, keys, device=str(device))
    return {"score_mod": changed if cap or slopes is not None else None, "block_mask": blocks, "scale": scale, "enable_gqa": q.shape[2] != k.shape[2]}


def flex() -> Callable[..., Any]:
    """FlexAttention, as a user compiles it."""
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    made, kept = torch.compile(flex_attention, dynamic=False), Kept(_flexible)

    def run(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        out, more = made(*(x.transpose(1, 2) for x in (q, k, v)), return_aux=AuxRequest(lse=True), **kept(q, k, v, *rest))
        return out.transpose(1, 2), more.lse

    return run


def flex_backward() -> Callable[..., Any]:
    """What autograd runs."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    made = torch.compile(flex_attention, dynamic=False)

    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            return leaves, made(*(x.transpose(1, 2) for x in leaves), **_flexible(q, k, v, *rest)).transpose(1, 2)

    kept = Kept(forward)

    def run(dout: Tensor, dlse: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Any, ...]:
        lists, ranges, numbers = rest[:11], rest[11:13], rest[13:]
        leaves, result = kept(q, k, v, *lists, *numbers, *ranges)
        return (*torch.autograd.grad(result, leaves, dout, retain_graph=True), None, None)

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
