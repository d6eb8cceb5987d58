"""What every contract keeps, kernel or none: its reference passes, its wrong versions and one precision lower are rejected, its backward is
its gradient.

`rooftop check` asks it of an op that has no kernel yet, the tests of every op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import isfinite, prod
from typing import Any

import torch

from rooftop.core import library
from rooftop.core.contract import Contract
from rooftop.core.layouts import computes
from rooftop.core.spec import DTYPES, Case
from rooftop.lab.check import checker, judgement
from rooftop.lab.inputs import by_name, make

FINEST = {"float64": 1e-4, "float32": 1e-2}  # of the largest gradient: how far a backward may be from autograd's in that precision


class Broken(AssertionError):
    """A contract does not keep a rule; the text says which and where."""


def _must(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


def small(op: Contract, dtype: str = "") -> list[Case]:
    """Its cases, those of this dtype alone where one is named, that are not timed."""
    return [c for c in op.cases if not {"bench", "huge"} & c.tags and dtype in ("", c.dtype)]


def dtypes(op: Contract) -> list[str]:
    """Of its cases, the widest first."""
    return sorted(op.dtypes, key=lambda d: (-DTYPES[d].mantissa, -DTYPES[d].bytes, d))


def _results(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else () if result is None else (result,)


def judged(op: Contract) -> Iterator[tuple[str, str | None]]:
    """Each rule that is asked of the op, in words, and what is wrong; None where it keeps it."""
    asked: list[tuple[str, Callable[[], object]]] = [
        ("the reference passes its own check", lambda: reference_passes(op)), ("wrong versions are named", lambda: can_fail(op)),
    ]
    wrong = cache(lambda: passing(op, op.wrong, small(op)))
    asked += [(f"wrong: {w}", lambda w=w: _rejected(op, [w] if w in wrong() else [])) for w in op.wrong]  # type: ignore[misc]
    asked += [
        (f"one precision lower, or one element off: {d}", lambda d=d: less_is_rejected(op, d)) for d in dtypes(op)  # type: ignore[misc]
    ]
    if op.cpu is not None:
        asked.append(("torch's own function, which calls on the CPU run, is within the contract", lambda: cpu_passes(op)))
        if op.bwd is not None:
            asked.append(("and so is what torch makes of its gradient", lambda: cpu_gradients_pass(op)))
    if op.grad is not None:
        asked.append(("the backward is the gradient of the reference", lambda: backward_is_the_gradient(op)))
    for what, ask in asked:
        try:
            ask()
        except Exception as error:  # whatever a contract that is being written does is a finding
            yield what, str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        else:
            yield what, None


def passing(op: Contract, versions: Mapping[str, Callable[..., Any]], cases: Iterable[Case]) -> list[str]:
    """Those versions of an op that fail none of the cases. Each is judged until it fails one, the smallest cases come first, and what a
    case must give is worked out once for all versions."""
    left = dict(versions)
    for c in sorted(cases, key=lambda c: sum(prod(v.shape) for _, v in c.tensors())):
        if not left:
            break
        expected = None
        for name, version in [*left.items()]:
            expected = expected or judgement.expect(op, c, "cpu", 0)
            before = _writes(expected)
            if checker.check_callable(op, c, version, name=name, expected=expected).status == "wrong":
                del left[name]
            if _writes(expected) != before:  # a wrong version may write into its inputs: the next has its own
                expected = None
    return [*left]


def _writes(expected: judgement.Expected) -> list[int]:
    """How often each input has been written into."""
    return [t._version for t in expected.tensors.values() if t is not None]


def reference_passes(op: Contract, cases: Iterable[Case] | None = None) -> None:
    """The reference, called as an op without a kernel is, passes its own check: in `cases`, or in all that are not timed."""
    for c in small(op) if cases is None else cases:
        r = checker.check_callable(op, c, lambda *args: library.fallback(op, args), name="reference")
        _must(r.status == "ok", f"{op.name}: the reference itself fails {r.case}: {r.message}")


def cpu_passes(op: Contract, dtype: str = "") -> int:
    """Torch's own function (`Contract.cpu`) is judged by the reference as a kernel is, in each case that it takes: values, shapes, dtypes,
    no memory of an input. Returns how many it takes. Raises Broken where it takes none of any dtype, too."""
    assert op.cpu is not None
    taken = 0
    for c in small(op, dtype):
        problem = op.problem(c)

        def run(*args: Any, problem: Any = problem, what: str = c.id) -> Any:
            nonlocal taken
            assert op.cpu is not None
            result = op.cpu(*args)
            if result is NotImplemented:
                return library.fallback(op, args)
            taken += 1
            addresses = {t.untyped_storage().data_ptr() for t in op.flattened(args)[0].values() if t is not None and t.numel()}
            outputs = by_name(op, result)
            for name, r in outputs.items():
                if r is None:
                    continue
                meta = problem[name]
                want = (meta.shape, getattr(torch, DTYPES[meta.dtype].torch))
                _must(
                    (tuple(r.shape), r.dtype) == want,
                    f"{op.name} on the CPU, {what}: {name} is {r.dtype} {tuple(r.shape)}, not {want[1]} {want[0]}"
                )
                _must(
                    not r.numel() or r.untyped_storage().data_ptr() not in addresses,
                    f"{op.name} on the CPU, {what}: {name} is memory of an input"
                )
            if any(r is None and problem.get(n) is not None for n, r in outputs.items()):  # left out: nothing is said of it
                others = by_name(op, library.fallback(op, args))
                outputs = {n: others[n] if r is None else r for n, r in outputs.items()}
            return tuple(outputs.values()) if len(outputs) != 1 else result

        r = checker.check_callable(op, c, run, name="cpu")
        _must(r.status == "ok", f"{op.name} on the CPU fails {r.case}: {r.message}")
    _must(bool(taken or dtype), f"{op.name}: cpu= takes none of its small cases")
    return taken


def cpu_gradients_pass(op: Contract, dtype: str = "") -> int:
    """What torch makes of the gradients of its own function is judged by the contract of the backward, in each case that it takes. Returns
    how many."""
    grad, bwd = op.grad, op.bwd
    assert op.cpu is not None and grad is not None and bwd is not None
    names = [entry.partition("=")[0] for entry in grad.wrt]
    compared = 0
    for c in small(op, dtype):
        tensors, options = make(op, c, "cpu", 0)
        leaves: dict[str, Any] = {
            n: t.detach().requires_grad_() if n in names and t is not None and computes(t) else t for n, t in tensors.items()
        }
        result = op.cpu(*op.arguments(leaves, options))
        if result is NotImplemented:
            continue
        outs = {n: r for n, r in by_name(op, result).items() if r is not None and r.requires_grad}
        wanted = [n for n in names if leaves[n] is not None and leaves[n].requires_grad]
        if not outs or not wanted:
            continue
        inputs, left = make(bwd, c, "cpu", 0)  # of the tensors that the forward got with this seed
        inputs.update((f"d{n}", None) for n in op.output_names if n not in outs and f"d{n}" in inputs)
        pairs = [(r, inputs[f"d{n}"]) for n, r in outs.items()]
        gradients = torch.autograd.grad([r for r, _ in pairs], [leaves[n] for n in wanted], [d for _, d in pairs], allow_unused=True)
        by_input = {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(wanted, gradients, strict=True)}
        got = {out: by_input.get(n) for out, n in zip(bwd.output_names, names, strict=True)}
        problem = bwd.problem(c)
        expected = judgement.expect_given(bwd, problem, inputs, left)
        for output, verdict in judgement.judge_given(bwd, problem, expected, got).items():
            _must(verdict.ok, f"{op.name} on the CPU, gradients of {c.id}: {output}: {verdict.message}")
        compared += 1
    return compared


def are_rejected(op: Contract) -> None:
    """Each version that the contract calls wrong fails some case."""
    _rejected(op, passing(op, op.wrong, small(op)))


def _rejected(op: Contract, passed: Sequence[str]) -> None:
    _must(not passed, f"{op.name}: {', '.join(passed)} passes every case")


def can_fail(op: Contract) -> None:
    """Something can be told from right: the contract names wrong versions, and its reference changes each tensor that it says it writes
    into."""
    _must(bool(op.wrong), f"{op.name}: its contract names no wrong version (wrong={{...}}): nothing shows that a check of it can fail")
    for name in op.mutates:
        _must(
            any(_changes(op, c, name) for c in small(op)),
            f"{op.name}: mutates names {name}, which its reference leaves as it was in every case"
        )


def _changes(op: Contract, case: Case, name: str) -> bool:
    expected = judgement.expect(op, case, "cpu", 0)
    before = expected.tensors[name]
    return before is not None and not checker.same_bits(expected.same[name], before)


def less_is_rejected(op: Contract, dtype: str) -> None:
    """One precision lower where a case of this dtype has inputs that can be so, else one element that is off by one, must fail some
    case."""
    cases = [c for c in small(op) if c.dtype == dtype]
    # what is only written into may hold anything
    read = [v for c in cases for n, v in c.tensors() if n not in op.mutates or op.twin_of is not None]
    lower = any(v.dtype in checker.LOWER and v.dtype != "f64" for v in read)  # inputs in f64 are those of f32
    worse = checker.lower_precision(op) if lower else _one_off(op)
    _must(not passing(op, {"worse": worse}, cases), f"{op.name} {dtype}: nothing is wrong")


def _one_off(op: Contract) -> Any:
    def run(*args: Any) -> Any:
        results = tuple(None if r is None else r.clone() for r in _results(library.fallback(op, args)))
        tensors, _ = op.flattened(args)
        for r in (r for r in (*results, *(tensors[n] for n in op.mutates)) if r is not None and r.numel()):
            last = r[tuple(e - 1 for e in r.shape)]
            last.copy_(last.logical_not() if r.dtype == torch.bool else (last.double() if r.is_floating_point() else last) + 1)
            break
        return None if not results else results if len(results) != 1 else results[0]

    return run


def backward_is_the_gradient(op: Contract) -> None:
    """On the cases of the widest floating dtype, in float64 where the reference takes it, else in float32. Cases whose results or
    gradients are no finite numbers say nothing; raises AssertionError where all are such."""
    assert op.grad is not None
    floating = [d for d in dtypes(op) if DTYPES[d].floating]
    compared = 0
    for c in (c for c in small(op) if floating and c.dtype == floating[0]):
        compared += _compare_gradients(op, c)
    _must(bool(compared), f"{op.name}: no case says anything of its gradient")


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
    flow = {n: o for n, o in outs.items() if n not in grad.non_differentiable}
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
