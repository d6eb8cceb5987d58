"""Merge the results of attention over two sets of keys into one.

    lse = log(exp(lse_a) + exp(lse_b)),   out = a · exp(lse_a - lse) + b · exp(lse_b - lse)

Source: Milakov & Gimelshein 2018 (arXiv 1805.02867), as used by ring attention (Liu et al. 2023, arXiv 2310.01889)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.op import Grad, Judging, Op, Tolerance, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.core.sweeps import Sizes

if TYPE_CHECKING:
    from torch import Tensor


def merge_attention(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor, *, implementation: str | None = None) -> tuple[Tensor, Tensor]:
    """The attention of queries to two sets of keys, from the results of ``rooftop.attention(..., return_lse=True)`` for each. Merge more
    parts one by one.

    Args:
        a, b: [B, S, H, D] (packed sequences: [T, H, D]), float32, float16 or bfloat16. Their dtypes may differ: an earlier merged result is
            float32.
        lse_a, lse_b: [B, H, S] (packed [H, T]), float32: the normalisers. -inf: the query sees no key of that part; its row is ignored,
            even if it is NaN.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns (out, lse) in float32, of the shapes of `a` and `lse_a`. A query that sees no key in either part gives zeros and -inf. Gradients
    flow to all four.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit."""
    _validate(a, lse_a, b, lse_b)
    packed = a.dim() == 3
    if packed:
        a, lse_a, b, lse_b = a[None], lse_a[None], b[None], lse_b[None]
    out, lse = OP(a, lse_a, b, lse_b, implementation=implementation)
    return (out[0], lse[0]) if packed else (out, lse)


def _validate(a: Any, lse_a: Any, b: Any, lse_b: Any) -> None:
    import torch

    op = "merge_attention"
    for name, t in (("a", a), ("lse_a", lse_a), ("b", b), ("lse_b", lse_b)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if t.device != a.device:
            raise ValueError(f"{op}: a lies on {a.device} and {name} on {t.device}; they must be on one device")
        accepted = (torch.float32,) if name.startswith("lse") else (torch.float32, torch.float16, torch.bfloat16)
        if t.dtype not in accepted:
            raise TypeError(f"{op}: {name} is {t.dtype}; accepted are {', '.join(map(str, accepted))}")
    if a.dim() not in (3, 4) or a.shape != b.shape:
        raise ValueError(f"{op}: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; both must be [B, S, H, D] or [T, H, D], alike")
    want = (*a.shape[:-3], a.shape[-2], a.shape[-3])
    for name, t in (("lse_a", lse_a), ("lse_b", lse_b)):
        if tuple(t.shape) != want:
            raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}; it must be {want}")


def _shares(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(lse, the shares of a and b [B, H, S]); 0 where neither saw a key."""
    import torch

    top = torch.maximum(lse_a, lse_b).detach()
    top = top.where(top != float("-inf"), 0.0)
    # not less lse: an lse of 100 is rounded by up to 4e-6, and so would be every share
    of_a, of_b = (lse_a - top).exp(), (lse_b - top).exp()
    total = of_a + of_b
    total = total.where(total != 0, 1.0)
    return torch.logaddexp(lse_a, lse_b), of_a / total, of_b / total


