"""Multi-head latent attention (MLA, absorbed form): attention to a cache of latent vectors, whose first columns are the values.

    z_ij = scale · q_i·c_j,  -inf where query i does not see token j
    out_i = sum_j exp(z_ij - lse_i) c_j[:value_size],   lse_i = log sum_j exp(z_ij)

Source: DeepSeek-AI 2024, DeepSeek-V2 (arXiv 2405.04434), section 2.1. The formulas in torch: rooftop/ops/_attention.py"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooftop.core import invariance
from rooftop.core.argument_checks import flag, positive
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops import _attention, _attention_cases, _attention_contract
from rooftop.ops._attention import UNBOUNDED
from rooftop.ops._attention_contract import UNITS, same_lse, with_columns

if TYPE_CHECKING:
    from torch import Tensor

VALUES, MORE = 512, 128  # columns of a value, and of a key beyond those, at most


def latent_attention(
    q: Tensor,
    kv: Tensor,
    *,
    value_size: int = 512,
    causal: bool = False,
    scale: float | None = None,
    page_table: Tensor | None = None,
    cache_lengths: Tensor | None = None,
    kv_scale: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Any:
    """Attention of `q` to the latent vectors `kv`: the keys are all of their columns, the values the first `value_size`. Each is read once.
    `rooftop.attention(q, kv, kv[..., :512])` runs the same.

    The last query is at the position of the last token, as in `rooftop.attention`. Its gradient runs as plain torch, with all scores of one
    key head in memory: models train with the keys and values of each head, for which `rooftop.attention` (D 192, Dv 128) is used. torch.compile
    does not trace it with `cache_lengths` or `page_table`.

    Args:
        q: [B, Sq, H, D], float16, bfloat16 or float32: for each head the query in the latent space, followed by its rotated columns. D is a
            multiple of 16.
        kv: [B, Sk, Hk, D] in the dtype of `q`, or float8_e4m3fn with `q` of 16 bits; H a multiple of Hk (1 in models).
        value_size: columns of a value, a multiple of 16, at most 512 and at least D - 128.
        causal: a query sees no token after its own position.
        scale: factor of the scores, above 0; None: D ** -0.5. Models scale by the size of a head before it was absorbed (192 ** -0.5).
        page_table: int32 or int64 [B, pages of a sequence]: `kv` is pages [pages, page_size, Hk, D], as in `rooftop.attention`. A page that
            does not exist makes the queries that see it NaN.
        cache_lengths: int32 or int64 [B], the number of tokens of each sequence; None: all of them.
        kv_scale: float32 [1] or [Hk], above 0: the value of an 8-bit code is code · scale.
        return_lse: return (out, lse), lse [B, H, Sq] in float32, natural logarithm.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns out [B, Sq, H, value_size] in the dtype of `q`. A query that sees no token gives zeros and lse -inf. A token past `cache_lengths`
    does not matter. A token that is NaN or infinite and hidden by the causal order may make `out` NaN: its weight is 0, and 0 · NaN is NaN
    where its tile is computed.

    Raises TypeError for other dtypes, ValueError for shapes, devices or numbers that do not fit."""
    _validate(q, kv, value_size, causal, scale, page_table, cache_lengths, kv_scale, return_lse)
    out, lse = OP(
        q, kv, page_table, cache_lengths, kv_scale, value_size, 0 if causal else UNBOUNDED, q.shape[-1] ** -0.5 if scale is None else float(scale),
        implementation=implementation if implementation is not None or not return_lse else "",
    )
    return (out, lse) if return_lse else out


def _validate(q: Any, kv: Any, value_size: Any, causal: Any, scale: Any, pages: Any, lengths: Any, kv_scale: Any, return_lse: Any) -> None:
    import torch

    op = "latent_attention"
    for name, t in (("q", q), ("kv", kv), ("page_table", pages), ("cache_lengths", lengths), ("kv_scale", kv_scale)):
        if (t is not None or name in ("q", "kv")) and not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if t is not None and t.device != q.device:
            raise ValueError(f"{op}: q lies on {q.device} and {name} on {t.device}; they must be on one device")
    floats = (torch.float32, torch.float16, torch.bfloat16)
    if q.dtype not in floats:
        raise TypeError(f"{op}: q is {q.dtype}; accepted are {', '.join(map(str, floats))}")
    coded = kv.dtype == torch.float8_e4m3fn and q.element_size() == 2
    if kv.dtype != q.dtype and not coded:
        raise TypeError(f"{op}: q is {q.dtype} and kv {kv.dtype}; they must be alike, or kv torch.float8_e4m3fn and q of 16 bits")
    if coded and kv.requires_grad:
        raise ValueError(f"{op}: kv is {kv.dtype} and requires a gradient; 8 bits have none")
    if q.dim() != 4 or kv.dim() != 4 or q.shape[3] != kv.shape[3] or (pages is None and q.shape[0] != kv.shape[0]):
        want = "[B, Sq, H, D] and [B, Sk, Hk, D]" if pages is None else "[B, Sq, H, D] and [pages, page_size, Hk, D]"
        raise ValueError(f"{op}: q has shape {tuple(q.shape)} and kv {tuple(kv.shape)}; they must be {want}")
    if q.shape[2] % max(kv.shape[2], 1) or (q.shape[2] > 0) != (kv.shape[2] > 0):
        raise ValueError(f"{op}: q has {q.shape[2]} heads and kv {kv.shape[2]}; the first must be a multiple of the second")
    if isinstance(value_size, bool) or not isinstance(value_size, int):
        raise TypeError(f"{op}: value_size is {value_size!r}, a {type(value_size).__name__}; it must be a whole number")
    size = q.shape[3]
    if size % 16 or value_size % 16 or not max(16, size - MORE) <= value_size <= min(size, VALUES):
        raise ValueError(
            f"{op}: value_size is {value_size} and D {size}; both must be multiples of 16, value_size at most D and {VALUES}, and D at most "
            f"value_size + {MORE}"
        )
    for name, t, fits, want in (
        ("page_table", pages, lambda t: t.dim() == 2 and t.shape[0] == q.shape[0], f"[{q.shape[0]}, pages]"),
        ("cache_lengths", lengths, lambda t: tuple(t.shape) == (q.shape[0],), f"[{q.shape[0]}]"),
    ):
        if t is None:
            continue
        if t.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{op}: {name} is {t.dtype}; accepted are torch.int32, torch.int64")
        if not fits(t):
            raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}; it must be {want}")
    if pages is not None and lengths is None:
        raise ValueError(f"{op}: page_table needs cache_lengths")
    if kv_scale is not None:
        if not coded:
            raise ValueError(f"{op}: kv_scale is given, and kv is {kv.dtype}, no torch.float8_e4m3fn")
        wanted = "(1,)" if kv.shape[2] == 1 else f"(1,) or ({kv.shape[2]},)"
        if kv_scale.dtype != torch.float32 or tuple(kv_scale.shape) not in ((1,), (kv.shape[2],)):
            raise ValueError(f"{op}: kv_scale is {kv_scale.dtype} of shape {tuple(kv_scale.shape)}; it must be torch.float32 of {wanted}")
    flag(op, "causal", causal)
    flag(op, "return_lse", return_lse)
    if scale is not None:
        positive(op, "scale", scale)


def _forward(
    q: Tensor, kv: Tensor, pages: Tensor | None, lengths: Tensor | None, kv_scale: Tensor | None, value_size: int, right: int, scale: float,
    rounded: Any = None
) -> tuple[Tensor, Tensor]:
    kv = kv if kv.element_size() > 1 else kv.float()
    kv = kv if kv_scale is None else kv * kv_scale[:, None]
    options = _attention.Options(None, None, None, None, UNBOUNDED, right, scale, 0.0, 0.0, 0, q.shape[1], kv.shape[1])
    parts = list(_attention.parts(q, kv, None, None, pages, lengths))
    kv = kv.to(q.dtype) if kv.element_size() < q.element_size() else kv
    out, lse = _attention.forward(q.to(kv.dtype), kv, kv[..., :value_size], parts, options, rounded)
    return out, lse


def reference(
    q: Tensor, kv: Tensor, page_table: Tensor | None, cache_lengths: Tensor | None, kv_scale: Tensor | None, value_size: int, right: int, scale: float
) -> tuple[Tensor, Tensor]:
    """(out [B, Sq, H, value_size], lse [B, H, Sq])."""
    out, lse = _forward(q, kv, page_table, cache_lengths, kv_scale, value_size, right, scale)
    return out.to(q.dtype), lse


def same(
    q: Tensor, kv: Tensor, page_table: Tensor | None, cache_lengths: Tensor | None, kv_scale: Tensor | None, value_size: int, right: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The result at the same precision: in float32, but for the probabilities, which are rounded to the dtype of `q` before they meet a value."""
    short = q.dtype if q.element_size() == 2 else None
    kv = kv if kv.element_size() == 1 else kv.float()
    return _forward(q.float(), kv, page_table, cache_lengths, kv_scale, value_size, right, scale, short)


