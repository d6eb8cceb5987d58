"""The tables of docs/attention.md: which kernel runs a call of `rooftop.attention` with any two features, forward and backward, as the
kernels say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.contract import Contract, metas_of
from rooftop.core.spec import TARGETS
from rooftop.lab import public_calls

if TYPE_CHECKING:
    from torch import Tensor

CARD = "h200"
BATCH, QUERIES, HEADS, KEY_HEADS, SIZE = 2, 136, 4, 2, 64
SIGNS = {"gluon_sm90": "G", "eight__gluon_sm90": "E", "triton": "T", "decode__triton": "D"}


@dataclass(frozen=True)
class Feature:
    """A feature of a call: what it adds to or changes in the keyword arguments of `rooftop.attention`."""

    name: str
    change: Callable[[dict[str, Any], Any], None]


def _set(name: str, value: Any) -> Callable[[dict[str, Any], Any], None]:
    return lambda call, new: call.update({name: value})


def _tensor(name: str, shape: tuple[int, ...], dtype: str) -> Callable[[dict[str, Any], Any], None]:
    return lambda call, new: call.update({name: new(shape, dtype)})


def _packed(call: dict[str, Any], new: Any) -> None:
    call.update({n: call[n].flatten(0, 1) for n in "qkv"})
    call.update(cu_seqlens_q=new((4,), "bounds"), cu_seqlens_k=new((4,), "bounds"))


def _pages(call: dict[str, Any], new: Any) -> None:
    call.update({n: new((20, 16, KEY_HEADS, SIZE), str(call[n].dtype).removeprefix("torch.")) for n in "kv"})
    call.update(page_table=new((BATCH, 9), "pages"), cache_lengths=new((BATCH,), "lengths"))


def _eight(call: dict[str, Any], new: Any) -> None:
    call.update({n: new(tuple(call[n].shape), "float8_e4m3fn") for n in "kv"}, k_scale=new((1,), "float32"), v_scale=new((1,), "float32"))


def _all_eight(call: dict[str, Any], new: Any) -> None:
    _eight(call, new)
    call.update(q=new(tuple(call["q"].shape), "float8_e4m3fn"), q_scale=new((1,), "float32"))


def _few(call: dict[str, Any], new: Any) -> None:
    call["q"] = call["q"][:, :1]


def _bias(call: dict[str, Any], new: Any) -> None:
    kind = "bfloat16" if call["q"].element_size() == 2 else "float32"  # of the dtype of q, which no kernel takes in 8 bits
    call.update(bias=new((BATCH, HEADS, call["q"].shape[-3], QUERIES), kind))


# In an order in which each can be applied to what those before it made.
FEATURES = (
    Feature("causal", _set("causal", True)),
    Feature("window", _set("window", (20, 5))),
    Feature("soft cap", _set("softcap", 5.0)),
    Feature("one query", _few),
    Feature("pages", _pages),
    Feature("8-bit keys", _eight),
    Feature("8 bits", _all_eight),
    Feature("packed", _packed),
    Feature("lengths", _tensor("cache_lengths", (BATCH,), "lengths")),
    Feature("bias", _bias),
    Feature("mask", lambda call, new: call.update(mask=new((1, 1, call["q"].shape[-3], QUERIES), "bool"))),
    Feature(
        "ranges", lambda call, new: call.update(mask=(new((BATCH, call["q"].shape[-3]), "begin"), new((BATCH, call["q"].shape[-3]), "end")))
    ),
    Feature("ALiBi", _tensor("alibi_slopes", (HEADS,), "float32")),
    Feature("dropout", _set("dropout_p", 0.25)),
    Feature("sinks", _tensor("sinks", (HEADS,), "float32")),
)
ALONE = Feature("nothing else", lambda call, new: None)


def arguments(features: tuple[Feature, ...], device: str, generator: Any = None) -> dict[str, Any]:
    """Keyword arguments of a call with these features, in bfloat16; on `meta` without values. Raises ValueError where two say different
    things by one name."""
    import torch

    def new(shape: tuple[int, ...], kind: str) -> Tensor:
        if device == "meta":
            dtype = {"bounds": "int32", "pages": "int32", "lengths": "int32", "begin": "int32", "end": "int32"}.get(kind, kind)
            return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        if kind == "bounds":
            return torch.tensor([0, 30, 75, BATCH * QUERIES], dtype=torch.int32)
        if kind == "pages":
            return torch.randperm(20, generator=generator)[: shape[0] * shape[1]].view(shape).int()
        if kind == "lengths":
            return torch.tensor([QUERIES - 3, 41], dtype=torch.int32)
        if kind in ("begin", "end"):
            at = torch.arange(shape[1], dtype=torch.int32).expand(shape)
            return (at - 30).clamp(min=0).contiguous() if kind == "begin" else (at + 10).clamp(max=QUERIES).contiguous()
        made = torch.rand(shape, generator=generator) if kind in ("bool", "float32") else torch.randn(shape, generator=generator)
        return made > 0.2 if kind == "bool" else made.to(getattr(torch, kind))

    call: dict[str, Any] = {"q": new((BATCH, QUERIES, HEADS, SIZE), "bfloat16")}
    call.update({n: new((BATCH, QUERIES, KEY_HEADS, SIZE), "bfloat16") for n in "kv"})
    for f in FEATURES:
        if f in features:
            before = {n: call.get(n) for n in ("mask",)}
            f.change(call, new)
            if before["mask"] is not None and call["mask"] is not before["mask"]:
                raise ValueError("attention: mask is a bool tensor or a pair of ranges, not both")
    return call


def handed(features: tuple[Feature, ...], device: str, generator: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and options of the op as the public function hands them to it. Raises what that raises."""
    return given(arguments(features, device, generator))


