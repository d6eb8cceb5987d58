"""Scaled dot-product attention (FlashAttention), forward and backward, with the masks, biases, caches and heads that models need.

    z_ij = softcap · tanh(scale · q_i·k_j / softcap) + bias_ij - slope · |p_i - j|,  -inf where query i does not see key j
    out_i = sum_j exp(z_ij - lse_i) v_j,   lse_i = log sum_j exp(z_ij),   p_i = i + keys - queries

Sources: Vaswani et al. 2017 (arXiv 1706.03762); Dao 2023, FlashAttention-2 (arXiv 2307.08691); Shah et al. 2024, FlashAttention-3 (arXiv
2407.08608);
ALiBi: Press et al. 2022 (arXiv 2108.12409); sinks: Xiao et al. 2024 (arXiv 2309.17453). The formulas in torch: rooftop/ops/_attention.py"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rooftop.core import invariance
from rooftop.core.argument_checks import flag
from rooftop.core.invariance import ROWS
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Input, Meta, Problem, Work
from rooftop.ops import _attention, _attention_call, _randomness
from rooftop.ops._attention import UNBOUNDED
from rooftop.ops._attention_call import validated
from rooftop.ops._attention_cases import cases, fixup
from rooftop.ops._attention_contract import UNITS, cpu, cpu_backward, faults, same_lse, with_columns
from rooftop.ops._attention_peers import cudnn, cudnn_backward, cudnn_wheel, cudnn_wheel_backward, flash, flash_backward, flex, flex_backward

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool | str = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    mask: Tensor | tuple[Tensor, Tensor] | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    generator: torch.Generator | None = None,
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
    order: str | None = None,
    implementation: str | None = None,
) -> Any:
    """Attention of `q` to `k` and `v`, computed in float32 and rounded once. Only the probabilities are rounded before their product with
    `v`: to the dtype of `v`, or to that of `q` if it has 16 bits. Before they are rounded to 8 bits they are scaled so that the largest of
    a row is 2^8.

    The last query is at the position of the last key: query i of a sequence is at position i + keys - queries. Calls that no kernel
    supports run as plain torch, with all scores of one key head in memory; `rooftop.explain` shows what runs and why.

    Args:
        q: [B, Sq, H, D], float16, bfloat16, float32 or float8_e4m3fn, any strides: pass heads before tokens in memory as
            ``q.transpose(1, 2)``. D is a multiple of 8, at most 256. With `cu_seqlens_q` [T, H, D]. D may be larger if `v` is a view of the
            first columns of `k`: then `rooftop.latent_attention` runs, and only its options are accepted. torch.compile breaks its graph
            there; `rooftop.latent_attention` itself is traced.
        k, v: [B, Sk, Hk, D] and [B, Sk, Hk, Dv] in the dtype of `q` or in float8_e4m3fn, H a multiple of Hk: query head h uses key head h // (H / Hk). Dv has
            the limits of D; it may differ from D.
        causal: a query sees no key after its own position. With as many keys as queries, query i is at key i. Otherwise True and
            "lower_right" align the last query with the last key; "upper_left" aligns the first query with the first key, as torch's
            `is_causal` does (only for batches of one length).
        window: (left, right): the number of keys before and after its own position that a query sees; -1: no bound.
        scale: factor of the scores, above 0; None: D ** -0.5.
        softcap: scores are bounded smoothly to ± this. None: no cap. On a GPU the relative error of a score is up to 1e-6.
        bias: added to the scores: broadcast over [B, H, Sq, Sk] (each extent full or 1), of the dtype of `q` or float32. It has a gradient.
        mask: bool, broadcast as `bias`: False where a query does not see a key. Or the pair (begin, end) of `rooftop.attention_ranges`,
            int32 [B, Sq]: query i sees only the keys begin[b, i] to end[b, i] - 1; tiles of keys that no query of a tile sees are skipped.
        dropout_p: the probability that a weight is dropped, with a resolution of 2^-16; the other weights are divided by 1 - dropout_p. A
            dropped weight is 0, even if it would be NaN.
        seed: any whole number, of which the low 32 bits count: equal calls give equal dropout. None: drawn from `generator`. A call that is
            captured in a CUDA graph needs a seed; every replay uses it.
        generator: a `torch.Generator` of the device of `q` that draws the seed; None: torch's default one, which `torch.manual_seed` sets.
        cu_seqlens_q, cu_seqlens_k: int32 or int64 [N + 1], non-decreasing: sequence n has the queries cu_seqlens_q[n] to cu_seqlens_q[n +
            1] - 1. Bounds that decrease or exceed the buffer are clamped (`rooftop.debug()` reports them). Queries of no sequence see
            nothing.
        page_table: int32 or int64 [B, pages of a sequence]: `k` and `v` are pages [pages, page_size, Hk, D]; token t of sequence b is
            ``k[page_table[b, t // page_size], t % page_size]``. A page that does not exist makes the queries that see it NaN.
        cache_lengths: int32 or int64 [B], the number of keys of each sequence; None: all of them.
        alibi_slopes: float32 [H] or [B, H], without a gradient.
        q_scale, k_scale, v_scale: float32 [1] or [heads], above 0, without a gradient, for float8_e4m3fn tensors: the value is code ·
            scale.
        sinks: [H], one score for each head, which has no key and is only added to the normaliser; of the dtype of `q` or float32. It has a
            gradient.
        return_lse: return (out, lse), lse [B, H, Sq] (packed [H, T]) in float32, natural logarithm; gradients flow through both.
        deterministic: False allows kernels whose bits differ from run to run. At present every kernel is deterministic.
        order: of the dimensions of `q`, `k`, `v` and the result: "bshd" as above, or "bhsd", [B, H, S, D], as in torch. None is "bshd", and
            shapes that look like "bhsd" are refused.
        implementation: name of a kernel (`"triton"`, `"gluon_sm90"`), which runs or raises. None selects the best one that supports the
            input.

    Returns out [B, Sq, H, Dv] in the dtype of `q` (bfloat16 for 8 bits). A query that sees no key gives zeros and lse -inf, and has no
    gradient.

    Raises TypeError for other dtypes, ValueError for shapes, devices or numbers that do not fit."""
    import torch

    flag("attention", "return_lse", return_lse)
    flag("attention", "deterministic", deterministic)
    first = _attention_call.first_order("attention", order, q, k, v, page_table)
    q, k, v = (_attention_call.turned(t, first) for t in (q, k, v))
    if _attention_call.latent(q, k, v):
        _attention_call.without(
            "latent heads", window=window, softcap=softcap, bias=bias, mask=mask, dropout_p=dropout_p, cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k, alibi_slopes=alibi_slopes, q_scale=q_scale, sinks=sinks,
        )
        out, lse = _latent(q, k, v, causal, scale, page_table, cache_lengths, k_scale, v_scale, implementation)
        out = _attention_call.turned(out, first)
        return (out, lse) if return_lse else out
    tensors = {
        "q": q, "k": k, "v": v, "bias": bias, "mask": mask, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
        "page_table": page_table, "cache_lengths": cache_lengths, "alibi_slopes": alibi_slopes, "q_scale": q_scale, "k_scale": k_scale,
        "v_scale": v_scale, "sinks": sinks,
    }
    left, right = validated(tensors, causal, window, scale, softcap, dropout_p)
    packed = cu_seqlens_q is not None
    if causal == "upper_left":
        k, v, bias, mask, right = _attention_call.upper_left(q, k, v, bias, mask, right)
    ranges: tuple[Any, Any] = (None, None)
    if isinstance(mask, (tuple, list)):
        ranges, mask = tuple(mask), None
        seen = invariance.on and q.is_cuda and not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()
        if seen and bool((ranges[0] != 0).any()):
            raise invariance.InvarianceError(
                "attention under rooftop.invariant(), along padding and packing: mask begins behind key 0, and kernels cut keys by their place in the "
                "tensor; pad behind each sequence, or give cu_seqlens_q and cu_seqlens_k"
            )
    if packed:
        q, k, v = q[None], k[None], v[None]
    out, lse = OP(
        q, k, v, bias, mask, cu_seqlens_q, cu_seqlens_k, page_table, cache_lengths, alibi_slopes, q_scale, k_scale, v_scale, sinks, left,
        right, q.shape[-1] ** -0.5 if scale is None else float(scale), 0.0 if softcap is None else float(softcap), float(dropout_p),
        _randomness.seed("attention", seed, generator, q, dropout_p > 0),
        # torch's own function gives no normaliser
        *ranges, implementation=implementation if implementation is not None or not return_lse else "",
    )
    if packed:
        out, lse = out[0], lse[0]
    out = _attention_call.turned(out, first)
    return (out, lse) if return_lse else out


def _latent(
    q: Tensor, k: Tensor, v: Tensor, causal: Any, scale: Any, pages: Any, lengths: Any, k_scale: Any, v_scale: Any, implementation: Any,
) -> tuple[Tensor, Tensor]:
    from rooftop.ops.latent_attention import latent_attention

    if causal == "upper_left":
        raise ValueError("attention: causal is 'upper_left', and v is a view of k, of latent heads; accepted are True, False and 'lower_right'")
    if k_scale is not v_scale:
        raise ValueError("attention: k_scale and v_scale are two tensors, and v is a view of k, of latent heads; pass one tensor as both")
    out, lse = latent_attention(
        q, k, value_size=v.shape[-1], causal=_attention_call.window_of(causal, None)[1] == 0, scale=scale, page_table=pages, cache_lengths=lengths,
        kv_scale=k_scale, return_lse=True, implementation=implementation,
    )
    return out, lse


def _options(
    q: Tensor, k: Tensor, bias: Tensor | None, mask: Tensor | None, slopes: Tensor | None, sinks: Tensor | None, left: int, right: int,
    scale: float, softcap: float, dropout_p: float, seed: int, key_begin: Tensor | None = None, key_end: Tensor | None = None,
) -> _attention.Options:
    return _attention.Options(
        bias, mask, slopes, sinks, left, right, scale, softcap, dropout_p, seed, q.shape[1], k.shape[1], key_begin, key_end
    )


def reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None, page_table: Tensor | None, cache_lengths: Tensor | None, alibi_slopes: Tensor | None,
    q_scale: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, sinks: Tensor | None, left: int, right: int, scale: float,
    softcap: float, dropout_p: float, seed: int, key_begin: Tensor | None = None, key_end: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out [B, Sq, H, Dv], lse [B, H, Sq]). Packed sequences have B = 1. With key_begin, query i sees keys key_begin[b, i] to key_end[b, i]
    - 1 alone."""
    q, k, v = (x if x.element_size() > 1 else x.float() for x in (q, k, v))
    q, k, v = (x if s is None else x * s[:, None] for x, s in ((q, q_scale), (k, k_scale), (v, v_scale)))
    options = _options(q, k, bias, mask, alibi_slopes, sinks, left, right, scale, softcap, dropout_p, seed, key_begin, key_end)
    return _attention.forward(q, k, v, list(_attention.parts(q, k, cu_seqlens_q, cu_seqlens_k, page_table, cache_lengths)), options)


def same(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """The result at the same precision: in float32, but for the probabilities, which are rounded to the dtype of `v` before they meet
    it; to bfloat16 where `v` alone has 8 bits, and with dropout."""
    import torch

    bias, mask, cu_q, cu_k, pages, lengths, slopes, qs, ks, vs, sinks, *numbers = rest
    eight = q.element_size() == 1 and not numbers[4]
    short = v.dtype if v.element_size() == 2 or eight else torch.bfloat16 if v.element_size() == 1 else None
    q, k, v = ((x if x.element_size() > 2 else x.float()) * (1 if s is None else s[:, None]) for x, s in ((q, qs), (k, ks), (v, vs)))
    options = _options(q, k, bias, mask, slopes, sinks, *numbers)
    return _attention.forward(q, k, v, list(_attention.parts(q, k, cu_q, cu_k, pages, lengths)), options, short)


def backward(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Tensor | None,
    mask: Tensor | None, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, page_table: Tensor | None,
    cache_lengths: Tensor | None, alibi_slopes: Tensor | None, q_scale: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None,
    sinks: Tensor | None, key_begin: Tensor | None, key_end: Tensor | None, left: int, right: int, scale: float, softcap: float,
    dropout_p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """(dq, dk, dv, dbias, dsinks): rooftop/ops/_attention.py has the formulas."""
    return _gradients(
        False, dout, dlse, q, k, v, out, lse, bias, mask, cu_seqlens_q, cu_seqlens_k, page_table, cache_lengths, alibi_slopes, q_scale,
        k_scale, v_scale, sinks, key_begin, key_end, left, right, scale, softcap, dropout_p, seed,
    )


def _gradients(
    plain: bool, dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Tensor | None,
    mask: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None, pages: Tensor | None, lengths: Tensor | None, slopes: Tensor | None,
    q_scale: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, sinks: Tensor | None, begin: Tensor | None, end: Tensor | None,
    left: int, right: int, scale: float, softcap: float, dropout_p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """`plain`: the factor 0 of a hidden pair times NaN is NaN."""
    q, k, v = (x if s is None else x.to(lse.dtype) * s[:, None] for x, s in ((q, q_scale), (k, k_scale), (v, v_scale)))
    options = _options(q, k, bias, mask, slopes, sinks, left, right, scale, softcap, dropout_p, seed, begin, end)
    found = list(_attention.parts(q, k, cu_q, cu_k, pages, lengths))
    dq, dk, dv, dbias, dsinks = _attention.backward(dout, dlse, q, k, v, out, lse, found, options, plain=plain)
    dq, dk, dv = (x if s is None else x * s[:, None] for x, s in ((dq, q_scale), (dk, k_scale), (dv, v_scale)))
    return dq, dk, dv, dbias, dsinks


def outputs(q: Meta, v: Meta, **_: Any) -> dict[str, Meta]:
    out = with_columns(q, v.shape[3])
    lse = Meta((q.shape[0], q.shape[2], q.shape[1]), "f64" if q.dtype == "f64" else "f32")
    return {"out": out if q.itemsize > 1 else out.with_(dtype="bf16"), "lse": lse}


def outputs_bwd(q: Meta, k: Meta, v: Meta, bias: Meta | None, sinks: Meta | None, **_: Any) -> dict[str, Meta | None]:
    made: dict[str, Meta | None] = {f"d{n}": with_columns(m, m.shape[-1]) for n, m in (("q", q), ("k", k), ("v", v))}
    return {**made, "dbias": bias and Meta(bias.shape, bias.dtype), "dsinks": sinks and Meta(sinks.shape, sinks.dtype)}


LISTS = (
    "cu_seqlens_q", "cu_seqlens_k", "page_table", "cache_lengths", "alibi_slopes", "q_scale", "k_scale", "v_scale", "sinks", "key_begin",
    "key_end",
)


def canonical(p: Problem) -> Problem | None:
    """As they are; the columns of a head must be neighbours, and what there is one number a sequence or a row of must lie without gaps."""
    if any(m is not None and not m.contiguous for n, m in p.tensors if n in LISTS):
        return None
    if any(m is not None and m.strides[-1] != 1 and m.shape[-1] > 1 for n, m in p.tensors if n in ("q", "k", "v", "dout", "out")):
        return None
    return p


def rows(p: Problem) -> dict[str, dict[int, int]] | str:
    """For `Judging.rows`: sequences, queries and keys, whatever holds them."""
    if float(p.option("dropout_p")):
        return "what dropout drops follows from the place of a query in the call"
    found: dict[str, dict[int, int]] = {n: {0: 1, 1: ROWS} for n in ("q", "k", "v", "out", "key_begin", "key_end")}
    for name in ("bias", "mask"):
        if (m := p.get(name)) is not None:
            found[name] = {i: n for i, n in ((0, 1), (2, ROWS), (3, ROWS)) if m.shape[i] > 1}
    if (slopes := p.get("alibi_slopes")) is not None and len(slopes.shape) == 2:
        found["alibi_slopes"] = {0: 1}
    return {**found, "lse": {0: 1, 2: ROWS}, "cu_seqlens_q": {0: 2}, "cu_seqlens_k": {0: 2}, "cache_lengths": {0: 1}, "page_table": {0: 1, 1: 16}}


def alone(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """As the reference, for each query of a head by itself, with the keys that it sees."""
    bias, mask, cu_q, cu_k, pages, lengths, slopes, q_scale, k_scale, v_scale, sinks, *numbers = rest
    q, k, v = (x if x.element_size() > 1 else x.float() for x in (q, k, v))
    q, k, v = (x if s is None else x * s[:, None] for x, s in ((q, q_scale), (k, k_scale), (v, v_scale)))
    options = _options(q, k, bias, mask, slopes, sinks, *numbers)
    return _attention.alone(q, k, v, list(_attention.parts(q, k, cu_q, cu_k, pages, lengths)), options)


def pairs(p: Problem) -> int:
    """Pairs of a query and a key that it sees, of one head: of pages and caches as if they were full, of packed sequences as if all were of
    one length, where there are fewest."""
    (batch, queries), keys = p["q"].shape[:2], p["k"].shape[1]
    if (bounds := p.get("cu_seqlens_q")) is not None and bounds.shape[0] > 1:
        batch = bounds.shape[0] - 1
        queries, keys = queries // batch, keys // batch
    if (pages := p.get("page_table")) is not None:
        keys *= pages.shape[1]
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


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
    more = {n: t for n, t in tensors.items() if n not in ("q", "k", "v", "key_begin", "key_end")}
    first = [tensors[n] for n in "qkv"]
    if tensors.get("cu_seqlens_q") is not None:  # the public function takes and returns packed tensors without a batch
        return None
    if tensors.get("key_begin") is not None:
        if more["mask"] is not None:
            return None
        more["mask"] = (tensors["key_begin"], tensors["key_end"])
    named = {"window": (options["left"], options["right"]), "softcap": options["softcap"] or None, "return_lse": True}
    return first, {"order": "bshd", **more, **named, **{n: options[n] for n in ("scale", "dropout_p", "seed")}}


def _changed(function: Callable[..., Any], **changes: Any) -> Callable[..., Any]:
    """The forward or the backward with options exchanged for others."""
    names = tuple(inspect.signature(function).parameters)

    def run(*args: Any) -> Any:
        return function(*(changes[n](v) if n in changes else v for n, v in zip(names, args, strict=False)))

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


def _swept(dtype: str, batch: int, length: int, eighths: int, group: int = 1, kind: int = 1) -> dict[str, Any]:
    """8 heads of 8 · eighths columns, `group` of them to a key head. `kind`: 1 causal, 2 full, 3 one query for all keys."""
    q, k = (Input((batch, rows, heads, 8 * eighths), dtype) for rows, heads in ((1 if kind == 3 else length, 8), (length, 8 // group)))
    numbers = {"left": -1, "right": 0 if kind == 1 else -1, "scale": (8 * eighths) ** -0.5, "softcap": 0.0, "dropout_p": 0.0, "seed": 7}
    return {"q": q, "k": k, "v": k, **numbers}


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=cases(),
    swept=Sizes(
        _swept, {"batch": (1, 65535), "length": (1, 65536), "eighths": (4, 32), "group": (1, 8), "kind": (1, 3)}, rows="batch", powers=("group",),
        ways=("kind",), dtypes=("bf16",), axis="length",
    ),
    work=work,
    tolerance=Tolerance(multiple=2.0, flushed=True),
    judging=Judging(
        compare={"lse": same_lse}, same=same, rows=rows, alone=alone,
        invariant={"padding": "mode", "packing": "mode", "chunking": "mode", "splits": "keys on several ranks are cut elsewhere than at multiples of a split"},
    ),
    values=Values(runtime_options=("scale", "seed"), fixup=fixup),
    grad=Grad(
        wrt=("q", "k", "v", "bias", "sinks"),
        saves=(
            "q", "k", "v", "out", "lse", "bias", "mask", "cu_seqlens_q", "cu_seqlens_k", "page_table", "cache_lengths", "alibi_slopes",
            "q_scale", "k_scale", "v_scale", "sinks", "key_begin", "key_end",
        ),
        backward=backward,
        outputs=outputs_bwd,
        judging=Judging(
            invariant={"batch": "the gradient of a key is a sum over queries: call backward() outside of rooftop.invariant()"},
            undefined=partial(_gradients, True),
        ),
        work=work_bwd,
        cpu=cpu_backward,
        tolerance=Tolerance(multiple=4.0, flushed=True),
        peers={"torch cuDNN": cudnn_backward, "torch FlashAttention-2": flash_backward, "cuDNN frontend": cudnn_wheel_backward, "torch.compile": flex_backward},
        wrong={
            "not scaled": _changed(backward, scale=lambda s: 1.0),
            "causal order forgotten": _changed(backward, right=lambda r: UNBOUNDED),
            "cap forgotten": _changed(backward, softcap=lambda c: 0.0),
            "another dropout": _changed(backward, seed=lambda s: s + 1),
            "normaliser's gradient forgotten": lambda dout, dlse, *rest: backward(dout, None, *rest),
        },
    ),
    peers={"torch cuDNN": cudnn, "torch FlashAttention-2": flash, "cuDNN frontend": cudnn_wheel, "torch.compile": flex},
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
)
