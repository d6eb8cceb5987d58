"""Calls of the public functions, worked out from the cases of their contracts: an op is called in every test here by its file alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest import mock

import torch
from _support import results

import rooftop
from rooftop.core import registry
from rooftop.core.contract import Contract, metas_of
from rooftop.core.layouts import computes, widen
from rooftop.core.spec import DTYPES, Case, Input
from rooftop.lab import public_calls
from rooftop.lab.check import checker, judgement
from rooftop.lab.check.contracts import dtypes, small
from rooftop.lab.inputs import by_name, make

LAYOUTS = ("transposed", "sliced", "strided", "expanded", "offset")
KINDS = 4  # kinds of call of one op in one dtype: which tensors are given, which texts and switches, how many dimensions
LARGEST = 1 << 18  # elements of all inputs of a call
LOOSE = {"f64": 1e-9, "f32": 2e-5, "f16": 1e-2, "bf16": 5e-2}  # of the largest gradient: what a backward is given was rounded to 16 bits before


def ops(house: registry.House = registry.HOUSE) -> list[str]:
    """Every op, and those backwards that are ops, next to their forward."""
    return [n for name in registry.op_names(house) for n in (name, *([f"{name}_bwd"] if registry.op(name, house).bwd else []))]


def called(house: registry.House = registry.HOUSE) -> list[str]:
    """The ops whose public functions take and return tensors."""
    return [n for n in registry.op_names(house) if not registry.op(n, house).objects]


@dataclass(frozen=True)
class Call:
    """A public function called as in one case of its contract. It is a callable with the signature of the reference. Tensors have the names that the
    contract gives them: those of a list `xs` are `xs0`, `xs1`, ..."""

    op: Contract
    case: Case
    function: Callable[..., Any]

    @property
    def id(self) -> str:
        return f"{self.op.name} {self.case.id}"

    @property
    def options(self) -> dict[str, Any]:
        return self.op.options(self.case)

    def make(self, device: str = "cpu", seed: int = 0) -> dict[str, torch.Tensor]:
        """The tensors by name, those that are absent left out."""
        return {n: t for n, t in make(self.op, self.case, device, seed)[0].items() if t is not None}

    def arguments(self, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
        """In the order of the reference; tensors that are left out are absent."""
        return self.op.arguments({**dict.fromkeys(self.op.inputs_of(self.op.problem(self.case))), **tensors}, self.options)

    def keywords(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """What the public function is given. Raises AssertionError where it does not take the reference's arguments and the contract does not say how."""
        whole = {n: tensors.get(n) for n in self.op.inputs_of(self.op.problem(self.case))}
        args, named = public_calls.arguments(self.op, whole, self.options)
        takes = inspect.signature(self.function)
        try:
            return dict(takes.bind(*args, **named).arguments)
        except TypeError as error:
            raise AssertionError(f"{self.op.name}{takes} is not called as its reference is: its contract says how by public= ({error})") from None

    def parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `keywords` gives: keyword -> name of the tensor, or names of a list of them; and the keywords whose values are no tensors."""
        tensors = self.make()
        names = {id(t): n for n, t in tensors.items()}
        places: dict[str, Any] = {}
        fixed: dict[str, Any] = {}
        for k, v in self.keywords(tensors).items():
            into = places if id(v) in names or isinstance(v, list) else fixed
            into[k] = names[id(v)] if id(v) in names else [names[id(t)] for t in v] if isinstance(v, list) else v
        return places, fixed

    def with_(self, name: str, value: Any) -> Any:
        """The call with another value in the place of one tensor."""
        tensors = self.make()

        def other(v: Any) -> Any:
            return [other(t) for t in v] if isinstance(v, list) else value if v is tensors[name] else v

        return self.function(**{k: other(v) for k, v in self.keywords(tensors).items()})

    def __call__(self, *args: Any) -> Any:
        """The outputs of the reference, None for those that the public function does not return: made for a backward alone, or absent."""
        tensors, _ = self.op.flattened(args)
        problem = self.op.problem_of(metas_of(tensors, addresses=False), self.options)
        made = self.function(**self.keywords({n: t for n, t in tensors.items() if t is not None}))
        found = tuple(public_calls.outputs(self.op, problem, made).values())
        return None if not found else found if len(found) != 1 else found[0]

    def returned(self) -> tuple[str, ...]:
        """The outputs that are there and not made for a backward alone."""
        return public_calls.returned(self.op, self.op.problem(self.case))

    def run(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
        """The outputs that it returns, for these tensors."""
        return tuple(t for t in results(self(*self.arguments(tensors))) if t is not None)

    def laid(self, layout: str) -> Call | None:
        """The same call with every tensor in this layout that can have it; None where none can."""
        least = 2 if layout in ("transposed", "sliced") else 1
        changed = 0

        def lay(name: str, v: Any) -> Any:
            nonlocal changed
            if isinstance(v, tuple):
                return tuple(lay(name, one) for one in v)
            if not isinstance(v, Input) or len(v.shape) < least or (layout == "expanded" and (name in self.op.mutates or not DTYPES[v.dtype].floating)):
                return v
            changed += 1
            return replace(v, layout=layout)

        inputs = {n: lay(n, v) for n, v in self.case.inputs.items()}
        return replace(self, case=replace(self.case, inputs=inputs)) if changed else None

    def faults(self, device: str = "cpu", seed: int = 0, **changed: torch.Tensor) -> str:
        """What is wrong with its results, by the tolerance of its contract; empty where they are right. `changed`: tensors given instead."""
        found = self.judged(self, device, seed, **changed)
        return "" if found.status == "ok" else f"{found.status}: {found.message}"

    def judged(self, function: Callable[..., Any], device: str = "cpu", seed: int = 0, **changed: torch.Tensor) -> checker.Result:
        """A function with the reference's signature, judged on this call."""
        expected = expect(self, {**self.make(device, seed), **changed}, device)
        return checker.check_callable(self.op, self.case, function, name=self.op.name, device=device, expected=expected)


