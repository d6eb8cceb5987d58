"""What every contract keeps, as functions of one op: the tests ask it of each op of the tree, and of ops made up to break it.

Each reads the contract: dtypes from its cases, targets from its implementations; what makes sense for floats alone is asked of floats alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from _support import results
from contracts.calls import dtypes, small

from rooftop.core import library
from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.implementation import Implementation
from rooftop.core.layouts import computes
from rooftop.core.spec import DTYPES, TARGETS, Case
from rooftop.lab.check import checker
from rooftop.lab.inputs import by_name, make

FINEST = {"float64": 1e-4, "float32": 1e-2}  # of the largest gradient: how far a backward may be from autograd's in that precision


def reference_passes(op: Contract) -> None:
    found = [checker.check_callable(op, c, lambda *args: library.fallback(op, args), name="reference") for c in small(op)]
    assert [(r.case, r.message) for r in found if r.status != "ok"] == []


def is_rejected(op: Contract, wrong: str) -> None:
    assert any(checker.check_callable(op, c, op.wrong[wrong], name=wrong).status == "wrong" for c in small(op)), f"{op.name}: {wrong} passes every case"


def can_fail(op: Contract) -> None:
    """Something can be told from right: the contract names wrong versions, and its reference changes each tensor that it says it writes into."""
    assert op.wrong, f"{op.name}: its contract names no wrong version (wrong={{...}}): nothing shows that a check of it can fail"
    for name in op.mutates:
        assert any(_changes(op, c, name) for c in small(op)), f"{op.name}: mutates names {name}, which its reference leaves as it was in every case"


def _changes(op: Contract, case: Case, name: str) -> bool:
    expected = checker.expect(op, case, "cpu", 0)
    before = expected.tensors[name]
    return before is not None and not checker.same_bits(expected.same[name], before)


def less_is_rejected(op: Contract, dtype: str) -> None:
    """One precision lower where a case of this dtype has inputs that can be so, else one element that is off by one, must fail some case."""
    cases = [c for c in small(op) if c.dtype == dtype]
    read = [v for c in cases for n, v in c.tensors() if n not in op.mutates or op.twin_of is not None]  # what is only written into may hold anything
    lower = any(v.dtype in checker.LOWER and v.dtype != "f64" for v in read)  # inputs in f64 are those of f32
    worse = checker.lower_precision(op) if lower else _one_off(op)
    assert any(checker.check_callable(op, c, worse, name="worse").status == "wrong" for c in cases), f"{op.name} {dtype}: nothing is wrong"


def _one_off(op: Contract) -> Any:
    def run(*args: Any) -> Any:
        found = tuple(None if r is None else r.clone() for r in results(library.fallback(op, args)))
        tensors, _ = op.flattened(args)
        for r in (r for r in (*found, *(tensors[n] for n in op.mutates)) if r is not None and r.numel()):
            last = r[tuple(e - 1 for e in r.shape)]
            last.copy_(last.logical_not() if r.dtype == torch.bool else (last.double() if r.is_floating_point() else last) + 1)
            break
        return None if not found else found if len(found) != 1 else found[0]

    return run


def backward_is_the_gradient(op: Contract) -> None:
    """On the cases of the widest floating dtype, in float64 where the reference takes it, else in float32. Cases whose results or
    gradients are no finite numbers say nothing; raises AssertionError where all are such."""
    assert op.grad is not None
    floating = [d for d in dtypes(op) if DTYPES[d].floating]
    compared = 0
    for c in (c for c in small(op) if floating and c.dtype == floating[0]):
        compared += _compare_gradients(op, c)
    assert compared, f"{op.name}: no case says anything of its gradient"


def _compare_gradients(op: Contract, case: Case) -> bool:
    tensors, options = make(op, case, "cpu", 3)
    for precision, tolerance in FINEST.items():
        try:
            return _compared(op, tensors, options, getattr(torch, precision), tolerance, case.id)
        except (RuntimeError, TypeError):
            if precision == list(FINEST)[-1]:
                raise
    return False


def _compared(op: Contract, tensors: dict[str, Any], options: dict[str, Any], precision: torch.dtype, tolerance: float, what: str) -> bool:
    grad = op.grad
    assert grad is not None
    names = [n for n in dict.fromkeys([*(n for entry in grad.wrt for n in entry.split("=")), *grad.same]) if tensors.get(n) is not None]
    wide = {n: t if t is None or not computes(t) else t.to(precision).contiguous().requires_grad_(n in names) for n, t in tensors.items()}
    outs = by_name(op, op.reference(*op.arguments(wide, options)))
    flow = {n: o for n, o in outs.items() if n not in grad.aside}
    if not all(bool(o.isfinite().all()) for o in flow.values() if o is not None):
        return False
    generator = torch.Generator().manual_seed(1)
    cotangents = {n: None if o is None else torch.randn(o.shape, dtype=precision, generator=generator) for n, o in flow.items()}
    pairs = [(o, cotangents[n]) for n, o in flow.items() if o is not None and o.requires_grad]
    if not pairs or not names:
        return False
    want = torch.autograd.grad([o for o, _ in pairs], [wide[n] for n in names], [d for _, d in pairs], allow_unused=True)
    with torch.no_grad():
        got = grad.spread(grad.backward(*cotangents.values(), *grad.saved({**wide, **outs}), *options.values()))
        got.update({n: cotangents[out] for n, out in grad.same.items()})
    said = False
    for n, w in zip(names, want, strict=True):
        expected = torch.zeros_like(got[n]) if w is None else w
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        if isfinite(largest):
            near = {"rtol": tolerance, "atol": tolerance * (largest or 1e-3)}
            torch.testing.assert_close(got[n], expected, **near, msg=lambda text, n=n: f"{op.name}, {what}, d{n}: {text}")
            said = said or largest > 0
    return said


def choices_are_made(op: Contract, found: Sequence[Implementation]) -> None:
    """Without a GPU, for every case and target. On the newest target each timed case has a kernel; on an older one, where the op has kernels for it, some
    case has one, and each kernel that does not take a case says why."""
    for device in TARGETS.values():
        mine = [i for i in found if i.arch <= device.arch]
        taken = 0
        for c in op.cases:
            if op.idle(op.problem(c, device)):
                continue
            choice = select(op, op.problem(c, device))
            if choice.call is not None:
                assert choice.call.launches or choice.call.implementation.where().place == "torch", c.id
                taken += 1
            elif "bench" in c.tags and found:
                assert device.arch < max(TARGETS), f"{op.name}: no kernel takes {c.id} on {device.name}"
                assert len(choice.rejected) == len(found) and all(reason for _, reason in choice.rejected), c.id
        assert taken or not mine, f"{op.name}: {', '.join(i.name for i in mine)} take nothing on sm_{device.arch}"

