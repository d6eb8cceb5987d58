"""What several test files share: one or more calls of every public function beside plain torch, layouts of tensors, the command line in process."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.nn import functional

import rooftop
from rooftop.core import registry
from rooftop.core.layouts import widen
from rooftop.core.spec import DTYPES, OF_TORCH, Case, Input
from rooftop.lab.check import compare

LAYOUTS = ("transposed", "sliced", "strided", "expanded", "misaligned")


@dataclass(frozen=True)
class Call:
    """One call of a public function beside what torch has for it. `mask` names bool tensors, `index` int64 ones with their bound."""

    op: str
    what: str
    tensors: Mapping[str, tuple[int, ...]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    mask: tuple[str, ...] = ()
    index: Mapping[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.op} {self.what}".strip()

    @property
    def floats(self) -> tuple[str, ...]:
        return tuple(n for n in self.tensors if n not in self.mask and n not in self.index)

    @property
    def dtypes(self) -> list[str]:
        return sorted({c.dtype for c in registry.op(self.op).cases})

    def make(self, dtype: str, device: str, seed: int = 0) -> dict[str, torch.Tensor]:
        """The tensors by name: numbers drawn on the CPU, so that they are the same everywhere."""
        g = torch.Generator().manual_seed(seed)
        made = {}
        for n, shape in self.tensors.items():
            if n in self.mask:
                t = torch.rand(shape, generator=g) > 0.3
            elif n in self.index:
                t = torch.randint(0, self.index[n], shape, generator=g)
            else:
                t = torch.randn(shape, generator=g).to(getattr(torch, DTYPES[dtype].torch))
            made[n] = t.to(device)
        return made


def _rms(t: Mapping[str, torch.Tensor]) -> Any:
    s = t["x"] + t["residual"] if "residual" in t else t["x"]
    y = functional.rms_norm(s, t["weight"].shape, t["weight"], 1e-6)
    y = y + t["bias"] if "bias" in t else y
    return (y, s) if "residual" in t else y


def _layer(t: Mapping[str, torch.Tensor]) -> Any:
    s = t["x"] + t["residual"] if "residual" in t else t["x"]
    y = functional.layer_norm(s, t["weight"].shape, t["weight"], t["bias"])
    return (y, s) if "residual" in t else y


def _masked(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return t["residual"] + 1.25 * (t["x"] + t["bias"]).where(t["mask"], 0.0)


CALLS = [
    Call("softmax", "last", {"x": (5, 77)}, lambda x: rooftop.softmax(x), lambda x: x.softmax(-1)),
    Call("softmax", "middle", {"x": (3, 50, 4)}, lambda x: rooftop.softmax(x, dim=1), lambda x: x.softmax(1)),
    Call("add", "", {"x": (7, 33), "y": (7, 33)}, lambda x, y: rooftop.add(x, y), lambda x, y: x + y),
    Call("matmul", "", {"a": (37, 29), "b": (29, 43)}, lambda a, b: rooftop.matmul(a, b), lambda a, b: a @ b),
    Call("matmul", "addend", {"a": (37, 29), "b": (29, 43), "c": (37, 43)}, lambda a, b, c: rooftop.matmul(a, b, c=c, alpha=0.5, beta=2.0),
         lambda a, b, c: 0.5 * (a @ b) + 2.0 * c),
    Call("rms_norm", "", {"x": (6, 77), "weight": (77,)}, lambda x, weight: rooftop.rms_norm(x, 77, weight, 1e-6), lambda **t: _rms(t)),
    Call("rms_norm", "residual", {"x": (6, 77), "weight": (77,), "bias": (77,), "residual": (6, 77)},
         lambda x, weight, bias, residual: rooftop.rms_norm(x, (77,), weight, 1e-6, bias=bias, residual=residual), lambda **t: _rms(t)),
    Call("layer_norm", "", {"x": (6, 77), "weight": (77,), "bias": (77,)}, lambda x, weight, bias: rooftop.layer_norm(x, 77, weight, bias),
         lambda **t: _layer(t)),
    Call("layer_norm", "residual", {"x": (6, 77), "weight": (77,), "bias": (77,), "residual": (6, 77)},
         lambda x, weight, bias, residual: rooftop.layer_norm(x, 77, weight, bias, residual=residual), lambda **t: _layer(t)),
    Call("gelu", "", {"x": (7, 33)}, lambda x: rooftop.gelu(x), lambda x: functional.gelu(x)),
    Call("gelu", "tanh", {"x": (7, 33)}, lambda x: rooftop.gelu(x, approximate="tanh"), lambda x: functional.gelu(x, approximate="tanh")),
    Call("silu", "", {"x": (7, 33)}, lambda x: rooftop.silu(x), lambda x: functional.silu(x)),
    Call("square", "", {"x": (7, 33)}, lambda x: rooftop.square(x), lambda x: x.square()),
    Call("swiglu", "", {"a": (7, 33), "b": (7, 33)}, lambda a, b: rooftop.swiglu(a, b), lambda a, b: functional.silu(a) * b),
    Call("swiglu", "packed", {"a": (7, 66)}, lambda a: rooftop.swiglu(a), lambda a: functional.silu(a[..., :33]) * a[..., 33:]),
    Call("geglu", "", {"a": (7, 33), "b": (7, 33)}, lambda a, b: rooftop.geglu(a, b), lambda a, b: functional.gelu(a) * b),
    Call("geglu", "packed", {"a": (7, 66)}, lambda a: rooftop.geglu(a, approximate="tanh"),
         lambda a: functional.gelu(a[..., :33], approximate="tanh") * a[..., 33:]),
    Call("bias_mask_scale_add", "", {"x": (7, 33), "bias": (33,), "residual": (7, 33), "mask": (7, 33)},
         lambda x, bias, residual, mask: rooftop.bias_mask_scale_add(x, bias, residual, mask, scale=1.25), lambda **t: _masked(t), mask=("mask",)),
    Call("cross_entropy", "", {"input": (9, 65), "target": (9,)}, lambda input, target: rooftop.cross_entropy(input, target),
         lambda input, target: functional.cross_entropy(input, target), index={"target": 65}),
    Call("cross_entropy", "each row's", {"input": (9, 65), "target": (9,)},
         lambda input, target: rooftop.cross_entropy(input, target, reduction="none", label_smoothing=0.1, ignore_index=3),
         lambda input, target: functional.cross_entropy(input, target, reduction="none", label_smoothing=0.1, ignore_index=3), index={"target": 65}),
]  # fmt: skip


def from_contract(name: str) -> Call | None:
    """A call of an op at a small case of its contract, beside its reference; None where the public function is called otherwise than the reference."""
    op = registry.op(name)
    public = inspect.signature(getattr(rooftop, name)).parameters
    needed = {n for n, q in public.items() if q.default is q.empty and q.kind is not q.VAR_KEYWORD}
    if not needed <= set(op.parameters) <= set(public) or (op.grad and op.grad.aside):
        return None

    def usable(case: Case) -> bool:
        given = dict(case.tensors())
        plain = all(v.layout == "contiguous" and (v.fill in ("normal", "wide") or not DTYPES[v.dtype].floating) for v in given.values())
        sizes = [torch.Size(v.shape).numel() for v in given.values()]
        return plain and not {"bench", "huge"} & case.tags and min(sizes) > 5 and sum(sizes) < 10_000

    found = sorted((c for c in op.cases if usable(c)), key=lambda c: all(len(v.shape) < 2 for _, v in c.tensors()))  # more dimensions: more layouts
    if not found:
        return None
    given, options = dict(found[0].tensors()), op.options(found[0])

    def bound(v: Input) -> int:
        return int(v.fill.removeprefix("below ")) if v.fill.startswith("below ") else 100

    return Call(
        name, "from its contract", {n: v.shape for n, v in given.items()},
        ours=lambda **t: getattr(rooftop, name)(**t, **options), theirs=lambda **t: op.reference(*(t.get(n) for n in op.tensor_names), *options.values()),
        mask=tuple(n for n, v in given.items() if v.dtype == "bool"),
        index={n: bound(v) for n, v in given.items() if v.dtype != "bool" and not DTYPES[v.dtype].floating},
    )  # fmt: skip


CALLS += [call for name in registry.op_names() if name not in {c.op for c in CALLS} and (call := from_contract(name))]  # a new op is one file
FIRST: Mapping[str, Call] = {c.op: c for c in reversed(CALLS)}


def results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def as_double(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}


def faults(call: Call, tensors: Mapping[str, torch.Tensor], got: Any) -> list[str]:
    """What is wrong with the results of a call, by the tolerance of its op; empty where they are right."""
    exact = results(call.theirs(**as_double(tensors)))
    same = results(call.theirs(**{n: widen(t) for n, t in tensors.items()}))
    op = registry.op(call.op)
    found = []
    for i, (g, e, s) in enumerate(zip(results(got), exact, same, strict=True)):
        tolerance = op.tolerance_of(op.output_names[i])
        verdict = compare.compare(g, e, s.to(g.dtype), OF_TORCH[str(g.dtype).removeprefix("torch.")], tolerance.multiple, tolerance.exact)
        found += [] if verdict.ok else [f"output {i}: {verdict.message}"]
    return found


def gradients(function: Callable[..., Any], tensors: Mapping[str, torch.Tensor], wrt: Sequence[str]) -> list[torch.Tensor]:
    """Gradients of `wrt` for cotangents that depend on nothing but the shapes of the results."""
    leaves = {n: t.detach().clone().requires_grad_() if n in wrt else t for n, t in tensors.items()}
    made = results(function(**leaves))
    g = torch.Generator().manual_seed(11)
    flow = [torch.randn(o.shape, generator=g).to(o.device, o.dtype) for o in made]
    return list(torch.autograd.grad(made, [leaves[n] for n in wrt], flow))


def laid(t: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of `t` in other memory; `expanded` repeats its first row. What has fewer dimensions than a layout needs stays as it is."""
    if layout == "transposed" and t.dim() > 1:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced" and t.dim() > 1:
        room = t.new_ones((*t.shape[:-1], t.shape[-1] + 5))
        return room[..., : t.shape[-1]].copy_(t)
    if layout == "strided" and t.dim():
        room = t.new_ones((*t.shape[:-1], 2 * t.shape[-1]))
        return room[..., ::2].copy_(t)
    if layout == "expanded" and t.dim() > 1:
        return t[:1].clone().expand(t.shape)
    if layout == "misaligned":
        room = t.new_ones(t.numel() + 1)
        return room[1:].view(t.shape).copy_(t)
    return t


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the command line in this process and return its exit code. What it does not answer itself is raised as it is: a traceback."""
    from rooftop.lab import cli

    monkeypatch.setattr(sys, "argv", ["rooftop", *words])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def flat(text: str) -> str:
    """Without the line breaks of a terminal."""
    return re.sub(r"\s+", " ", text)