def expect(call: Call, tensors: Mapping[str, torch.Tensor], device: str = "cpu") -> judgement.Expected:
    """As `judgement.expect`, for tensors that are given."""
    whole = {n: tensors.get(n) for n in call.op.inputs_of(call.op.problem(call.case))}
    with mock.patch.object(judgement, "make", lambda *_: (whole, call.options)):
        return judgement.expect(call.op, call.case, device, 0)


def double(t: torch.Tensor) -> torch.Tensor:
    return t.double() if computes(t) else t


def wrt(op: Contract) -> set[str]:
    """The inputs that have gradients."""
    return {n for entry in op.grad.wrt for n in entry.split("=")} | set(op.grad.same) if op.grad else set()


def differentiable(call: Call) -> bool:
    """Whether it has inputs and results with gradients: floating-point numbers of 16 bits or more, of an op with a backward."""
    problem = call.op.problem(call.case)

    def real(n: str) -> bool:
        meta = problem.get(n)
        return meta is not None and DTYPES[meta.dtype].floating and meta.itemsize > 1

    return any(map(real, wrt(call.op))) and any(map(real, call.returned()))


def gradients(function: Callable[..., Any], call: Call, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients of a function with the reference's signature, for cotangents that depend on nothing but the shapes of the results."""
    names = [n for n, t in tensors.items() if n in wrt(call.op) and computes(t)]
    leaves = {n: t.detach().requires_grad_() if n in names else t for n, t in tensors.items()}
    found = by_name(call.op, function(*call.arguments(leaves)))
    made = [o for n in call.returned() if (o := found[n]) is not None and o.requires_grad]
    g = torch.Generator().manual_seed(11)
    flow = [torch.randn(o.shape, generator=g).to(o.device, o.dtype) for o in made]
    return dict(zip(names, torch.autograd.grad(made, [leaves[n] for n in names], flow, materialize_grads=True), strict=True))


def _kind(op: Contract, case: Case) -> tuple[Any, ...]:
    given = dict(case.tensors())
    switches = tuple(v for v in op.options(case).values() if isinstance(v, (str, bool)))
    return tuple(sorted(given)), switches, tuple(len(v.shape) for v in given.values())


def _plain(op: Contract, case: Case) -> bool:
    """Small, with values of every day and no dimension of 1: what is lengthened is not broadcast."""
    given = dict(case.tensors())
    least = min((e for v in given.values() for e in v.shape), default=0)
    plain = all(v.fill in ("normal", "wide") or not DTYPES[v.dtype].floating for v in given.values())
    in_place = op.bwd is not None and op.bwd.into and case.inputs.get("inplace")
    return plain and least >= 2 and not in_place and size(case) <= LARGEST and not op.idle(op.problem(case))


def _usable(op: Contract, case: Case) -> bool:
    """A call that the public function can make, with results that are finite."""
    tensors, options = make(op, case, "cpu", 0)
    if op.public is not None and op.public(tensors, options) is None:
        return False
    found = by_name(op, op.reference(*op.arguments({n: widen(t) if t is None or n not in op.mutates else t.clone() for n, t in tensors.items()}, options)))
    return all(bool(t.isfinite().all()) for t in found.values() if t is not None and computes(t))


def size(case: Case) -> int:
    return sum(checker.count(v) for _, v in case.tensors())


def _scattered(case: Case) -> bool:
    return any(v.layout != "contiguous" for _, v in case.tensors())


@cache
def _called(name: str, house: registry.House) -> tuple[tuple[Call, ...], str]:
    """The calls of an op; where there is none, why."""
    op = registry.op(name, house)
    function = getattr(rooftop, name) if house == registry.HOUSE else op.reference.__globals__[name]
    found: list[Call] = []
    tried: dict[str, bool] = {}

    def usable(case: Case) -> bool:
        if case.id not in tried:
            tried[case.id] = _usable(op, case)
        return tried[case.id]

    for dtype in dtypes(op):
        kinds: dict[tuple[Any, ...], list[Case]] = {}
        for c in sorted((c for c in small(op) if c.dtype == dtype and size(c) > 20 and _plain(op, c)), key=lambda c: (_scattered(c), size(c))):
            kinds.setdefault(_kind(op, c), []).append(c)
        while True:  # only what is taken is tried: that computes a reference each
            best = sorted(kinds, key=lambda k: (-len(k[0]), _scattered(kinds[k][0]), max(k[2], default=0) < 2, max(k[2], default=0)))
            once = [{k[i]: k for k in reversed(best)}.values() for i in (1, 0)]  # each set of switches, each set of tensors, then more of one
            taken = [*dict.fromkeys([*best[:1], *once[0], *once[1], *best])][:KINDS]
            if not (useless := [k for k in taken if not usable(kinds[k][0])]):
                break
            for k in useless:
                kinds[k] = kinds[k][1:]
            kinds = {k: cases for k, cases in kinds.items() if cases}
        found += [Call(op, kinds[k][0], function) for k in taken]
    try:
        for call in found:
            call.keywords(call.make())
    except AssertionError as error:
        return (), str(error)
    why = f"{name} has no small case that its public function can be called with: values of every day, finite results, no dimension of 1"
    return tuple(found), "" if found else why


def calls(name: str, house: registry.House = registry.HOUSE) -> tuple[Call, ...]:
    """In each dtype of an op, up to `KINDS` kinds of call, each at the smallest case that is one, contiguous where there is such: first that with the most
    tensors, and of two dimensions or more."""
    return _called(name, house)[0]


def first(name: str, house: registry.House = registry.HOUSE) -> Call:
    """The call with the most tensors, in the widest dtype of an op. Raises AssertionError where there is none, and says why."""
    found, why = _called(name, house)
    assert found, why
    return found[0]


def every(names: Sequence[str] | None = None) -> list[Call]:
    return [c for n in (called() if names is None else names) for c in calls(n)]