def given(call: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `handed`, of keyword arguments of `rooftop.attention`."""
    from rooftop.ops.attention import OP

    return public_calls.given(OP, (), call)


@dataclass(frozen=True)
class Cell:
    """What a call with two features comes to: the kernel's name, or None; and why not the others, by kernel, or why the call is refused
    (`refused`)."""

    kernel: str | None
    reasons: Mapping[str, str]
    refused: str = ""

    @property
    def sign(self) -> str:
        return "×" if self.refused else SIGNS[self.kernel] if self.kernel else "t"


def cell(first: Feature, second: Feature, backward: bool) -> Cell:
    from rooftop.ops.attention import OP

    try:
        tensors, options = handed((first, second), "meta")
    except ValueError as error:
        return Cell(None, {}, str(error).removeprefix("attention: "))
    device = TARGETS[CARD]
    op: Contract = OP
    problem = OP.problem_of(metas_of(tensors, addresses=False), options, device)
    if backward:
        assert OP.bwd is not None and OP.grad is not None
        known = dict(problem.tensors)
        metas = {"dout": known["out"], "dlse": None, **dict(zip(OP.grad.saved_names, OP.grad.saved(known), strict=True))}
        op, problem = OP.bwd, OP.bwd.problem_of(metas, options, device)
    choice = select(op, problem)
    kernel = None if choice.call is None else choice.call.implementation.name.split("__", 1)[1]
    return Cell(kernel, {name.split("__", 1)[1]: reason for name, reason in choice.rejected if registry.implementation(name).automatic})


def matrix(backward: bool) -> str:
    """The kernels of all pairs, a row and a column a feature, and below why a pair is refused or runs as plain torch."""
    order = (ALONE, *FEATURES)
    lines = ["| | " + " | ".join(f.name for f in order) + " |", "|---|" + ":-:|" * len(order)]
    notes: dict[str, list[str]] = {}
    for i, first in enumerate(order):
        row = []
        for j, second in enumerate(order):
            found = cell(first, second, backward)
            row.append(found.sign if j <= i else "")
            if j <= i and found.sign in "×t":
                pair = first.name if second in (ALONE, first) else f"{first.name} with {second.name}"
                reason = found.refused or "; ".join(f"`{k}` {r}" for k, r in sorted(found.reasons.items()) if "pallas" not in k)
                pairs = notes.setdefault(("× " if found.refused else "t ") + reason, [])
                if pair not in pairs:
                    pairs.append(pair)
        lines.append(f"| {first.name} | " + " | ".join(row) + " |")
    told = [f"- {', '.join(pairs)}: {'refused' if reason[0] == '×' else 'plain torch'}: {reason[2:]}" for reason, pairs in notes.items()]
    return "\n".join([*lines, "", *told])


def forward() -> str:
    return matrix(False)


def backward() -> str:
    return matrix(True)