def _merged(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lse, of_a, of_b = _shares(lse_a, lse_b)
    return a * of_a.transpose(1, 2)[..., None] + b * of_b.transpose(1, 2)[..., None], lse


def _counted(x: Tensor, lse: Tensor) -> Tensor:
    """Rows that see no key as zeros: they may hold NaN."""
    return x.masked_fill((lse == float("-inf")).transpose(1, 2)[..., None], 0.0)


def reference(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return _merged(_counted(a, lse_a), lse_a, _counted(b, lse_b), lse_b)


def backward(
    dout: Tensor, dlse: Tensor | None, a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """With the shares w: da = w_a · dout, dlse_a = w_a · (dlse + w_b · sum_d dout · (a - b)), and the same of b. That is w_a · (dlse +
    sum_d dout · (a - out)) without its cancellation where one share is almost 1."""
    _, of_a, of_b = _shares(lse_a, lse_b)
    flow = dout.to(lse_a.dtype)
    apart = _counted(a, lse_a).to(flow.dtype) - _counted(b, lse_b).to(flow.dtype)
    moved = of_a * of_b * (flow * apart).sum(-1).transpose(1, 2)
    of_lse = 0.0 if dlse is None else dlse
    spread_a, spread_b = (w.transpose(1, 2)[..., None] for w in (of_a, of_b))
    return (flow * spread_a).to(a.dtype), moved + of_a * of_lse, (flow * spread_b).to(b.dtype), of_b * of_lse - moved


def outputs(a: Meta, lse_a: Meta, **_: Any) -> dict[str, Meta]:
    return {"out": like(a).with_(dtype=lse_a.dtype), "lse": Meta(lse_a.shape, lse_a.dtype)}


def canonical(p: Problem) -> Problem | None:
    """As they are; the columns of a head must be neighbours, the normalisers without gaps."""
    tensors = [p[n] for n in ("a", "b")]
    if any(m.shape[3] > 1 and m.strides[3] != 1 for m in tensors) or not (p["lse_a"].contiguous and p["lse_b"].contiguous):
        return None
    return p


def work(p: Problem) -> Work:
    return Work(
        p["a"].nbytes + p["b"].nbytes + p["lse_a"].nbytes + p["lse_b"].nbytes, p["out"].nbytes + p["lse"].nbytes,
        {"fma32": 2.0 * p["out"].numel}
    )


def _cases() -> list[Case]:
    def parts(
        d: str, b: int, s: int, h: int, size: int, layout: str = "contiguous", fill: str = "normal", norms: str = "normal", other: str = ""
    ) -> dict[str, Any]:
        x, y, lse = Input((b, s, h, size), d, fill, layout), Input(
            (b, s, h, size), other or d, fill, layout
        ), Input((b, h, s), "f32", norms)
        return {"a": x, "lse_a": lse, "b": y, "lse_b": lse}

    bench = [
        case(f"{b}x{s}x{h}x128", tags="bench", **parts(d, b, s, h, 128)) for b, s,
        h in ((2, 8192, 16), (1, 1024, 32)) for d in ("bf16", "f32")
    ]
    edges: dict[str, tuple[Any, ...]] = {
        "no batch": (0, 5, 3, 16),
        "no queries": (2, 0, 3, 16),
        "one token": (1, 1, 1, 8),
        "odd": (2, 37, 3, 24),
        "d80": (1, 20, 4, 80),
        "d256": (2, 9, 3, 256),
        "heads first in memory": (2, 20, 3, 32, "padded"),
        "address misaligned": (2, 20, 3, 32, "offset"),
        "NaN": (2, 20, 3, 32, "contiguous", "nan"),
        "parts that see nothing": (2, 20, 3, 32, "contiguous", "normal", "-inf rows"),
        "far apart": (2, 20, 3, 32, "contiguous", "normal", "large"),
    }
    bench.append(case("2x8192x16x128, a part to the sum", tags="bench", **parts("f32", 2, 8192, 16, 128, other="bf16")))
    bench.append(case("a part to the sum", tags="edge", **parts("f32", 2, 37, 3, 24, other="bf16")))
    return bench + [case(name, tags="edge", **parts(d, *how)) for d in ("f32", "f16", "bf16") for name, how in edges.items()]


def _mean(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return (a + b) / 2, reference(a, lse_a, b, lse_b)[1]


def _exchanged(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return reference(a, lse_b, b, lse_a)


def _larger(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    out, _ = reference(a, lse_a, b, lse_b)
    return out, lse_a.maximum(lse_b)


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    judging=Judging(rows=lambda p: {n: (0, 2 if "lse" in n else 1) for n, m in p.tensors if m is not None}),
    swept=Sizes(
        lambda dtype, tokens, heads, head: {
            "a": Input((1, tokens, heads, head), dtype), "lse_a": Input((1, heads, tokens), "f32"),
            "b": Input((1, tokens, heads, head), dtype), "lse_b": Input((1, heads, tokens), "f32"),
        },
        {"tokens": (1, 1 << 22), "heads": (1, 128), "head": (16, 256)}, rows="tokens", models={"head": "head"}, axis="head",
    ),
    work=work,
    tolerance=Tolerance(multiple=4.0, flushed=True),
    grad=Grad(wrt=("a", "lse_a", "b", "lse_b"), saves=("a", "lse_a", "b", "lse_b"), backward=backward),
    peers={"torch": lambda: _merged},
    wrong={"mean of both": _mean, "shares exchanged": _exchanged, "the larger normaliser": _larger},
)
