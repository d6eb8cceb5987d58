"""The keys that each query attends to, as a range: the compact form of `rooftop.attention_mask`. rooftop/ops/_masks.py has the formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import apart, written
from rooftop.core.op import Calls, Op, Sizes, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops import _masks
from rooftop.ops._masks import beyond, sizes, window_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def attention_ranges(
    q_len: int,
    kv_len: int,
    lengths: Tensor | None = None,
    *,
    q_lengths: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    group: int = 1,
    batch: int | None = None,
    out: tuple[Tensor, Tensor] | None = None,
    device: torch.device | str | None = None,
    implementation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Two int32 tensors (begin, end) [batch, q_len · group]: a row attends to the keys begin <= j < end, to none if they are equal.

    They hold the same information as `rooftop.attention_mask` with the same arguments, in 8 bytes a row instead of kv_len elements for each
    head. Pass the pair as `mask` to `rooftop.attention`. `out`: two int32 tensors of that shape that do not overlap, which are written into
    and returned;
    None: new ones. Lengths below 0 or above kv_len (q_len) are clamped (`rooftop.debug()` reports them). Other arguments and errors are
    those of `attention_mask`."""
    left, right = window_of("attention_ranges", causal, window)
    import torch

    if out is not None and (not isinstance(out, (tuple, list)) or len(out) != 2 or not all(isinstance(t, torch.Tensor) for t in out)):
        kinds = [type(t).__name__ for t in out] if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(f"attention_ranges: out is {kinds}; it must be two tensors, or None")
    batch, device = sizes("attention_ranges", q_len, kv_len, lengths, q_lengths, batch, group, device if out is None else out[0].device)
    shape = (batch, q_len * group)
    begin, end = (torch.empty(shape, dtype=torch.int32, device=device) for _ in range(2)) if out is None else out
    for t in (begin, end):
        if t.dtype != torch.int32:
            raise TypeError(f"attention_ranges: out is {t.dtype}; it must be torch.int32")
        if tuple(t.shape) != shape or t.device != device:
            raise ValueError(f"attention_ranges: out has shape {tuple(t.shape)} on {t.device}; it must be {shape} on {device}")
        if out is not None:
            written("attention_ranges", "out", t)
    if out is not None:
        apart("attention_ranges", "out[0]", begin, "out[1]", end)
    OP(begin, end, lengths, q_lengths, kv_len, left, right, group, implementation=implementation)
    return begin, end


def reference(
    begin: Tensor, end: Tensor, lengths: Tensor | None, q_lengths: Tensor | None, kv_len: int, left: int, right: int, group: int
) -> None:
    batch, rows = begin.shape
    found = _masks.ranges(batch, rows, kv_len, lengths, q_lengths, left, right, group, begin.device)
    for into, numbers in zip((begin, end), found, strict=True):
        into.copy_(numbers)



def faults(
    begin: Tensor, end: Tensor, lengths: Tensor | None, q_lengths: Tensor | None, kv_len: int, left: int, right: int, group: int
) -> str | None:
    return beyond(begin.shape[1] // group, kv_len, lengths, q_lengths)


def public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    group, named = options["group"], {"q_lengths": tensors["q_lengths"], "window": (options["left"], options["right"])}
    batch, rows = tensors["begin"].shape
    return (rows // group, options["kv_len"], tensors["lengths"]), {
        **named, "group": group, "batch": batch, "out": [tensors["begin"], tensors["end"]]
    }


def outputs(begin: Meta, **_: Any) -> dict[str, Meta]:
    return {}


def canonical(p: Problem) -> Problem | None:
    return p if all(m is None or m.contiguous for _, m in p.tensors) else None


def work(p: Problem) -> Work:
    return Work(sum(m.nbytes for n in ("lengths", "q_lengths") if (m := p.get(n)) is not None), p["begin"].nbytes + p["end"].nbytes)


def _swept(dtype: str, batch: int, queries: int) -> dict[str, Any]:
    """Causal, of sequences that have other lengths each."""
    into = Input((batch, queries), dtype)
    return {
        "begin": into, "end": into, "lengths": Input((batch,), "i32", f"below {queries + 1}"), "kv_len": queries, "left": -1, "right": 0,
        "group": 1
    }


def _cases() -> list[Case]:
    def call(
        b: int, q: int, k: int, *, lengths: str = "", queries: str = "", below: int = 0, left: int = -1, right: int = -1, group: int = 1
    ) -> dict[str, Any]:
        return {
            "begin": Input((b, q * group), "i32"), "end": Input((b, q * group), "i32"),
            "lengths": Input((b,), lengths, f"below {below or k + 1}") if lengths else None,
            "q_lengths": Input((b,), queries, f"below {q + 1}") if queries else None, "kv_len": k, "left": left, "right": right,
            "group": group,
        }

    edge = [
        case("empty", tags="edge", **call(0, 5, 9)),
        case("no queries", tags="edge", **call(2, 0, 9)),
        case("no keys", tags="edge", **call(2, 5, 0, right=0)),
        case("all", tags="edge", **call(2, 5, 9)),
        case("causal", tags="edge", **call(2, 7, 7, right=0)),
        case("causal, more keys", tags="edge", **call(2, 5, 9, right=0)),
        case("causal, more queries", tags="edge", **call(2, 9, 5, right=0)),
        case("lengths", tags="edge", **call(6, 5, 9, lengths="i32")),
        case("lengths of 64 bits, causal", tags="edge", **call(6, 9, 9, lengths="i64", queries="i32", right=0)),
        case("lengths beyond", tags="edge", **call(6, 5, 9, lengths="i64", below=20, right=0)),
        case("window", tags="edge", **call(2, 200, 200, left=16, right=3)),
        case("window, causal", tags="edge", **call(3, 60, 90, lengths="i32", left=7, right=0)),
        case("window of one", tags="edge", **call(1, 9, 9, left=0, right=0)),
        case("groups", tags="edge", **call(3, 5, 9, lengths="i32", queries="i64", right=0, group=4)),
    ]
    bench = [
        case("prefill 64x8192", tags="bench", **call(64, 8192, 8192, lengths="i32", right=0, left=4096)),
        case("decode 256", tags="bench", **call(256, 1, 8192, lengths="i32", right=0)),
    ]
    return bench + edge


def _changed(change: str) -> Callable[..., None]:
    def run(
        begin: Tensor, end: Tensor, lengths: Tensor | None, q_lengths: Tensor | None, kv_len: int, left: int, right: int, group: int
    ) -> None:
        if change == "lengths":
            lengths = q_lengths = None
        left, right = -1 if change == "left" else left, -1 if change == "right" else right
        reference(begin, end, lengths, q_lengths, kv_len, left, right, 1 if change == "group" else group)
        if change == "end":
            end += 1

    return run


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        _swept, {"batch": (1, 65536), "queries": (64, 131072)}, rows="batch", models={"queries": "context"}, dtypes=("i32",), axis="queries"
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    mutates=("begin", "end"),
    calls=Calls(faults=faults, public=public),
    peers={"torch": lambda: reference},
    wrong={
        "one key more": _changed("end"),
        "lengths ignored": _changed("lengths"),
        "no window": _changed("left"),
        "not causal": _changed("right"),
        "groups ignored": _changed("group"),
        "nothing written": lambda *args: None,
    },
)
