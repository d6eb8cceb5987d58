"""What `rooftop.attention` accepts: every refusal says what was given and what is accepted."""

from __future__ import annotations

from typing import Any

from rooftop.core.argument_checks import among, number, positive
from rooftop.ops._attention import UNBOUNDED

FAR = 2**30 - 1  # as far as a window reaches
EIGHT_BITS = "torch.float8_e4m3fn"
CAUSAL = ("upper_left", "lower_right")
ORDERS = ("bshd", "bhsd")
MANY = 256  # heads: more than models have
MOST = 256  # columns of a head


def first_order(op: str, order: Any, q: Any, k: Any, v: Any, pages: Any) -> str:
    """The order of the dimensions; where none is named, "bshd". Raises ValueError for one that does not exist, and for shapes that do not
    name it and look like
    [B, H, S, D]: they fit that alone, or as [B, S, H, D] there were more heads than models have, or as many as tokens of grouped heads."""
    import torch

    if order is not None and order not in ORDERS:
        raise ValueError(f"{op}: order is {order!r}; it must be one of {', '.join(map(repr, ORDERS))}, or None for {ORDERS[0]!r}")
    if order is not None or pages is not None or not all(isinstance(t, torch.Tensor) and t.dim() == 4 for t in (q, k, v)):
        return order or ORDERS[0]
    (batch, one, other, _), (of_k, one_k, other_k, _) = q.shape, k.shape
    if batch != of_k or k.shape[:3] != v.shape[:3] or not (one_k and other_k) or one % one_k:  # not [B, H, S, D]
        return ORDERS[0]
    grouped = one > one_k and other == other_k and other > one
    if other % other_k or (other > MANY >= one) or grouped:
        raise ValueError(
            f"{op}: q has shape {tuple(q.shape)} and k {tuple(k.shape)}, which look like [B, heads, tokens, D]: give order='bhsd' if they "
            f"are that, "
            "order='bshd' if they are [B, tokens, heads, D]"
        )
    return ORDERS[0]


def latent(q: Any, k: Any, v: Any) -> bool:
    """Whether the heads are larger than those of models, and `v` is a view of the first columns of `k`: one tensor for both."""
    import torch

    if not all(isinstance(t, torch.Tensor) and t.dim() == 4 for t in (q, k, v)) or q.shape[-1] <= MOST or k.shape[:-1] != v.shape[:-1]:
        return False
    alike = k.dtype == v.dtype and k.device == v.device and k.stride() == v.stride() and k.storage_offset() == v.storage_offset()
    differentiated = torch.is_grad_enabled() and k.requires_grad != v.requires_grad  # a detached view: one gradient for both would be wrong
    return alike and v.shape[-1] <= k.shape[-1] and not differentiated and (v._base is k or torch._C._is_alias_of(k, v))


def without(what: str, **given: Any) -> None:
    """Raises ValueError for the first of `given` that is given."""
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise ValueError(f"attention: {name} is given with {what}, which take none")


def turned(t: Any, order: str) -> Any:
    """From an order to [B, S, H, D], and back."""
    return t.transpose(-3, -2) if order == "bhsd" and hasattr(t, "transpose") and t.dim() >= 3 else t


def upper_left(q: Any, k: Any, v: Any, bias: Any, mask: Any, right: int) -> tuple[Any, Any, Any, Any, int]:
    """k, v, bias, mask and the window's right end with which the first query is at the first key: keys behind the last query are seen by
    none, and where there are fewer keys than queries the window reaches over the difference."""
    queries, keys = q.shape[1], k.shape[1]
    if keys <= queries:
        return k, v, bias, mask, right + queries - keys
    cut = [t[..., :queries] if t is not None and not isinstance(t, (tuple, list)) and t.shape[-1] > 1 else t for t in (bias, mask)]
    if isinstance(mask, (tuple, list)):
        cut[1] = tuple(t.clamp(max=queries) for t in mask)
    return k[:, :queries], v[:, :queries], cut[0], cut[1], right


