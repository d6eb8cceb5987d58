"""`rooftop.attention` as torch's `scaled_dot_product_attention`."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, by `rooftop.attention` where that takes the tensors, else by torch itself.

    The differences: a query that sees no key gives zeros; dropout is that of `rooftop.attention`, its seed drawn from torch's default
    generator of the CPU. Under autocast float32 and 16-bit tensors are cast to its dtype, as torch does.

    Args:
        query: [..., H, L, D]. float16, bfloat16 or float32, D and Dv multiples of 8 up to 256; other dtypes and sizes go to torch.
        key, value: [..., Hk, S, D] and [..., Hk, S, Dv]. Hk = H, or with `enable_gqa` divisors of it. The dimensions before L and S, but
            for the heads with `enable_gqa`, are broadcast.
        attn_mask: broadcast over [..., H, L, S]: bool, True where a query sees a key, or a float that is added to the scores.
        dropout_p: as `rooftop.attention`'s; given, it is applied: there is no training mode. 1 goes to torch.
        is_causal: query i sees the keys 0 to i, whatever S. Not with `attn_mask`.
        scale: None: D ** -0.5. What `rooftop.attention` does not take, 0 or negative numbers say, goes to torch.

    Returns [..., H, L, Dv]. Raises TypeError and ValueError for what fits neither, as `rooftop.attention` does."""
    import torch

    from rooftop.core.argument_checks import flag, number
    from rooftop.core.autocasting import lowered
    from rooftop.ops.attention import attention

    op = "scaled_dot_product_attention"
    for name, t in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if not isinstance(t, torch.Tensor) and (t is not None or name != "attn_mask"):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor{', or None' if name == 'attn_mask' else ''}")
    if scale is not None:
        number(op, "scale", scale, "a number, or None")
    number(op, "dropout_p", dropout_p, "0 to 1")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{op}: dropout_p is {dropout_p}; it must be 0 to 1")
    flag(op, "is_causal", is_causal)
    flag(op, "enable_gqa", enable_gqa)
    for name, t in (("key", key), ("value", value), ("attn_mask", attn_mask)):
        if t is not None and t.device != query.device:
            raise ValueError(f"{op}: query lies on {query.device} and {name} on {t.device}; they must be on one device")
    if attn_mask is not None and is_causal:
        raise ValueError(f"{op}: attn_mask and is_causal are both given; give one of them")
    query, key, value, attn_mask = lowered(query, key, value, attn_mask)
    if min(t.dim() for t in (query, key, value)) < 3 or not fits(query, value, scale, dropout_p):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    query, key, value = _alike(query, key, value, enable_gqa)
    outer, (heads, rows), keys = query.shape[:-3], query.shape[-3:-1], key.shape[-2]
    batch = prod(outer)
    q, k, v = (t.reshape(batch, *t.shape[-3:]).transpose(1, 2) for t in (query, key, value))
    more: dict[str, Any] = {}
    if is_causal:  # the first query stands at the first key
        if keys > rows:
            k, v = k[:, :rows], v[:, :rows]
        more["window"] = (-1, max(rows - keys, 0))
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool and attn_mask.dtype != query.dtype and attn_mask.dtype != torch.float32:
            accepted = ", ".join(map(str, dict.fromkeys((torch.bool, query.dtype, torch.float32))))
            raise TypeError(f"{op}: attn_mask is {attn_mask.dtype}; accepted are {accepted}")
        more["mask" if attn_mask.dtype == torch.bool else "bias"] = _as_four(attn_mask, (*outer, heads, rows, keys), batch)
    out = attention(q, k, v, scale=scale, dropout_p=dropout_p, order="bshd", **more)
    return out.transpose(1, 2).reshape(*outer, heads, rows, value.shape[-1])


def fits(query: Tensor, value: Tensor, scale: float | None, dropout_p: float) -> bool:
    """Whether `rooftop.attention` takes heads of this size and dtype, and these numbers."""
    import torch

    from rooftop.core.argument_checks import FLOAT32, NORMAL32

    sizes_fit = all(t.shape[-1] % 8 == 0 and 8 <= t.shape[-1] <= 256 for t in (query, value))
    numbers_fit = dropout_p < 1 and (scale is None or NORMAL32 <= scale <= FLOAT32)
    return query.dtype in (torch.float32, torch.float16, torch.bfloat16) and sizes_fit and numbers_fit


def drawn() -> int:
    """A seed for dropout from torch's default generator of the CPU, which checkpoints of activations restore."""
    import torch

    from rooftop.ops import _randomness

    return int(_randomness.seed("attention", None, None, torch.empty(0)))


def _alike(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """With one shape before the heads. Heads are left as `rooftop.attention` takes them: as many of keys as of values, which divide those
    of the query."""
    import torch

    op, given = "scaled_dot_product_attention", (query, key, value)
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"{op}: query has shape {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)}; "
            "they must be [..., L, D], [..., S, D] and [..., S, Dv]"
        )
    heads = [t.shape[-3] for t in given]
    try:
        outer = torch.broadcast_shapes(*(t.shape[:-3] for t in given))
    except RuntimeError:
        raise ValueError(
            f"{op}: query has shape {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)}; "
            "the dimensions before the heads must be alike, or 1 where they are broadcast"
        ) from None
    if enable_gqa:
        whole, apart = heads[0], heads[1] != heads[2]
        if apart and any(n == 0 or whole % n for n in heads[1:]):
            raise ValueError(
                f"{op}: query has {whole} heads, key {heads[1]} and value {heads[2]}; those of key and value must divide the query's"
            )
        key, value = (t.repeat_interleave(whole // t.shape[-3], -3) if apart else t for t in (key, value))
    else:
        whole = next((n for n in heads if n != 1), 1)
        if any(n != 1 and n != whole for n in heads):
            raise ValueError(
                f"{op}: query has {heads[0]} heads, key {heads[1]} and value {heads[2]}; they must be alike or 1, or enable_gqa given"
            )
        query = query.expand(*query.shape[:-3], whole, *query.shape[-2:])
        if heads[1] != heads[2]:
            key, value = (t.expand(*t.shape[:-3], whole, *t.shape[-2:]) for t in (key, value))
    return query.expand(*outer, *query.shape[-3:]), key.expand(*outer, *key.shape[-3:]), value.expand(*outer, *value.shape[-3:])


def _as_four(mask: Tensor, whole: tuple[int, ...], batch: int) -> Tensor:
    """A mask that is broadcast over [..., H, L, S] as [B or 1, H or 1, L or 1, S or 1]."""
    if mask.dim() > len(whole) or any(n != 1 and n != w for n, w in zip(reversed(mask.shape), reversed(whole), strict=False)):
        raise ValueError(f"scaled_dot_product_attention: attn_mask has shape {tuple(mask.shape)}; it must broadcast over {whole}")
    mask = mask.reshape(*(1,) * (len(whole) - mask.dim()), *mask.shape)
    outer = mask.shape[:-3]
    if all(n == 1 for n in outer):
        return mask.reshape(1, *mask.shape[-3:])
    return mask.expand(*whole[:-3], *mask.shape[-3:]).reshape(batch, *mask.shape[-3:])
