"""A KV cache and new keys and values, copied one behind the other into new memory.

    out[.., s, ..] = past[.., s, ..] for s < past.shape[dim], else new[.., s - past.shape[dim], ..]"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Grad, Op, Sizes, Tolerance
from rooftop.core.spec import OF_TORCH, Case, Input, Meta, Problem, Work, case
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    from torch import Tensor


def concat_kv(past: Tensor, new: Tensor, dim: int = -2, *, implementation: str | None = None) -> Tensor:
    """`past` and `new` concatenated along `dim`, as a new contiguous tensor. Every element keeps its bits.

    Args:
        past, new: of the same dtype and of equal extents except along `dim`: [B, H, S, D] with the default `dim`, or any other shape and
            strides.
        dim: the dimension of the tokens; negative values count from the last.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports the input.

    Returns a contiguous tensor with past.shape[dim] + new.shape[dim] elements along `dim`. It never shares memory with its inputs. A
    preallocated
    cache is cheaper: `rooftop.append_kv` copies only the new tokens.

    Raises TypeError for different or unsupported dtypes, IndexError for a `dim` out of range, ValueError for shapes or devices that
    do not fit."""
    import torch

    for name, t in (("past", past), ("new", new)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"concat_kv: {name} is a {type(t).__name__}; it must be a tensor")
        if str(t.dtype).removeprefix("torch.") not in OF_TORCH:
            raise TypeError(f"concat_kv: {name} is {t.dtype}; accepted are {', '.join(OF_TORCH)}")
    if past.dtype != new.dtype:
        raise TypeError(f"concat_kv: past is {past.dtype} and new is {new.dtype}; they must be the same")
    if past.device != new.device:
        raise ValueError(f"concat_kv: past lies on {past.device} and new on {new.device}; they must be on one device")
    rank = past.dim()
    number("concat_kv", "dim", dim, "a whole number", whole=True)
    if rank == 0:
        raise ValueError("concat_kv: past has no dimensions; it must have at least one")
    if not -rank <= dim < rank:
        raise IndexError(f"concat_kv: dim is {dim}; past has {rank} dimensions, so it must be {-rank} to {rank - 1}")
    dim %= rank
    if new.dim() != rank or any(i != dim and a != b for i, (a, b) in enumerate(zip(past.shape, new.shape, strict=True))):
        raise ValueError(
            f"concat_kv: past has shape {tuple(past.shape)} and new {tuple(new.shape)}; they must be alike in every dimension but {dim}"
        )
    return OP(past, new, dim, past.shape[dim], implementation=implementation)


def reference(past: Tensor, new: Tensor, dim: int, split: int) -> Tensor:
    """`split`: the extent of `past` along `dim`, which the backward needs."""
    import torch

    return torch.cat((past, new), dim).contiguous()


def backward(dout: Tensor, dim: int, split: int) -> tuple[Tensor, Tensor]:
    return dout.narrow(dim, 0, split), dout.narrow(dim, split, dout.shape[dim] - split)


def outputs(past: Meta, new: Meta, dim: int, **_: Any) -> dict[str, Meta]:
    dim %= len(past.shape)
    return {"out": Meta((*past.shape[:dim], past.shape[dim] + new.shape[dim], *past.shape[dim + 1 :]), past.dtype)}


NAMES = ("past", "new", "out")


def canonical(p: Problem) -> Problem | None:
    """All three as [outer, outer, tokens, run], a run of neighbours; None where the dimensions do not merge so. Tokens that follow each
    other without gaps in all three are rows of the longest run that divides both parts."""
    dim, metas = int(p.option("dim")), [p[n] for n in NAMES]
    full = [m for m in metas if m.numel]  # an empty tensor may lie anyhow

    def merged(dims: range) -> list[tuple[int, tuple[int, ...]]]:
        found: list[tuple[int, tuple[int, ...]]] = []
        for i in dims:
            n, steps = metas[2].shape[i], tuple(m.strides[i] for m in metas)
            if n == 1:
                continue
            fits = bool(found) and all(a == b * n for a, b, m in zip(found[-1][1], steps, metas, strict=True) if m.numel)
            if fits:
                found[-1] = (found[-1][0] * n, steps)
            else:
                found.append((n, steps))
        return found

    if not full:
        return p.replace(**{n: Meta((1, 1, 0, 1), m.dtype) for n, m in zip(NAMES, metas, strict=True)})
    outer, inner = merged(range(dim)), merged(range(dim + 1, len(metas[0].shape)))
    run, steps = inner[-1] if inner else (1, (1, 1, 1))
    if len(outer) > 2 or len(inner) > 1 or any(step != 1 for step, m in zip(steps, metas, strict=True) if m.numel):
        return None
    outer = [(1, (0, 0, 0))] * (2 - len(outer)) + outer
    counts = [m.shape[dim] for m in metas]
    tokens = [m.strides[dim] for m in metas]
    if all(n == 1 or step == run for n, step, m in zip(counts, tokens, metas, strict=True) if m.numel):
        longest = run * gcd(counts[0], counts[1])
        counts, tokens, run = [n * run // longest for n in counts], [longest] * 3, longest
    made: dict[str, Meta | None] = {}
    for i, (name, m) in enumerate(zip(NAMES, metas, strict=True)):
        made[name] = Meta((outer[0][0], outer[1][0], counts[i], run), m.dtype, (outer[0][1][i], outer[1][1][i], tokens[i], 1), m.align)
    return p.replace(**made)


def work(p: Problem) -> Work:
    return Work(p["past"].nbytes + p["new"].nbytes, p["out"].nbytes)


def _swept(dtype: str, batch: int, heads: int, tokens: int, head: int) -> dict[str, Any]:
    """One token more."""
    return {"past": Input((batch, heads, tokens, head), dtype), "new": Input((batch, heads, 1, head), dtype), "dim": 2, "split": tokens}


def _cases() -> list[Case]:
    def call(
        past: tuple[int, ...], dim: int, count: int, d: str = "bf16", fill: str = "normal", lies: str = "contiguous"
    ) -> dict[str, Any]:
        new = (*past[:dim], count, *past[dim + 1 :])
        return {"past": Input(past, d, fill, lies), "new": Input(new, d, fill, lies), "dim": dim, "split": past[dim]}

    bench = [
        case("one token, 256 MiB", tags="bench model", **call((16, 8, 4095, 128), 2, 1)),
        case("tokens first, 256 MiB", tags="bench", **call((16, 4095, 8, 128), 1, 1)),
        case("halves, 256 MiB", tags="bench", **call((16, 8, 2048, 128), 2, 2048)),
        case("float32, 256 MiB", tags="bench", **call((16, 8, 2000, 128), 2, 47, "f32")),
        case("one token, 32 MiB", tags="bench", **call((1, 8, 8191, 128), 2, 1)),
        case("head of 80, 32 MiB", tags="bench", **call((1, 8, 13107, 80), 2, 1)),
    ]
    edge = []
    for d in ("f32", "f16", "bf16", "f8e4m3"):
        if d != "f8e4m3":  # of which torch makes no sum, and so no gradient
            edge += [
                case("empty", tags="edge", **call((0, 2, 3, 16), 2, 1, d)), case("no columns", tags="edge", **call((2, 3, 5, 0), 2, 1, d))
            ]
        edge += [
            case("no past", tags="edge", **call((2, 3, 0, 16), 2, 5, d)),
            case("nothing new", tags="edge", **call((2, 3, 5, 16), 2, 0, d)),
            case("one element", tags="edge", **call((1,), 0, 1, d)),
            case("odd 1003", tags="edge", **call((1003,), 0, 7, d)),
            case("one token", tags="edge", **call((2, 3, 9, 64), 2, 1, d)),
            case("tokens first", tags="edge", **call((2, 9, 3, 64), 1, 4, d)),
            case("head of 80", tags="edge", **call((2, 3, 9, 80), 2, 1, d)),
            case("head of 7", tags="edge", **call((2, 3, 9, 7), 2, 2, d)),
            case("last", tags="edge", **call((3, 5, 24), 2, 8, d)),
            case("first", tags="edge", **call((5, 33), 0, 6, d)),
            case("five dimensions", tags="edge", **call((2, 3, 2, 5, 8), 3, 3, d)),
            case("rows padded", tags="edge", **call((2, 3, 9, 64), 2, 1, d, lies="padded")),
            case("rows misaligned", tags="edge", **call((2, 3, 9, 64), 2, 1, d, lies="sliced")),
            case("address misaligned", tags="edge", **call((2, 3, 9, 64), 2, 1, d, lies="offset")),
            case("every second element", tags="edge", **call((2, 3, 9, 16), 2, 1, d, lies="strided")),
            case("transposed", tags="edge", **call((2, 3, 9, 16), 2, 1, d, lies="transposed")),
            case("expanded", tags="edge", **call((2, 3, 9, 16), 2, 1, d, lies="expanded")),
            case("NaN", tags="edge", **call((2, 3, 9, 16), 2, 1, d, "nan")),
            case("-0.0", tags="edge", **call((2, 3, 9, 16), 2, 1, d, "-0.0")),
        ]
        if d != "f8e4m3":
            edge += [
                case("denormals", tags="edge", **call((2, 3, 9, 16), 2, 1, d, "tiny")),
                case("+inf", tags="edge", **call((2, 3, 9, 16), 2, 1, d, "inf"))
            ]
    for d in ("u8", "i64", "bool"):
        edge += [case("codes", tags="edge", **call((2, 3, 9, 20), 2, 3, d)), case("odd codes", tags="edge", **call((3, 9, 5), 1, 1, d))]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((17, 1031, 963, 128), 2, 1, "u8"))]
    return bench + edge + huge


def _changed(change: str) -> Callable[..., Tensor]:
    def run(past: Tensor, new: Tensor, dim: int, split: int) -> Tensor:
        import torch

        if change == "exchanged":
            return reference(new, past, dim, split)
        out = reference(past, new, dim, split)
        if change == "new missing" and past.shape[dim]:
            out.view(torch.uint8 if out.element_size() == 1 else out.dtype).narrow(dim, split, new.shape[dim]).zero_()
        elif change == "whole packs" and out.numel() and prod(out.shape) % 8:
            flat = out.view(-1)
            flat.view(torch.uint8 if out.element_size() == 1 else out.dtype)[out.numel() // 8 * 8 :] = 0
        return out

    return run


OP = Op(
    reference,
    calls=Calls(cpu=reference, public=lambda tensors, options: ((tensors["past"], tensors["new"], options["dim"]), {})),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        _swept, {"batch": (1, 65536), "heads": (1, 16), "tokens": (1, 16384), "head": (16, 256)}, rows="batch", models={"head": "head"},
        axis="tokens"
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    grad=Grad(wrt=("past", "new"), saves=(), backward=backward),
    peers={"torch": lambda: reference, "torch.compile": compiled(reference)},
    wrong={"exchanged": _changed("exchanged"), "new missing": _changed("new missing"), "whole packs alone": _changed("whole packs")},
)
