"""An attention mask from lengths, causal order and a sliding window. rooftop/ops/_masks.py has the formula."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import FLOAT32, number, written
from rooftop.core.op import Calls, Op, Sizes, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops._masks import beyond, ranges, sizes, window_of
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def attention_mask(
    q_len: int,
    kv_len: int,
    lengths: Tensor | None = None,
    *,
    q_lengths: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    heads: int = 1,
    group: int = 1,
    batch: int | None = None,
    dtype: torch.dtype | None = None,
    fill: float = float("-inf"),
    out: Tensor | None = None,
    device: torch.device | str | None = None,
    implementation: str | None = None,
) -> Tensor:
    """The mask [batch, heads, q_len · group, kv_len]: True, or 0 in a floating dtype, where a query attends to a key; False, or `fill`,
    where not.

    Query i of sequence b is at position i + lengths[b] - q_lengths[b], so that the last query is at the last key. It attends to the keys of
    its sequence from position - left to position + right. `rooftop.attention_ranges` returns the same information as two numbers a row.

    Args:
        q_len, kv_len: queries and keys of the longest sequence.
        lengths: int32 or int64 [batch], the number of keys of each sequence; None: kv_len.
        q_lengths: int32 or int64 [batch], the number of its queries; rows after them attend to nothing. None: q_len. Lengths out of range
            are clamped (`rooftop.debug()` reports them).
        causal: a query attends to no key after its own position.
        window: (left, right): the number of keys before and after its own position that a query attends to; -1: no bound.
        heads: how often the mask is repeated, for attention that needs one for each KV head.
        group: number of query heads of a KV head that are folded into the rows: each query has this many consecutive rows.
        batch: number of sequences if no lengths are given; None: 1.
        dtype: torch.bool (None), or torch.float32, float16 or bfloat16 for a mask that is added to the scores.
        fill: the value that an additive mask has where a query does not attend. A row that attends to nothing has only this value.
        out: written into and returned, of that shape, one of these dtypes and any strides that let no elements overlap; it determines dtype
            and device.
        device: of a new mask. None: the device of the lengths, else torch's default.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports the input.

    Raises TypeError for other dtypes, ValueError for sizes, shapes or devices that do not fit."""
    import torch

    left, right = window_of("attention_mask", causal, window)
    if out is not None and not isinstance(out, torch.Tensor):
        raise TypeError(f"attention_mask: out is a {type(out).__name__}; it must be a tensor, or None")
    batch, device = sizes("attention_mask", q_len, kv_len, lengths, q_lengths, batch, group, device if out is None else out.device)
    number("attention_mask", "heads", heads, "a whole number from 0", whole=True)
    number("attention_mask", "fill", fill, "a number")
    if heads < 0:
        raise ValueError(f"attention_mask: heads is {heads}; it must be at least 0")
    kind = out.dtype if out is not None else torch.bool if dtype is None else dtype
    if kind not in (torch.bool, torch.float32, torch.float16, torch.bfloat16) or dtype not in (None, kind):
        given = "" if out is None else f" and out is {out.dtype}"
        raise TypeError(
            f"attention_mask: dtype is {dtype!r}{given}; accepted are torch.bool, torch.float32, torch.float16, torch.bfloat16, alike"
        )
    shape = (batch, heads, q_len * group, kv_len)
    if out is None:
        out = torch.empty(shape, dtype=kind, device=device)
    elif tuple(out.shape) != shape:
        raise ValueError(f"attention_mask: out has shape {tuple(out.shape)}; it must be {shape}")
    else:
        written("attention_mask", "out", out)
    fill = float(fill)
    if not -FLOAT32 <= fill <= FLOAT32:  # as a float32: infinite, or NaN
        fill *= inf
    OP(out, lengths, q_lengths, left, right, group, fill, implementation=implementation)
    return out


def reference(mask: Tensor, lengths: Tensor | None, q_lengths: Tensor | None, left: int, right: int, group: int, fill: float) -> None:
    import torch

    batch, _, rows, keys = mask.shape
    begin, end = ranges(batch, rows, keys, lengths, q_lengths, left, right, group, mask.device)
    key = torch.arange(keys, device=mask.device)
    allowed = ((key >= begin[..., None]) & (key < end[..., None]))[:, None]
    if mask.dtype != torch.bool:
        allowed = torch.zeros(allowed.shape, dtype=mask.dtype, device=mask.device).masked_fill(~allowed, fill)
    mask.copy_(allowed.expand(mask.shape))


def faults(mask: Tensor, lengths: Tensor | None, q_lengths: Tensor | None, left: int, right: int, group: int, fill: float) -> str | None:
    return beyond(mask.shape[2] // group, mask.shape[3], lengths, None) or beyond(mask.shape[2] // group, mask.shape[3], None, q_lengths)


def public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mask, group = tensors["mask"], options["group"]
    batch, heads, rows, keys = mask.shape
    named = {"q_lengths": tensors["q_lengths"], "window": (options["left"], options["right"]), "fill": options["fill"], "out": mask}
    return (rows // group, keys, tensors["lengths"]), {**named, "heads": heads, "group": group, "batch": batch}


def outputs(mask: Meta, **_: Any) -> dict[str, Meta]:
    return {}


def canonical(p: Problem) -> Problem | None:
    """As it is; None where neighbours of a row are not neighbours in memory."""
    lists = [m for n in ("lengths", "q_lengths") if (m := p.get(n)) is not None]
    m = p["mask"]
    return p if (m.shape[3] <= 1 or m.strides[3] == 1) and all(one.contiguous for one in lists) else None


def work(p: Problem) -> Work:
    return Work(sum(m.nbytes for n in ("lengths", "q_lengths") if (m := p.get(n)) is not None), p["mask"].nbytes)


def _swept(dtype: str, batch: int, length: int) -> dict[str, Any]:
    """Causal, of sequences that have other lengths each."""
    lengths = Input((batch,), "i32", f"below {length + 1}")
    return {"mask": Input((batch, 1, length, length), dtype), "lengths": lengths, "left": -1, "right": 0, "group": 1, "fill": float("-inf")}


def _cases() -> list[Case]:
    def call(
        b: int, h: int, q: int, k: int, d: str, *, lengths: str = "", queries: str = "", below: int = 0, left: int = -1, right: int = -1,
        group: int = 1, fill: float = float("-inf"), lies: str = "contiguous",
    ) -> dict[str, Any]:
        return {
            "mask": Input((b, h, q * group, k), d, layout=lies),
            "lengths": Input((b,), lengths, f"below {below or k + 1}") if lengths else None,
            "q_lengths": Input((b,), queries, f"below {q + 1}") if queries else None, "left": left, "right": right, "group": group,
            "fill": fill,
        }

    bench = [
        case("causal 256 MiB", tags="bench model", **call(16, 1, 4096, 4096, "bool", lengths="i32", right=0)),
        case("causal 256 MiB", tags="bench model", **call(8, 1, 4096, 4096, "bf16", lengths="i32", right=0)),
        case("window, heads, 256 MiB", tags="bench", **call(2, 8, 4096, 4096, "bool", lengths="i64", left=1024, right=0)),
        case("odd 256 MiB", tags="bench", **call(16, 1, 4095, 4097, "bool", lengths="i32", right=0)),
        case("32 MiB", tags="bench", **call(2, 1, 2896, 2896, "bf16", lengths="i32", right=0)),
        case("decode 256", tags="bench", **call(256, 1, 1, 8192, "bool", lengths="i32")),
    ]
    edge = []
    for d in ("bool", "f32", "f16", "bf16"):
        edge += [
            case("empty", tags="edge", **call(0, 1, 5, 9, d)),
            case("no keys", tags="edge", **call(2, 1, 5, 0, d, right=0)),
            case("one element", tags="edge", **call(1, 1, 1, 1, d)),
            case("all", tags="edge", **call(2, 1, 5, 64, d)),
            case("causal", tags="edge", **call(2, 1, 33, 33, d, right=0)),
            case("causal, more keys", tags="edge", **call(2, 2, 5, 200, d, right=0)),
            case("causal, more queries", tags="edge", **call(2, 1, 90, 64, d, right=0)),
            case("lengths", tags="edge", **call(6, 1, 5, 70, d, lengths="i32")),
            case("lengths of 64 bits, causal", tags="edge", **call(6, 2, 9, 37, d, lengths="i64", queries="i32", right=0)),
            case("lengths beyond", tags="edge", **call(6, 1, 5, 9, d, lengths="i64", below=20, right=0)),
            case("window", tags="edge", **call(2, 1, 100, 100, d, left=16, right=3)),
            case("window, causal", tags="edge", **call(3, 1, 40, 90, d, lengths="i32", left=7, right=0)),
            case("groups", tags="edge", **call(3, 2, 5, 80, d, lengths="i32", queries="i64", right=0, group=4)),
            case("long row", tags="edge", **call(1, 1, 2, 5003, d, right=0)),
            case("finite", tags="edge", **call(2, 1, 9, 24, d, right=0, fill=-30000.0)),
            case("rows padded", tags="edge", **call(2, 1, 9, 64, d, right=0, lies="padded")),
            case("rows misaligned", tags="edge", **call(2, 1, 9, 61, d, right=0, lies="sliced")),
            case("address misaligned", tags="edge", **call(2, 1, 9, 64, d, right=0, lies="offset")),
            case("every second element", tags="edge", **call(2, 1, 9, 16, d, right=0, lies="strided")),
        ]
    huge = [
        case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call(1, 1, 46341, 46349, "bool", right=0, left=40000))
    ]
    return bench + edge + huge


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        _swept, {"batch": (1, 65536), "length": (16, 16384)}, rows="batch", models={"length": "context"}, dtypes=("bool", "bf16"),
        axis="length"
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    mutates=("mask",),
    calls=Calls(faults=faults, public=public),
    peers={"torch": lambda: reference, "torch.compile": compiled(reference)},
    wrong={
        "one key further": lambda mask, lengths, q, left, right, group, fill: reference(mask, lengths, q, left, right + 1, group, fill),
        "lengths ignored": lambda mask, lengths, q, left, right, group, fill: reference(mask, None, q, left, right, group, fill),
        "padding attends": lambda mask, lengths, q, left, right, group, fill: reference(mask, lengths, None, left, right, group, fill),
        "no window": lambda mask, lengths, q, left, right, group, fill: reference(mask, lengths, q, -1, right, group, fill),
        "groups ignored": lambda mask, lengths, q, left, right, group, fill: reference(mask, lengths, q, left, right, 1, fill),
        "fill ignored": lambda mask, lengths, q, left, right, group, fill: reference(mask, lengths, q, left, right, group, float("-inf")),
        "nothing written": lambda *args: None,
    },
)
