"""Scaled dot-product attention, forward and backward, with all that models ask of it.

    z_ij = softcap · tanh(scale · q_i·k_j / softcap) + bias_ij - slope · |p_i - j|,  -inf where query i does not see key j
    out_i = sum_j exp(z_ij - lse_i) v_j,   lse_i = log sum_j exp(z_ij),   p_i = i + keys - queries

Sources: Vaswani et al. 2017 (arXiv 1706.03762); Dao 2023, FlashAttention-2 (arXiv 2307.08691); Shah et al. 2024, FlashAttention-3 (arXiv 2407.08608);
ALiBi: Press et al. 2022 (arXiv 2108.12409); sinks: Xiao et al. 2024 (arXiv 2309.17453). The formulas in torch: rooftop/ops/_attention.py"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Grad, Judged, Op, Tolerance, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops import _attention
from rooftop.ops._arguments import number
from rooftop.ops._attention import UNBOUNDED
from rooftop.ops._attention_peers import cudnn, cudnn_backward, flash, flash_backward
from rooftop.ops._random import signed

if TYPE_CHECKING:
    from torch import Tensor

FAR = 2**30 - 1  # as far as a window reaches
EIGHT_BITS = "torch.float8_e4m3fn"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    page_table: Tensor | None = None,
    cache_lengths: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = True,
    implementation: str | None = None,
) -> Any:
    """Attention of `q` to `k` and `v`, computed in float32 and rounded once, but for the probabilities, which meet `v` in its dtype.

    The last query stands at the last key: query i of a sequence is at position i + keys - queries. What no kernel takes runs as plain torch, with all scores
    of one key head in memory; `rooftop.explain` says which and why.

    Args:
        q: [B, Sq, H, D], float16, bfloat16 or float32, any strides: heads before tokens in memory are given as ``q.transpose(1, 2)``. D is a multiple of 8,
            at most 256. With `cu_seqlens_q` [T, H, D].
        k, v: [B, Sk, Hk, D] and [B, Sk, Hk, Dv] in the dtype of `q`, H a multiple of Hk: query head h uses key head h // (H / Hk). Dv as D; it may differ.
        causal: no key behind the query's own position.
        window: (left, right): how many keys before and behind its own position a query sees; -1: no bound.
        scale: of the scores, above 0; None: D ** -0.5.
        softcap: scores are bounded smoothly to ± this; None for not.
        bias: added to the scores: broadcast over [B, H, Sq, Sk] (each extent whole or 1), of the dtype of `q` or float32. It has a gradient.
        mask: bool, broadcast as `bias`: False where a query does not see a key.
        dropout_p: the probability that a weight is dropped, to 2^-16; those that stay are divided by 1 - dropout_p.
        seed: its low 32 bits and the number of an element decide what is dropped, in the backward too.
        cu_seqlens_q, cu_seqlens_k: int32 or int64 [N + 1], rising: sequence n has the queries cu_seqlens_q[n] to cu_seqlens_q[n + 1] - 1. Bounds that fall
            or reach beyond the buffer count as the nearest that fit (`rooftop.debug()` tells them). Queries of no sequence see nothing.
        page_table: int32 or int64 [B, pages of a sequence]: `k` and `v` are pages [pages, page_size, Hk, D]; token t of sequence b is
            ``k[page_table[b, t // page_size], t % page_size]``. A page that does not exist makes the queries that see it NaN.
        cache_lengths: int32 or int64 [B], the keys that each sequence has; None: all of them.
        alibi_slopes: float32 [H] or [B, H].
        q_scale, k_scale, v_scale: float32 [1] or [heads], for float8_e4m3fn tensors: the value is code · scale.
        sinks: [H], a score of no key that takes part in the normaliser; of the dtype of `q` or float32. It has a gradient.
        return_lse: return (out, lse), lse [B, H, Sq] (packed [H, T]) in float32, natural logarithm; gradients flow through both.
        deterministic: every kernel here gives the same bits at each run; False allows one that does not.
        implementation: a kernel by name (`"triton"`, `"gluon_sm90"`): it runs or raises. None picks the best that takes the input.

    Returns out [B, Sq, H, Dv] in the dtype of `q` (bfloat16 for 8 bits). A query that sees no key has zeros and lse -inf, and no gradient.

    Raises TypeError for other dtypes, ValueError for shapes, devices or numbers that do not fit."""
    left, right = _validate(
        q, k, v, causal, window, scale, softcap, bias, mask, dropout_p, seed, cu_seqlens_q, cu_seqlens_k, page_table, cache_lengths, alibi_slopes,
        q_scale, k_scale, v_scale, sinks,
    )  # fmt: skip
    packed = cu_seqlens_q is not None
    if packed:
        q, k, v = q[None], k[None], v[None]
    out, lse = OP(
        q, k, v, bias, mask, cu_seqlens_q, cu_seqlens_k, page_table, cache_lengths, alibi_slopes, q_scale, k_scale, v_scale, sinks, left, right,
        q.shape[-1] ** -0.5 if scale is None else float(scale), 0.0 if softcap is None else float(softcap), float(dropout_p), signed(seed),
        implementation=implementation,
    )  # fmt: skip
    if packed:
        out, lse = out[0], lse[0]
    return (out, lse) if return_lse else out


def _validate(
    q: Any, k: Any, v: Any, causal: Any, window: Any, scale: Any, softcap: Any, bias: Any, mask: Any, dropout_p: Any, seed: Any, cu_q: Any, cu_k: Any,
    pages: Any, lengths: Any, slopes: Any, q_scale: Any, k_scale: Any, v_scale: Any, sinks: Any,
) -> tuple[int, int]:  # fmt: skip
    """(left, right) of the window."""
    import torch

    def refuse(text: str) -> ValueError:
        return ValueError(f"attention: {text}")

    tensors = {
        "q": q, "k": k, "v": v, "bias": bias, "mask": mask, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "page_table": pages, "cache_lengths": lengths,
        "alibi_slopes": slopes, "q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "sinks": sinks,
    }  # fmt: skip
    for name, t in tensors.items():
        if (t is not None or name in "qkv") and not isinstance(t, torch.Tensor):
            raise TypeError(f"attention: {name} is a {type(t).__name__}; it must be a tensor")
        if t is not None and t.device != q.device:
            raise refuse(f"q lies on {q.device} and {name} on {t.device}; they must be on one device")
    floats = (torch.float32, torch.float16, torch.bfloat16)
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dtype not in floats and str(t.dtype) != EIGHT_BITS:
            raise TypeError(f"attention: {name} is {t.dtype}; accepted are {', '.join(map(str, floats))}, {EIGHT_BITS}")
        if t.dtype != (q.dtype if name == "k" else k.dtype) and not (name == "k" and str(k.dtype) == EIGHT_BITS and q.dtype in floats) and name != "q":
            raise TypeError(f"attention: q is {q.dtype}, k {k.dtype} and v {v.dtype}; they must be alike, or k and v {EIGHT_BITS}")
        if str(t.dtype) == EIGHT_BITS and t.requires_grad:
            raise refuse(f"{name} is {t.dtype} and requires a gradient; 8 bits have none")
    if (cu_q is None) != (cu_k is None):
        raise refuse("cu_seqlens_q and cu_seqlens_k must be given together")
    rank = 4 if cu_q is None else 3
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != rank:
            want = "[B, S, heads, D]" if rank == 4 else "[T, heads, D] with cu_seqlens"
            raise refuse(f"{name} has shape {tuple(t.shape)}; it must be {want}")
    heads, key_heads, size = q.shape[-2], k.shape[-2], q.shape[-1]
    if k.shape[-1] != size or k.shape[:-1] != v.shape[:-1] or (rank == 4 and pages is None and k.shape[0] != q.shape[0]):
        raise refuse(f"q has shape {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}; they must be [B, Sq, H, D], [B, Sk, Hk, D] and [B, Sk, Hk, Dv]")
    if heads % max(key_heads, 1) or (heads > 0) != (key_heads > 0):
        raise refuse(f"q has {heads} heads and k {key_heads}; the first must be a multiple of the second")
    for name, n in (("D", size), ("Dv", v.shape[-1])):
        if not 8 <= n <= 256 or n % 8:
            raise refuse(f"{name}, the size of a head, is {n}; accepted are multiples of 8 from 8 to 256")
    batch = q.shape[0] if rank == 4 else 1
    for name, t, dtypes in (("bias", bias, (q.dtype, torch.float32)), ("mask", mask, (torch.bool,))):
        if t is None:
            continue
        if t.dtype not in dtypes:
            raise TypeError(f"attention: {name} is {t.dtype}; accepted are {', '.join(map(str, dict.fromkeys(dtypes)))}")
        if cu_q is not None or pages is not None:
            raise refuse(f"{name} is given with cu_seqlens or page_table; it belongs to batches of one length")
        whole = (batch, heads, q.shape[1], k.shape[1])
        if t.dim() != 4 or any(n not in (1, w) for n, w in zip(t.shape, whole, strict=True)):
            raise refuse(f"{name} has shape {tuple(t.shape)}; each extent must be 1 or that of {whole}")
    for name, t, shapes in (
        ("cu_seqlens_q", cu_q, None), ("cu_seqlens_k", cu_k, None if cu_q is None else (tuple(cu_q.shape),)),
        ("page_table", pages, None), ("cache_lengths", lengths, ((batch,),)),
    ):  # fmt: skip
        if t is None:
            continue
        if t.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"attention: {name} is {t.dtype}; accepted are torch.int32, torch.int64")
        fits = t.dim() == 1 and t.numel() >= 1 if name == "cu_seqlens_q" else t.dim() == 2 and t.shape[0] == batch if name == "page_table" else False
        if not (fits if shapes is None else tuple(t.shape) in shapes):
            raise refuse(f"{name} has shape {tuple(t.shape)}; it must be {shapes[0] if shapes else '[N + 1]' if rank == 3 else f'[{batch}, pages]'}")
    if pages is not None and (lengths is None or cu_q is not None):
        raise refuse("page_table needs cache_lengths, and no cu_seqlens")
    if lengths is not None and cu_q is not None:
        raise refuse("cache_lengths and cu_seqlens_k are both given; cu_seqlens_k says how many keys there are")
    for name, t, n, dtypes in (
        ("alibi_slopes", slopes, heads, (torch.float32,)), ("sinks", sinks, heads, (torch.float32, q.dtype)), ("q_scale", q_scale, heads, (torch.float32,)),
        ("k_scale", k_scale, key_heads, (torch.float32,)), ("v_scale", v_scale, key_heads, (torch.float32,)),
    ):  # fmt: skip
        if t is None:
            continue
        if t.dtype not in dtypes:
            raise TypeError(f"attention: {name} is {t.dtype}; accepted are {', '.join(map(str, dict.fromkeys(dtypes)))}")
        accepted = [(n,), *([(batch, n)] if name == "alibi_slopes" else [(1,)] if "scale" in name else [])]
        if tuple(t.shape) not in accepted:
            raise refuse(f"{name} has shape {tuple(t.shape)}; it must be {' or '.join(map(str, accepted))}")
        if "scale" in name and str({"q": q, "k": k, "v": v}[name[0]].dtype) != EIGHT_BITS:
            raise refuse(f"{name} is given, and {name[0]} is no {EIGHT_BITS}")
    number("attention", "seed", seed, "a whole number", whole=True)
    number("attention", "dropout_p", dropout_p, "at least 0 and below 1")
    if not 0 <= dropout_p < 1:
        raise refuse(f"dropout_p is {dropout_p}; it must be at least 0 and below 1")
    if scale is not None:
        number("attention", "scale", scale, "a finite number above 0, or None", finite=True)
        if not scale > 0:
            raise refuse(f"scale is {scale}; it must be a finite number above 0, or None")
    if softcap is not None:
        number("attention", "softcap", softcap, "a finite number above 0, or None", finite=True)
        if not (softcap > 0 and isfinite(softcap)):
            raise refuse(f"softcap is {softcap}; it must be a finite number above 0, or None")
    return _window(causal, window)


def _window(causal: Any, window: Any) -> tuple[int, int]:
    if not isinstance(causal, bool):
        raise TypeError(f"attention: causal is {causal!r}, a {type(causal).__name__}; it must be a bool")
    if window is None:
        return UNBOUNDED, 0 if causal else UNBOUNDED
    if not isinstance(window, (tuple, list)) or len(window) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in window):
        raise TypeError(f"attention: window is {window!r}; it must be a pair of whole numbers (left, right), or None")
    left, right = window
    if left < UNBOUNDED or right < UNBOUNDED:
        raise ValueError(f"attention: window is {tuple(window)}; left and right must be at least 0, or -1 for no bound")
    return min(left, FAR), 0 if causal else min(right, FAR)


def _options(
    q: Tensor, k: Tensor, bias: Tensor | None, mask: Tensor | None, slopes: Tensor | None, sinks: Tensor | None, left: int, right: int, scale: float,
    softcap: float, dropout_p: float, seed: int,
) -> _attention.Options:  # fmt: skip
    return _attention.Options(bias, mask, slopes, sinks, left, right, scale, softcap, dropout_p, seed, q.shape[1], k.shape[1])


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    page_table: Tensor | None,
    cache_lengths: Tensor | None,
    alibi_slopes: Tensor | None,
    q_scale: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    sinks: Tensor | None,
    left: int,
    right: int,
    scale: float,
    softcap: float,
    dropout_p: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """(out [B, Sq, H, Dv], lse [B, H, Sq]). Packed sequences have B = 1."""
    q, k, v = (x if s is None else x * s[:, None] for x, s in ((q, q_scale), (k, k_scale), (v, v_scale)))
    options = _options(q, k, bias, mask, alibi_slopes, sinks, left, right, scale, softcap, dropout_p, seed)
    return _attention.forward(q, k, v, list(_attention.parts(q, k, cu_seqlens_q, cu_seqlens_k, page_table, cache_lengths)), options)


def same(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """The result at the same precision: in float32, but for the probabilities, which are rounded to the dtype of `v` before they meet it."""
    import torch

    bias, mask, cu_q, cu_k, pages, lengths, slopes, qs, ks, vs, sinks, *numbers = rest
    short = v.dtype if v.element_size() == 2 else torch.bfloat16 if v.element_size() == 1 else None
    q, k, v = ((x if x.element_size() > 2 else x.float()) * (1 if s is None else s[:, None]) for x, s in ((q, qs), (k, ks), (v, vs)))
    options = _options(q, k, bias, mask, slopes, sinks, *numbers)
    return _attention.forward(q, k, v, list(_attention.parts(q, k, cu_q, cu_k, pages, lengths)), options, short)


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    cache_lengths: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    left: int,
    right: int,
    scale: float,
    softcap: float,
    dropout_p: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """(dq, dk, dv, dbias, dsinks): rooftop/ops/_attention.py has the formulas."""
    options = _options(q, k, bias, mask, alibi_slopes, sinks, left, right, scale, softcap, dropout_p, seed)
    found = list(_attention.parts(q, k, cu_seqlens_q, cu_seqlens_k, None, cache_lengths))
    return _attention.backward(dout, dlse, q, k, v, out, lse, found, options)


def _as(q: Meta, last: int) -> Meta:
    """A tensor of the shape of `q` but for its last dimension, whose dimensions lie in the same order."""
    if like(q).strides != q.strides:
        return Meta((*q.shape[:-1], last), q.dtype)
    strides, step = [1] * len(q.shape), 1
    shape = (*q.shape[:-1], last)
    for i in sorted(range(len(shape)), key=lambda i: (q.strides[i], q.shape[i])):
        strides[i], step = step, step * shape[i]
    return Meta(shape, q.dtype, tuple(strides)) if strides[-1] == 1 and q.numel else Meta(shape, q.dtype)


def outputs(q: Meta, v: Meta, **_: Any) -> dict[str, Meta]:
    out = _as(q, v.shape[3])
    lse = Meta((q.shape[0], q.shape[2], q.shape[1]), "f64" if q.dtype == "f64" else "f32")
    return {"out": out if q.itemsize > 1 else out.with_(dtype="bf16"), "lse": lse}


def outputs_bwd(q: Meta, k: Meta, v: Meta, bias: Meta | None, sinks: Meta | None, **_: Any) -> dict[str, Meta | None]:
    made: dict[str, Meta | None] = {f"d{n}": _as(m, m.shape[-1]) for n, m in (("q", q), ("k", k), ("v", v))}
    return {**made, "dbias": bias and Meta(bias.shape, bias.dtype), "dsinks": sinks and Meta(sinks.shape, sinks.dtype)}


def canonical(p: Problem) -> Problem | None:
    """As they are; the columns of a head must be neighbours."""
    if any(m is not None and m.strides[-1] != 1 and m.shape[-1] > 1 for n, m in p.tensors if n in ("q", "k", "v", "dout", "out")):
        return None
    return p


def pairs(p: Problem) -> int:
    """Pairs of a query and a key that it sees, of one head: of packed sequences, pages and caches as if there were one sequence that fills all."""
    (batch, queries), keys = p["q"].shape[:2], p["k"].shape[1]
    left, right = int(p.option("left")), int(p.option("right"))
    if left == right == UNBOUNDED:
        return batch * queries * keys
    total = 0
    for i in range(queries):
        position = i + keys - queries
        first = 0 if left == UNBOUNDED else max(0, position - left)
        last = keys if right == UNBOUNDED else min(keys, position + right + 1)
        total += max(0, last - first)
    return batch * total


UNITS = {"bf16": "tensor-bf16", "f16": "tensor-f16", "f32": "fma32", "f8e4m3": "tensor-f8"}
READ = ("q", "k", "v", "bias", "mask", "sinks")


def work(p: Problem) -> Work:
    """Two products of a row and a column, and one exponential, for each pair that sees each other; every tensor once."""
    n = float(pairs(p) * p["q"].shape[2])
    ops = {UNITS[p["q"].dtype]: n * (p["q"].shape[3] + p["v"].shape[3]), "exp": n}
    return Work(sum(m.nbytes for name in READ if (m := p.get(name)) is not None), p["out"].nbytes + p["lse"].nbytes, ops)


def work_bwd(p: Problem) -> Work:
    """Five products: scores, dP, dV, dQ, dK."""
    n = float(pairs(p) * p["q"].shape[2])
    ops = {UNITS[p["q"].dtype]: n * (3 * p["q"].shape[3] + 2 * p["v"].shape[3]), "exp": n}
    read = sum(m.nbytes for name in (*READ, "dout", "out", "lse") if (m := p.get(name)) is not None)
    return Work(read, sum(m.nbytes for name in ("dq", "dk", "dv", "dbias", "dsinks") if (m := p.get(name)) is not None), ops)


def faults(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    """What only the device can see: bounds that are none, lengths and pages beyond the cache."""
    _, _, cu_q, cu_k, pages, lengths, *_ = rest
    for name, bounds, total in (("cu_seqlens_q", cu_q, q.shape[1]), ("cu_seqlens_k", cu_k, k.shape[1])):
        if bounds is not None:
            values = bounds.tolist()
            if values != sorted(values) or values[0] < 0 or values[-1] > total:
                return f"{name} is {values[:8]}...; it must rise from 0 or more to at most {total}"
    if lengths is not None:
        most = k.shape[1] * (1 if pages is None else pages.shape[1])
        if bool(((lengths < 0) | (lengths > most)).any()):
            return f"cache_lengths is {lengths.tolist()[:8]}...; each must be 0 to {most}"
        if pages is not None:
            used = -(-lengths // k.shape[1])
            for b in range(pages.shape[0]):
                found = pages[b, : int(used[b])]
                if bool(((found < 0) | (found >= k.shape[0])).any()):
                    return f"page_table[{b}] is {found.tolist()[:8]}...; each must be 0 to {k.shape[0] - 1}"
    return None


def arrange(tensors: Mapping[str, Any], options: Mapping[str, Any], generator: Any) -> dict[str, Any]:
    """Bounds that rise over the whole buffer, some sequences empty; lengths within the cache; pages of the pool."""
    import torch

    found: dict[str, Any] = {}
    for name, x in (("cu_seqlens_q", "q"), ("cu_seqlens_k", "k")):
        if (bounds := tensors.get(name)) is not None:
            total, n = tensors[x].shape[1], bounds.shape[0] - 1
            cuts = torch.randint(0, total + 1, (max(n - 1, 0),), generator=generator, device=bounds.device).sort().values
            ends = [torch.tensor([v], device=bounds.device) for v in (0, total)]
            found[name] = torch.cat((ends[0], cuts, ends[1]))[: n + 1].to(bounds.dtype)
    pages = tensors.get("page_table")
    if (lengths := tensors.get("cache_lengths")) is not None:
        most = tensors["k"].shape[1] * (1 if pages is None else pages.shape[1])
        found["cache_lengths"] = torch.randint(1, most + 1, lengths.shape, generator=generator, device=lengths.device).to(lengths.dtype)
    if pages is not None:
        found["page_table"] = torch.randint(0, tensors["k"].shape[0], pages.shape, generator=generator, device=pages.device).to(pages.dtype)
    return found


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    more = {n: t for n, t in tensors.items() if n not in ("q", "k", "v")}
    first = [tensors[n] for n in "qkv"]
    named = {"window": (options["left"], options["right"]), "softcap": options["softcap"] or None, "return_lse": True}
    return first, {**more, **named, **{n: options[n] for n in ("scale", "dropout_p", "seed")}}


def _same_lse(judged: Judged) -> str | None:
    """Infinite or NaN where plain torch is; else, of 16-bit inputs, to 2^-18 of the larger of 1 and lse: tensor cores add the products of a score in some 24
    bits without rounding, and no more of it is seen in weights of 16 bits. Of float32 to four times what torch errs."""
    got, exact, plain = (t["lse"].double() for t in (judged.got, judged.exact, judged.same))
    there = plain.isfinite()
    if not bool(((got == plain) | (got.isnan() & plain.isnan()))[~there].all()) or not bool(got[there].isfinite().all()):
        return "lse is NaN or infinite elsewhere than in plain torch"
    if not bool(there.any()):
        return None
    mine, theirs, size = (got - exact)[there].abs(), (plain - exact)[there].abs(), exact[there].abs().clamp(min=1.0)
    allowed = size * (2.0**-18 if judged.tensors["q"].element_size() < 4 else 0.0) + 4 * theirs.max()
    over = mine > allowed
    return f"lse errs by {float(mine[over].max()):.3g}; {float(allowed[over].min()):.3g} is allowed" if bool(over.any()) else None


NAMES = ("left", "right", "scale", "softcap", "dropout_p", "seed")


def _changed(function: Callable[..., Any], **changes: Any) -> Callable[..., Any]:
    """The forward or the backward with options exchanged for others."""

    def run(*args: Any) -> Any:
        values = dict(zip(NAMES, args[-6:], strict=True))
        return function(*args[:-6], *{n: changes[n](v) if n in changes else v for n, v in values.items()}.values())

    return run


def _tail_dropped(q: Tensor, k: Tensor, v: Tensor, bias: Any, mask: Any, *rest: Any) -> Any:
    """The last tile of 8 keys is not looked at where it is not full."""
    n = k.shape[1] // 8 * 8 if k.shape[1] > 8 and mask is None and bias is None and rest[0] is None and rest[3] is None else k.shape[1]
    return reference(q, k[:, :n], v[:, :n], bias, mask, *rest)


def _heads_in_turn(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """Query head h uses key head h % Hk."""
    import torch

    group = q.shape[2] // k.shape[2]
    order = torch.arange(q.shape[2]).view(group, -1).t().reshape(-1)
    back = order.argsort()
    out, lse = reference(q[:, :, order], k, v, *rest)
    return out[:, :, back], lse[:, back]


def _cases() -> list[Case]:
    def call(d: str, b: int, sq: int, h: int, size: int, *, sk: int = 0, hk: int = 0, dv: int = 0, left: int = -1, right: int = -1, cap: float = 0.0,
             p: float = 0.0, layout: str = "contiguous", fill: str = "normal", k_fill: str = "normal", **more: Any) -> dict[str, Any]:  # fmt: skip
        keys = (b, sk or sq, hk or h)
        return {
            "q": Input((b, sq, h, size), d, fill, layout), "k": Input((*keys, size), d, k_fill, layout), "v": Input((*keys, dv or size), d, "normal", layout),
            "left": left, "right": right, "scale": size**-0.5, "softcap": cap, "dropout_p": p, "seed": 7, **more,
        }  # fmt: skip

    bench = [
        case(f"{'causal' if c == 0 else 'full'} d{size} {s}", tags="bench", **call("bf16", 16384 // s, s, 16, size, right=c))
        for size in (128, 64) for c in (0, -1) for s in (2048, 8192, 16384)
    ]  # fmt: skip
    bench += [
        case("causal d128 512", tags="bench", **call("bf16", 32, 512, 16, 128, right=0)),
        case("causal d256 8192", tags="bench", **call("bf16", 2, 8192, 8, 256, right=0)),
        case("causal d128 8192, 4 key heads", tags="bench model", **call("bf16", 2, 8192, 16, 128, hk=4, right=0)),
        case("window 1024 d128 8192", tags="bench", **call("bf16", 2, 8192, 16, 128, left=1024, right=0)),
        case("soft cap d128 8192", tags="bench", **call("bf16", 2, 8192, 16, 128, right=0, cap=50.0)),
    ]
    i32: dict[str, Any] = {"cu_seqlens_q": Input((5,), "i32"), "cu_seqlens_k": Input((5,), "i32")}
    edges: dict[str, dict[str, Any]] = {
        "no queries": {"b": 2, "sq": 0, "h": 3, "sk": 3},
        "no batch": {"b": 0, "sq": 4, "h": 2},
        "one token": {"b": 1, "sq": 1, "h": 1},
        "odd 2x5": {"b": 2, "sq": 5, "h": 3},
        "causal 2x37": {"b": 2, "sq": 37, "h": 3, "right": 0},
        "tiles 1x129": {"b": 1, "sq": 129, "h": 2, "right": 0},
        "three tiles full 1x300": {"b": 1, "sq": 300, "h": 1, "size": 64},
        "three tiles causal 1x300": {"b": 1, "sq": 300, "h": 2, "size": 64, "right": 0},
        "few queries 2x3, 70 keys": {"b": 2, "sq": 3, "sk": 70, "h": 3, "right": 0},
        "more queries than keys": {"b": 2, "sq": 70, "sk": 9, "h": 3, "right": 0},
        "group of 8": {"b": 2, "sq": 19, "h": 8, "hk": 1, "right": 0},
        "2 heads a key head": {"b": 3, "sq": 33, "h": 4, "hk": 2},
        "d64": {"b": 1, "sq": 40, "h": 2, "size": 64, "right": 0},
        "d80": {"b": 1, "sq": 40, "h": 2, "size": 80, "right": 0},
        "d96": {"b": 1, "sq": 40, "h": 2, "size": 96},
        "d128": {"b": 1, "sq": 70, "h": 2, "size": 128, "right": 0},
        "d192, values of 128": {"b": 1, "sq": 20, "h": 2, "size": 192, "dv": 128, "right": 0},
        "d256": {"b": 1, "sq": 20, "h": 2, "size": 256},
        "window": {"b": 2, "sq": 90, "h": 3, "left": 20, "right": 0},
        "window on both sides": {"b": 1, "sq": 90, "sk": 100, "h": 2, "left": 9, "right": 5},
        "soft cap": {"b": 2, "sq": 40, "h": 3, "cap": 2.0, "right": 0},
        "heads first in memory": {"b": 1, "sq": 40, "h": 3, "right": 0, "layout": "padded"},
        "address misaligned": {"b": 1, "sq": 20, "h": 2, "layout": "offset"},
        "NaN in q": {"b": 1, "sq": 20, "h": 2, "fill": "nan"},
        "NaN in k": {"b": 1, "sq": 20, "h": 2, "k_fill": "nan"},
        "large scores": {"b": 1, "sq": 40, "h": 2, "fill": "far", "right": 0},
    }
    made = []
    for d in ("f16", "bf16"):
        made += [case(name, tags="edge", **call(d, **{"size": 32, **kw})) for name, kw in edges.items()]
        made += [
            case("packed", tags="edge", **call(d, 1, 90, 2, 32, right=0, **i32)),
            case("packed, of other lengths", tags="edge", **call(d, 1, 90, 2, 32, sk=70, hk=1, **i32)),
            case("bias", tags="edge", **call(d, 2, 20, 3, 32, bias=Input((2, 3, 20, 20), d))),
            case("bias of one row", tags="edge", **call(d, 2, 20, 3, 32, bias=Input((1, 3, 1, 20), "f32"))),
            case("-inf in the bias", tags="edge", **call(d, 2, 20, 3, 32, bias=Input((1, 1, 20, 20), d, "-inf rows"))),
            case("mask", tags="edge", **call(d, 2, 20, 3, 32, mask=Input((2, 1, 20, 20), "bool"))),
            case("dropout", tags="edge", **call(d, 2, 40, 3, 32, p=0.3, right=0)),
            case("ALiBi", tags="edge", **call(d, 2, 20, 3, 32, right=0, alibi_slopes=Input((3,), "f32"))),
            case("sinks", tags="edge", **call(d, 2, 20, 3, 32, right=0, sinks=Input((3,), d))),
            case("cache lengths", tags="edge", **call(d, 3, 2, 2, 32, sk=40, right=0, cache_lengths=Input((3,), "i32"))),
        ]
    return bench + made


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    work=work,
    tolerance=Tolerance(multiple=2.0),
    compare={"lse": _same_lse},
    same=same,
    late=("scale", "seed"),
    arrange=arrange,
    faults=faults,
    grad=Grad(
        wrt=("q", "k", "v", "bias", "sinks"),
        saves=("q", "k", "v", "out", "lse", "bias", "mask", "cu_seqlens_q", "cu_seqlens_k", "cache_lengths", "alibi_slopes", "sinks"),
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        tolerance=Tolerance(multiple=4.0),
        peers={"torch cuDNN": cudnn_backward, "torch FlashAttention-2": flash_backward},
        wrong={
            "not scaled": _changed(backward, scale=lambda s: 1.0),
            "causal order forgotten": _changed(backward, right=lambda r: UNBOUNDED),
            "cap forgotten": _changed(backward, softcap=lambda c: 0.0),
            "another dropout": _changed(backward, seed=lambda s: s + 1),
            "normaliser's gradient forgotten": lambda dout, dlse, *rest: backward(dout, None, *rest),
        },
    ),
    peers={"torch cuDNN": cudnn, "torch FlashAttention-2": flash},
    wrong={
        "not scaled": _changed(reference, scale=lambda s: 1.0),
        "causal order forgotten": _changed(reference, right=lambda r: UNBOUNDED),
        "one key too many": _changed(reference, right=lambda r: 1 if r == 0 else r),
        "window forgotten": _changed(reference, left=lambda n: UNBOUNDED),
        "cap forgotten": _changed(reference, softcap=lambda c: 0.0),
        "another dropout": _changed(reference, seed=lambda s: s + 1),
        "last tile dropped": _tail_dropped,
        "heads in turn": _heads_in_turn,
    },
    public=_public,
)
