"""What the contracts of attention share: calls on the CPU, the form of a result, what only the device sees, and how a normaliser is judged."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Judged, like
from rooftop.core.spec import Meta
from rooftop.ops._attention import UNBOUNDED

if TYPE_CHECKING:
    from torch import Tensor

UNITS = {"bf16": "tensor-bf16", "f16": "tensor-f16", "f32": "fma32", "f8e4m3": "tensor-f8"}


def cpu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, *rest: Any) -> Any:
    """Torch's own without the normaliser, of dense sequences; a single query at the last position sees every key, causal or not."""
    import torch

    tensors, (left, right, scale, softcap, dropout_p, _), ranges = rest[:9], rest[9:15], rest[15:]
    causal = right == 0 and q.shape[1] != 1
    if (
        any(t is not None for t in (bias, mask, *tensors, *ranges)) or softcap or dropout_p or left != UNBOUNDED
        or right not in (UNBOUNDED, 0)
    ):
        return NotImplemented
    if q.dtype != k.dtype or q.element_size() == 1 or (causal and q.shape[1] != k.shape[1]) or not (q.numel() and k.numel() and v.numel()):
        return NotImplemented
    if k.shape[1] == 1 and not causal:  # a softmax of one score, whose gradient is exactly 0
        wide_q, wide_k, wide_v = (x.float() if x.element_size() == 2 else x for x in (q, k, v))
        group = q.shape[2] // k.shape[2]
        score = (wide_q * wide_k.repeat_interleave(group, 2)).sum(-1, keepdim=True) * scale
        return (score.softmax(-1) * wide_v.repeat_interleave(group, 2)).to(q.dtype), None
    if q.element_size() == 2 and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):  # torch's gradients err too much
        return (_in_float32()(q, k, v, causal, scale), None) if q.shape[-1] == v.shape[-1] else NotImplemented
    a, b, c = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=causal, scale=scale, enable_gqa=q.shape[2] != k.shape[2])
    return out.transpose(1, 2), None