def backward(
    dout: Tensor, dlse: Tensor | None, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, page_table: Tensor | None, cache_lengths: Tensor | None,
    kv_scale: Tensor | None, value_size: int, right: int, scale: float
) -> tuple[Tensor, Tensor]:
    """(dq, dkv): a column of a value gets its gradient as a key's and as a value's."""
    keys = kv if kv_scale is None else kv.to(lse.dtype) * kv_scale[:, None]
    options = _attention.Options(None, None, None, None, UNBOUNDED, right, scale, 0.0, 0.0, 0, q.shape[1], kv.shape[1])
    found = list(_attention.parts(q, kv, None, None, page_table, cache_lengths))
    dq, dk, dv, *_ = _attention.backward(dout, dlse, q, keys, keys[..., :value_size], out, lse, found, options, plain=True)
    dk[..., :value_size] += dv
    return dq.to(q.dtype), dk.to(q.dtype)


def without_hidden(
    q: Tensor, kv: Tensor, page_table: Tensor | None, cache_lengths: Tensor | None, kv_scale: Tensor | None, value_size: int, right: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The result where a token that is hidden from a query contributes nothing, NaN or infinite as it may be; in the reference 0 · NaN is NaN."""
    kv = kv if kv.element_size() > 1 else kv.float()
    rest, bad = (page_table, cache_lengths, kv_scale, value_size, right, scale), ~kv.isfinite().all(-1, keepdim=True)
    out, lse = reference(q, kv, *rest)
    sees = reference(q.new_zeros(q.shape), kv.new_zeros(kv.shape).masked_fill(bad, float("nan")), *rest)[1].isnan()  # [B, H, Sq]
    return out.where(sees.transpose(1, 2)[..., None], reference(q, kv.masked_fill(bad, 0.0), *rest)[0]), lse


def cpu(
    q: Tensor, kv: Tensor, page_table: Tensor | None, cache_lengths: Tensor | None, kv_scale: Tensor | None, value_size: int, right: int, scale: float
) -> Any:
    tensors = (None, None, page_table, cache_lengths, None, None, kv_scale, kv_scale, None)
    return _attention_contract.cpu(q, kv, kv[..., :value_size], None, None, *tensors, UNBOUNDED, right, scale, 0.0, 0.0, 0)


def outputs(q: Meta, value_size: int, **_: Any) -> dict[str, Meta]:
    lse = Meta((q.shape[0], q.shape[2], q.shape[1]), "f64" if q.dtype == "f64" else "f32")
    return {"out": with_columns(q, value_size), "lse": lse}


def canonical(p: Problem) -> Problem | None:
    """As they are; the columns of a head must be neighbours, and what there is one number a sequence of must lie without gaps."""
    lists = [p.get(n) for n in ("page_table", "cache_lengths", "kv_scale")]
    if any(m is not None and not m.contiguous for m in lists) or any(p[n].strides[-1] != 1 and p[n].shape[-1] > 1 for n in ("q", "kv")):
        return None
    return p


def pairs(p: Problem) -> int:
    """Pairs of a query and a token that it sees, of one head: of pages and caches as if they were full."""
    (batch, queries), keys = p["q"].shape[:2], p["kv"].shape[1]
    if (pages := p.get("page_table")) is not None:
        keys *= pages.shape[1]
    if int(p.option("right")) == UNBOUNDED:
        return batch * queries * keys
    return batch * sum(max(0, keys - queries + i + 1) for i in range(queries))


def work(p: Problem) -> Work:
    """Two products for each pair that sees each other; the tokens of the cache once, those of pages as if no sequences shared any."""
    n, size, value = float(pairs(p) * p["q"].shape[2]), p["q"].shape[3], int(p.option("value_size"))
    pages, kv = p.get("page_table"), p["kv"]
    read = kv.nbytes if pages is None else pages.numel * kv.shape[1] * kv.shape[2] * kv.shape[3] * kv.itemsize
    return Work(p["q"].nbytes + read, p["out"].nbytes + p["lse"].nbytes, {UNITS[p["q"].dtype]: n * (size + value), "exp": n})


def faults(q: Tensor, kv: Tensor, page_table: Tensor | None, cache_lengths: Tensor | None, *_: Any) -> str | None:
    """Lengths and pages beyond the cache."""
    return _attention_contract.faults(q, kv, kv, None, None, None, None, page_table, cache_lengths)


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    more = {n: t for n, t in tensors.items() if n not in ("q", "kv")}
    said = {"value_size": options["value_size"], "causal": options["right"] == 0, "scale": options["scale"], "return_lse": True}
    return [tensors["q"], tensors["kv"]], {**more, **said}


def fixup(tensors: Mapping[str, Any], options: Mapping[str, Any], generator: Any) -> dict[str, Any]:
    found = _attention_cases.fixup({**tensors, "k": tensors["kv"]}, options, generator)
    if (scale := tensors.get("kv_scale")) is not None:
        found |= {"kv_scale": _attention_cases.fixup({"k_scale": scale}, options, generator)["k_scale"]}
    return found


def _cases() -> list[Case]:
    def call(d: str, b: int, sq: int, h: int, sk: int, value: int = 64, more: int = 16, *, hk: int = 1, right: int = 0, codes: str = "",
             layout: str = "contiguous", fill: str = "normal", **rest: Any) -> dict[str, Any]:
        size = value + more
        q, kv = Input((b, sq, h, size), d, "normal", layout), Input((b, sk, hk, size), codes or d, fill, layout)
        scale = {"kv_scale": Input((1,), "f32")} if codes else {}
        return {"q": q, "kv": kv, "value_size": value, "right": right, "scale": size**-0.5, **scale, **rest}

    def pages(d: str, b: int, sq: int, h: int, each: int, page: int, pool: int, value: int = 64, more: int = 16, **rest: Any) -> dict[str, Any]:
        made = call(d, b, sq, h, page, value, more, **rest)
        kv = made["kv"]
        return {**made, "kv": Input((pool, *kv.shape[1:]), kv.dtype), "page_table": Input((b, each), "i32"), "cache_lengths": Input((b,), "i32")}

    bench = [
        case(f"decode {b}x{sk}, {h} heads", tags="bench", **call("bf16", b, 1, h, sk, 512, 64)) for b, sk in ((64, 8192), (1, 32768)) for h in (16, 64, 128)
    ]
    bench += [
        case("decode 64x8192, 128 heads, pages of 64", tags="bench", **pages("bf16", 64, 1, 128, 128, 64, 8192, 512, 64)),
        case("decode 64x8192 of 8 bits, 16 heads", tags="bench", **call("bf16", 64, 1, 16, 8192, 512, 64, codes="f8e4m3")),
        case("decode 64x8192 of 8 bits, 128 heads", tags="bench", **call("bf16", 64, 1, 128, 8192, 512, 64, codes="f8e4m3")),
        case("2 queries 64x8192, 128 heads", tags="bench", **call("bf16", 64, 2, 128, 8192, 512, 64)),
        case("causal 4096, 16 heads", tags="bench", **call("bf16", 2, 4096, 16, 4096, 512, 64)),
    ]
    edges: dict[str, dict[str, Any]] = {
        "decode": {"b": 2, "sq": 1, "h": 16, "sk": 70}, "not causal": {"b": 2, "sq": 3, "h": 4, "sk": 37, "right": -1},
        "causal": {"b": 1, "sq": 40, "h": 5, "sk": 40}, "queries before all tokens": {"b": 1, "sq": 9, "h": 2, "sk": 4},
        "more tokens than queries": {"b": 2, "sq": 6, "h": 16, "sk": 90}, "two key heads": {"b": 2, "sq": 3, "h": 6, "sk": 33, "hk": 2},
        "no rotated columns": {"b": 1, "sq": 1, "h": 16, "sk": 20, "value": 32, "more": 0},
        "odd sizes": {"b": 1, "sq": 2, "h": 3, "sk": 50, "value": 48, "more": 32},
        "heads first in memory": {"b": 2, "sq": 3, "h": 4, "sk": 20, "layout": "padded"},
        "address misaligned": {"b": 1, "sq": 3, "h": 4, "sk": 20, "layout": "offset"},
        "no batch": {"b": 0, "sq": 1, "h": 4, "sk": 5}, "no queries": {"b": 2, "sq": 0, "h": 4, "sk": 5}, "no tokens": {"b": 2, "sq": 2, "h": 4, "sk": 0},
        "NaN": {"b": 1, "sq": 2, "h": 4, "sk": 20, "fill": "nan"},  # not huge values: whether products overflow to NaN follows the order of sums
        "cache lengths": {"b": 3, "sq": 2, "h": 4, "sk": 60, "cache_lengths": Input((3,), "i32")},
    }
    found = bench + [case(name, tags="edge", **call(d, **how)) for d in ("f32", "f16", "bf16") for name, how in edges.items()]
    for d in ("f16", "bf16"):
        found += [
            case("latent 512 + 64", tags="edge", **call(d, 1, 1, 16, 50, 512, 64)),
            case("8 bits", tags="edge", **call(d, 2, 2, 16, 70, codes="f8e4m3")),
            case("pages of 16", tags="edge", **pages(d, 3, 1, 4, 5, 16, 12)), case("pages of 64", tags="edge", **pages(d, 2, 2, 16, 2, 64, 5)),
            case("pages of 5", tags="edge", **pages(d, 2, 1, 4, 9, 5, 16)),
            case("pages of 16 of 8 bits", tags="edge", **pages(d, 3, 1, 4, 5, 16, 12, codes="f8e4m3")),
        ]
    return found


def _changed(**changes: Any) -> Any:
    names = ("q", "kv", "page_table", "cache_lengths", "kv_scale", "value_size", "right", "scale")

    def run(*args: Any) -> Any:
        return reference(*(changes[n](v) if n in changes else v for n, v in zip(names, args, strict=True)))

    return run


def _last_columns(q: Tensor, kv: Tensor, pages: Any, lengths: Any, kv_scale: Any, value_size: int, right: int, scale: float) -> tuple[Tensor, Tensor]:
    """The values are the last columns."""
    lse = reference(q, kv, pages, lengths, kv_scale, value_size, right, scale)[1]
    whole = kv.flip(-1) if kv.element_size() > 1 else kv.float().flip(-1).to(kv.dtype)
    return reference(q.flip(-1), whole, pages, lengths, kv_scale, value_size, right, scale)[0], lse


SPLIT = "how the tokens are split follows from the number of sequences; rooftop.attention takes keys and values of each head"
OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, batch, length, sixteens: {
            "q": Input((batch, 1, 16 * sixteens, 576), dtype), "kv": Input((batch, length, 1, 576), dtype), "value_size": 512, "right": 0,
            "scale": 192**-0.5,
        },
        {"batch": (1, 1024), "length": (1, 1 << 17), "sixteens": (1, 8)}, rows="batch", dtypes=("bf16",), axis="length",
    ),
    work=work,
    tolerance=Tolerance(multiple=2.0, flushed=True),
    judging=Judging(compare={"lse": same_lse}, same=same, undefined=without_hidden, invariant=dict.fromkeys(invariance.DIMENSIONS, SPLIT)),
    values=Values(runtime_options=("scale",), fixup=fixup),
    grad=Grad(wrt=("q", "kv"), saves=("q", "kv", "out", "lse", "page_table", "cache_lengths", "kv_scale"), backward=backward),
    wrong={
        "not scaled": _changed(scale=lambda s: 1.0),
        "causal order forgotten": _changed(right=lambda r: UNBOUNDED),
        "one token too many": _changed(right=lambda r: 1 if r == 0 else r),
        "values from the end": _last_columns,
    },
)
