"""`rooftop.attention` as an attention function of Hugging Face Transformers; its masks: rooftop/drop_in/transformers_masks.py."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rooftop.core import invariance
from rooftop.core.autocasting import lowered
from rooftop.drop_in.attention import drawn, fits
from rooftop.drop_in.transformers_masks import is_lengths, is_order, is_pages, is_runs, transformers_mask
from rooftop.drop_in.transformers_models import gives

if TYPE_CHECKING:
    from torch import Tensor

# What layers give every attention function and what changes nothing here: the mask, the cache and rope have used it, or it is of other
# libraries.
USED = frozenset({
    "position_ids", "cache_position", "use_cache", "sliding_window", "deterministic", "max_length_q", "max_length_k", "seq_idx",
})
REMEDY = 'give attn_implementation="sdpa" or "eager"'


def transformers_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
    position_bias: Tensor | None = None, cu_seq_lens_q: Tensor | None = None, cu_seq_lens_k: Tensor | None = None, **others: Any,
) -> tuple[Tensor, None]:
    """An attention function of Hugging Face Transformers (`AttentionInterface`): it does what its `sdpa` function does, and soft caps and
    sinks besides.

    Args:
        module: the layer. Its `is_causal` counts where the argument is None; without either, True.
        query: [B, H, L, D].
        key, value: [B, Hk, S, D] and [B, Hk, S, Dv], not repeated. H is a multiple of Hk.
        attention_mask: bool, or a float that is added to the scores, broadcast over [B, H, L, S]; or one of the forms of
            rooftop/drop_in/transformers_masks.py, which `transformers_mask` returns. Keys after the S-th are left out. None: query i sees
            the keys 0 to i where `is_causal` and L > 1, whatever S; else all keys.
        dropout: the probability that a weight is dropped; its seed is drawn from torch's default generator of the CPU.
        scaling: factor of the scores; None: D ** -0.5.
        softcap: scores are bounded to ± this, before `position_bias` and the mask.
        s_aux: sinks [H]: a score without a key, for each head.
        position_bias: added to the scores, broadcast over [B, H, L, S], with a gradient.
        cu_seq_lens_q, cu_seq_lens_k: bounds of packed sequences in the B · L tokens, where no mask tells them apart, and under
            `rooftop.invariant()` where it says for each token which run of keys it sees.
        others: None; what changes nothing (`sliding_window`: the mask has it); and what a layer only hands on from the caller of its model,
            which Transformers' own functions do not read either.

    Under autocast, tensors are cast as torch's function does. Head sizes and dtypes that no kernel takes run in torch's function, or with a
    soft cap or sinks as plain torch.

    Returns (out [B, L, H, Dv], None). Raises TypeError for another keyword that the layer gives (indices of a sparse pattern), for
    `output_attentions`, and for masks of other dtypes; ValueError for shapes that do not fit."""
    import torch

    from rooftop.ops.attention import attention

    name = "transformers_attention"
    if others.pop("output_attentions", None):
        raise TypeError(f'{name}: output_attentions is True; the weights are never in memory. Give attn_implementation="eager"')
    unknown = [n for n, given in others.items() if given is not None and n not in USED and gives(type(module), n)]
    if unknown:
        raise TypeError(f"{name}: {', '.join(unknown)} given by {type(module).__name__}, which may change the result; {REMEDY}")
    causal, window = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal, 0
    if attention_mask is not None and is_order(attention_mask):
        causal, window = bool(attention_mask.shape[0]) and is_causal is not False, attention_mask.shape[1]
        attention_mask = None
    query, key, value = lowered(query, key, value)
    rows, keys = query.shape[2], key.shape[2]
    more: dict[str, Any] = {"softcap": softcap}
    if attention_mask is not None and (is_lengths(attention_mask) or is_pages(attention_mask)):
        reach = others.get("sliding_window")
        more.update(
            causal=True, window=None if reach is None else (reach - 1, 0), cache_lengths=attention_mask[:, 0, 0, 0].expand(query.shape[0])
        )
        if is_pages(attention_mask):
            more["page_table"] = attention_mask[:, 1, 0]
    elif attention_mask is not None and not (invariance.on and cu_seq_lens_q is not None and is_runs(attention_mask)):
        more.update(_seen(attention_mask, query.shape[0], keys))
    elif cu_seq_lens_q is not None:
        if position_bias is not None:
            raise TypeError(f"{name}: position_bias and cu_seq_lens_q are both given; packed sequences have no bias")
        more.update(causal=causal, window=(window - 1, 0) if window and causal else None)
        more.update(cu_seqlens_q=cu_seq_lens_q, cu_seqlens_k=cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k)
    elif causal and rows > 1:  # the first query stands at the first key: a static cache is empty behind the prompt
        if keys < rows and window:
            raise ValueError(f"{name}: {rows} queries have a window over {keys} keys; the mask must say which keys they see")
        if keys > rows:
            key, value = key[:, :, :rows], value[:, :, :rows]
        more["window"] = (window - 1, max(rows - keys, 0))
    if position_bias is not None:
        bias = _four(position_bias)[..., : key.shape[2]]
        more["bias"] = bias + more["bias"] if "bias" in more else bias
    if "bias" in more and more["bias"].dtype != query.dtype:
        more["bias"] = more["bias"].to(torch.promote_types(more["bias"].dtype, torch.float32))
    if s_aux is not None:
        more["sinks"] = s_aux.reshape(-1) if s_aux.dtype == query.dtype else s_aux.reshape(-1).float()
    if not fits(query, value, scaling, dropout):
        return _by_torch(query, key, value, dropout, scaling, more), None
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if "cu_seqlens_q" in more:
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    out = attention(q, k, v, scale=scaling, dropout_p=dropout, seed=drawn() if dropout else 0, order="bshd", **more)
    return out.reshape(query.shape[0], rows, *out.shape[-2:]), None


def _four(x: Tensor) -> Tensor:
    return x.reshape(*(1,) * (4 - x.dim()), *x.shape)


def _seen(mask: Tensor, batch: int, keys: int) -> dict[str, Any]:
    """What `rooftop.attention` calls the mask of a model."""
    import torch

    if is_runs(mask):
        return {"mask": tuple(x[:, 0].expand(batch, -1) for x in mask.unbind(-1))}
    if mask.dtype != torch.bool and not mask.is_floating_point():
        given = f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise TypeError(f"transformers_attention: attention_mask is {given}; it must be bool, or a float that is added")
    return {"mask" if mask.dtype == torch.bool else "bias": _four(mask)[..., :keys]}


def _by_torch(query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None, more: dict[str, Any]) -> Tensor:
    """[B, L, H, Dv] by torch's function; by the formula with a soft cap or sinks, which that has not. `more`: of `rooftop.attention`."""
    import torch

    from rooftop.ops import _attention

    shape = query.shape
    if (table := more.get("page_table")) is not None:  # [pages, H, page size, D]
        key, value = (t[table.clamp(0, t.shape[0] - 1)].transpose(1, 2).flatten(2, 3) for t in (key, value))
    if (bounds := more.get("cu_seqlens_q")) is not None:
        query, key, value = (t.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2) for t in (query, key, value))
    rows, keys = query.shape[2], key.shape[2]
    left, right = more.get("window") or (-1, 0 if more.get("causal") else -1)
    mask, bias, softcap, sinks = (more.get(n) for n in ("mask", "bias", "softcap", "sinks"))
    if (lengths := more.get("cache_lengths")) is not None:
        at, own = torch.arange(keys, device=query.device), (lengths[:, None] - rows + torch.arange(rows, device=query.device))[..., None]
        mask = ((at <= own) & (at > own - 1 - left if left >= 0 else at >= 0))[:, None]
        left = right = -1
    if isinstance(mask, tuple):
        at = torch.arange(keys, device=query.device)
        mask = ((at >= mask[0][..., None]) & (at < mask[1][..., None]))[:, None]
    if bounds is not None:
        pairs = ((bounds, rows), (more["cu_seqlens_k"], keys))
        whose = [torch.searchsorted(b, torch.arange(n, device=query.device), right=True) for b, n in pairs]
        mask = (whose[0][:, None] == whose[1])[None, None]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    o = _attention.Options(bias, mask, None, sinks, left, right, scale, softcap or 0.0, dropout, 0, rows, keys)
    if softcap is None and sinks is None:
        seen = _attention.visible(_attention.Part(slice(0, 1), 0, rows, slice(0, keys), keys), o, query.device)
        mask = seen if mask is None else mask if seen is None else mask & seen
        if bias is not None:
            mask = (bias if mask is None else bias.masked_fill(~mask, float("-inf"))).to(query.dtype)
        grouped = query.shape[1] != key.shape[1]
        function = torch.nn.functional.scaled_dot_product_attention
        out = function(query, key, value, mask, dropout, scale=scaling, enable_gqa=grouped).transpose(1, 2)
    else:
        o = replace(o, seed=drawn()) if dropout else o
        q, k, v = (t.transpose(1, 2) if t.element_size() > 2 else t.transpose(1, 2).float() for t in (query, key, value))
        out = _attention.forward(q, k, v, list(_attention.parts(q, k, None, None, None, None)), o)[0].to(query.dtype)
    return out.reshape(shape[0], shape[2], *out.shape[2:])


def register_transformers(name: str = "rooftop", *, packed: bool = True, holes: bool = False) -> None:
    """Make ``attn_implementation="rooftop"`` known to Hugging Face Transformers (5.5 or later): `transformers_attention` and
    `transformers_mask`.

    `packed`: False promises of models that are compiled as a whole, called without a mask, that `position_ids` never start anew within a
    row. Their attention then runs in causal order, or in a window, instead of over runs of keys that are computed from `position_ids`.

    `holes`: True where the `attention_mask` of a compiled model may have 0 between the tokens of a row. Without it padding lies before and
    after them, attention runs over the keys between, and another mask stops the graph by an assertion; with it each call makes a mask of
    all pairs. Models that are not compiled look at their mask.

    Raises ImportError where Transformers is not installed, or older."""
    import transformers
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if "q_offset" not in inspect.signature(sdpa_mask).parameters:
        raise ImportError(f"transformers is {transformers.__version__}; register_transformers needs 5.5 or later")
    AttentionInterface.register(name, transformers_attention)
    promised: dict[str, Any] = {} if packed else {"packed": False}
    told = {**promised, "holes": True} if holes else promised
    AttentionMaskInterface.register(name, partial(transformers_mask, **told) if told else transformers_mask)