@cache
def _in_float32() -> Callable[..., Tensor]:
    """(q, k, v, causal, scale) -> out of 16 bits, computed in float32, with the gradients of `cpu_backward`."""
    import torch

    from rooftop.core import library, registry

    class Attention(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
            group = q.shape[2] // k.shape[2]
            a, b, c = (x.float().repeat_interleave(n, 2).transpose(1, 2) if n > 1 else x.float().transpose(1, 2) for x, n in ((q, 1), (k, group), (v, group)))
            found, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(a, b, c, 0.0, causal, scale=scale)
            out: Tensor = found.transpose(1, 2).to(q.dtype)
            ctx.save_for_backward(q, k, v, out, lse)
            ctx.options = (UNBOUNDED, 0 if causal else UNBOUNDED, scale, 0.0, 0.0, 0)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            if torch.is_grad_enabled():
                raise NotImplementedError("attention can be differentiated once; a derivative of its derivative was asked for (create_graph=True)")
            given = (grads[0], None, *ctx.saved_tensors, *[None] * 13, *ctx.options)
            found = cpu_backward(*given)
            if found is NotImplemented:
                found = library.fallback(registry.op("attention_bwd"), given)
            return (*found[:3], None, None)

    return Attention.apply


def cpu_backward(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Tensor | None, mask: Tensor | None,
    *rest: Any,
) -> Any:
    """By torch's own function, in float32, of dense sequences whose normalisers are finite."""
    import torch

    tensors, (left, right, scale, softcap, dropout_p, _) = rest[:11], rest[11:]
    causal, group = right == 0 and q.shape[1] != 1, q.shape[2] // max(k.shape[2], 1)
    if (
        any(t is not None for t in (dlse, bias, mask, *tensors)) or softcap or dropout_p or left != UNBOUNDED or right not in (UNBOUNDED, 0)
        or q.dtype != k.dtype or q.element_size() == 1 or (causal and q.shape[1] != k.shape[1]) or k.shape[1] < 2
        or q.shape[-1] != v.shape[-1] or not (q.numel() and k.numel()) or not bool(lse.isfinite().all())
    ):
        return NotImplemented
    a, da, o = (x.float().transpose(1, 2) for x in (q, dout, out))
    b, c = (x.float().repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(da, a, b, c, o, lse, 0.0, causal, scale=scale)
    dq, dk, dv = (x.transpose(1, 2) for x in found)
    dk, dv = (x.unflatten(2, (-1, group)).sum(3) for x in (dk, dv)) if group > 1 else (dk, dv)
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None


def with_columns(q: Meta, last: int) -> Meta:
    """A tensor of the shape of `q` but for its last dimension, whose dimensions lie in the same order."""
    if like(q).strides != q.strides:
        return Meta((*q.shape[:-1], last), q.dtype)
    strides, step = [1] * len(q.shape), 1
    shape = (*q.shape[:-1], last)
    for i in sorted(range(len(shape)), key=lambda i: (q.strides[i], q.shape[i])):
        strides[i], step = step, step * shape[i]
    return Meta(shape, q.dtype, tuple(strides)) if strides[-1] == 1 and q.numel else Meta(shape, q.dtype)


def faults(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    """What only the device can see: bounds that are none, lengths and pages beyond the cache, ranges beyond the keys."""
    _, _, cu_q, cu_k, pages, lengths, *_ = rest
    for name, bounds, total in (("cu_seqlens_q", cu_q, q.shape[1]), ("cu_seqlens_k", cu_k, k.shape[1])):
        if bounds is not None:
            values = bounds.tolist()
            if values != sorted(values) or values[0] < 0 or values[-1] > total:
                return f"{name} is {values[:8]}...; it must rise from 0 or more to at most {total}"
    if pages is not None and k.shape[1] == 0:
        return f"k has shape {tuple(k.shape)}: pages of no token; with page_table its second extent, page_size, must be at least 1"
    if lengths is not None:
        most = k.shape[1] * (1 if pages is None else pages.shape[1])
        if bool(((lengths < 0) | (lengths > most)).any()):
            return f"cache_lengths is {lengths.tolist()[:8]}...; each must be 0 to {most}"
        if pages is not None:
            used = -(-lengths // k.shape[1])
            for b in range(pages.shape[0]):
                found = pages[b, : int(used[b])]
                if bool(((found < 0) | (found >= k.shape[0])).any()):
                    accepted = f"each must be 0 to {k.shape[0] - 1}" if k.shape[0] else "k has no page"
                    return f"page_table[{b}] is {found.tolist()[:8]}...; {accepted}"
    for name, at in zip(("begin", "end"), rest[17:], strict=False):
        if at is not None and bool(((at < 0) | (at > k.shape[1])).any()):
            return f"{name} of mask is {int(at.min())} to {int(at.max())}; it must be 0 to {k.shape[1]}"
    return None


def same_lse(judged: Judged) -> str | None:
    """Infinite or NaN where plain torch is; else, of 16-bit inputs, to 2^-18 of the larger of 1 and lse: tensor cores add the products of a
    score in some 24 bits without rounding, and no more of it is seen in weights of 16 bits. Of 8-bit queries to 2^-8 of it: they add 8-bit products
    in 14 bits, cut off. Of float32 to four times what torch errs."""
    got, exact, plain = (t["lse"].double() for t in (judged.got, judged.exact, judged.same))
    there = plain.isfinite()
    if not bool(((got == plain) | (got.isnan() & plain.isnan()))[~there].all()) or not bool(got[there].isfinite().all()):
        return "lse is NaN or infinite elsewhere than in plain torch"
    if not bool(there.any()):
        return None
    mine, theirs, size = (got - exact)[there].abs(), (plain - exact)[there].abs(), exact[there].abs().clamp(min=1.0)
    allowed = size * {1: 2.0**-8, 2: 2.0**-18}.get(judged.tensors["q"].element_size(), 0.0) + 4 * theirs.max()
    over = mine > allowed
    return f"lse errs by {float(mine[over].max()):.3g}; {float(allowed[over].min()):.3g} is allowed" if bool(over.any()) else None