def validated(
    tensors: dict[str, Any], causal: Any, window: Any, scale: Any, softcap: Any, dropout_p: Any,
) -> tuple[int, int]:
    """(left, right) of the window. `tensors`: the public function's, in its order."""
    import torch

    q, k, v, bias, mask, cu_q, cu_k, pages, lengths, slopes, q_scale, k_scale, v_scale, sinks = tensors.values()

    def refuse(text: str) -> ValueError:
        return ValueError(f"attention: {text}")

    ranges: tuple[Any, ...] = ()
    if isinstance(mask, (tuple, list)):
        if len(mask) != 2:
            raise ValueError(
                f"attention: mask is a {type(mask).__name__} of {len(mask)}; it must be a tensor, or the pair (begin, end) of "
                f"attention_ranges"
            )
        ranges, mask = tuple(mask), None
        tensors = {**tensors, "mask": None, "mask[0]": ranges[0], "mask[1]": ranges[1]}
    for name, t in tensors.items():
        if (t is not None or name in "qkv" or name[-1] == "]") and not isinstance(t, torch.Tensor):
            raise TypeError(f"attention: {name} is a {type(t).__name__}; it must be a tensor")
        if t is not None and t.device != q.device:
            raise refuse(f"q lies on {q.device} and {name} on {t.device}; they must be on one device")
    floats = (torch.float32, torch.float16, torch.bfloat16)
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dtype not in floats and str(t.dtype) != EIGHT_BITS:
            raise TypeError(f"attention: {name} is {t.dtype}; accepted are {', '.join(map(str, floats))}, {EIGHT_BITS}")
        if (
            t.dtype != (q.dtype if name == "k" else k.dtype) and not (name == "k" and str(k.dtype) == EIGHT_BITS and q.dtype in floats)
            and name != "q"
        ):
            raise TypeError(f"attention: q is {q.dtype}, k {k.dtype} and v {v.dtype}; they must be alike, or k and v {EIGHT_BITS}")
        if str(t.dtype) == EIGHT_BITS and t.requires_grad:
            raise refuse(f"{name} is {t.dtype} and requires a gradient; 8 bits have none")
    if (cu_q is None) != (cu_k is None):
        raise refuse("cu_seqlens_q and cu_seqlens_k must be given together")
    if pages is not None and (lengths is None or cu_q is not None):
        raise refuse("page_table needs cache_lengths, and no cu_seqlens")
    if lengths is not None and cu_q is not None:
        raise refuse("cache_lengths and cu_seqlens_k are both given; cu_seqlens_k says how many keys there are")
    rank = 4 if cu_q is None else 3
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != rank:
            want = "[B, S, heads, D]" if rank == 4 else "[T, heads, D] with cu_seqlens"
            raise refuse(f"{name} has shape {tuple(t.shape)}; it must be {want}")
    heads, key_heads, size = q.shape[-2], k.shape[-2], q.shape[-1]
    if k.shape[-1] != size or k.shape[:-1] != v.shape[:-1] or (rank == 4 and pages is None and k.shape[0] != q.shape[0]):
        raise refuse(
            f"q has shape {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}; they must be [B, Sq, H, D], [B, Sk, Hk, D] and [B, "
            f"Sk, Hk, Dv]"
        )
    if heads % max(key_heads, 1) or (heads > 0) != (key_heads > 0):
        raise refuse(f"q has {heads} heads and k {key_heads}; the first must be a multiple of the second")
    for name, n in (("D", size), ("Dv", v.shape[-1])):
        if not 8 <= n <= MOST or n % 8:
            more = "; or more where v is a view of the first columns of k, as of latent heads" if n > MOST else ""
            raise refuse(f"{name}, the size of a head, is {n}; accepted are multiples of 8 from 8 to {MOST}{more}")
    batch = q.shape[0] if rank == 4 else 1
    for name, t, dtypes in (("bias", bias, (q.dtype, torch.float32)), ("mask", mask, (torch.bool,))):
        if t is None:
            continue
        if t.dtype not in dtypes:
            raise TypeError(f"attention: {name} is {t.dtype}; accepted are {', '.join(map(str, dict.fromkeys(dtypes)))}")
        if cu_q is not None or pages is not None:
            raise refuse(f"{name} is given with cu_seqlens or page_table; it belongs to batches of one length")
        whole = (batch, heads, q.shape[1], k.shape[1])
        if t.dim() != 4 or any(n != 1 and n != w for n, w in zip(t.shape, whole, strict=True)):
            raise refuse(f"{name} has shape {tuple(t.shape)}; each extent must be 1 or that of {whole}")
    for name, t in zip(("mask[0]", "mask[1]"), ranges, strict=False):
        if t.dtype != torch.int32:
            raise TypeError(f"attention: {name} is {t.dtype}; accepted is torch.int32")
        if cu_q is not None or pages is not None:
            raise refuse("mask is given with cu_seqlens or page_table; it belongs to batches of one length")
        if tuple(t.shape) != (batch, q.shape[1]):
            raise refuse(f"{name} has shape {tuple(t.shape)}; it must be {(batch, q.shape[1])}")
    for name, t, shapes in (
        ("cu_seqlens_q", cu_q, None), ("cu_seqlens_k", cu_k, None if cu_q is None else (tuple(cu_q.shape),)),
        ("page_table", pages, None), ("cache_lengths", lengths, ((batch,),)),
    ):
        if t is None:
            continue
        if t.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"attention: {name} is {t.dtype}; accepted are torch.int32, torch.int64")
        fits = (
            t.dim() == 1 and t.numel() >= 1 if name == "cu_seqlens_q" else t.dim() == 2 and t.shape[0] == batch if name == "page_table"
            else False
        )
        if not (fits if shapes is None else among(tuple(t.shape), shapes)):
            raise refuse(
                f"{name} has shape {tuple(t.shape)}; it must be {shapes[0] if shapes else '[N + 1]' if rank == 3 else f'[{batch}, pages]'}"
            )
    for name, t, n, dtypes in (
        ("alibi_slopes", slopes, heads, (torch.float32,)), ("sinks", sinks, heads, (torch.float32, q.dtype)),
        ("q_scale", q_scale, heads, (torch.float32,)), ("k_scale", k_scale, key_heads, (torch.float32,)),
        ("v_scale", v_scale, key_heads, (torch.float32,)),
    ):
        if t is None:
            continue
        if t.dtype not in dtypes:
            raise TypeError(f"attention: {name} is {t.dtype}; accepted are {', '.join(map(str, dict.fromkeys(dtypes)))}")
        accepted = [(n,), *([(batch, n)] if name == "alibi_slopes" else [(1,)] if "scale" in name else [])]
        if not among(tuple(t.shape), accepted):
            raise refuse(f"{name} has shape {tuple(t.shape)}; it must be {' or '.join(map(str, accepted))}")
        if "scale" in name and str({"q": q, "k": k, "v": v}[name[0]].dtype) != EIGHT_BITS:
            raise refuse(f"{name} is given, and {name[0]} is no {EIGHT_BITS}")
    number("attention", "dropout_p", dropout_p, "a number, at least 0 and below 1")
    if not 0 <= dropout_p < 1:
        raise refuse(f"dropout_p is {dropout_p}; it must be at least 0 and below 1")
    if dropout_p and pages is not None:
        raise refuse("dropout_p is given with page_table; a cache is read without dropout")
    if scale is not None:
        positive("attention", "scale", scale)
    if softcap is not None:
        positive("attention", "softcap", softcap)
    if causal == "upper_left":
        if any(t is not None for t in (cu_q, pages, lengths)):
            raise refuse("causal is 'upper_left' with cu_seqlens, page_table or cache_lengths; it belongs to batches of one length")
        if k.shape[1] < q.shape[1] and (slopes is not None or (window is not None and window[0] != UNBOUNDED)):
            raise refuse(
                f"causal is 'upper_left' with {q.shape[1]} queries and {k.shape[1]} keys; a window or alibi_slopes needs a key for each "
                f"query"
            )
    return window_of(causal, window)


def window_of(causal: Any, window: Any) -> tuple[int, int]:
    if not isinstance(causal, (bool, str)):
        raise TypeError(
            f"attention: causal is {causal!r}, a {type(causal).__name__}; it must be True, False, {' or '.join(map(repr, CAUSAL))}"
        )
    if isinstance(causal, str) and causal not in CAUSAL:
        raise ValueError(f"attention: causal is {causal!r}; it must be True, False, {' or '.join(map(repr, CAUSAL))}")
    if window is None:
        return UNBOUNDED, 0 if causal else UNBOUNDED
    if not isinstance(window, (tuple, list)) or len(window) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in window):
        raise TypeError(f"attention: window is {window!r}; it must be a pair of whole numbers (left, right), or None")
    left, right = window
    if left < UNBOUNDED or right < UNBOUNDED:
        raise ValueError(f"attention: window is {tuple(window)}; left and right must be at least 0, or -1 for no bound")
    return min(left, FAR), 0 if causal else min(right, FAR)
