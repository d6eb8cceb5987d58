"""What a case must give, and whether outputs are that: the reference in float64 and at the kernel's precision, and the contract's
comparison."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rooftop.core.contract import Contract
from rooftop.core.contract_parts import Judged
from rooftop.core.layouts import computes, widen
from rooftop.core.spec import Case, Problem
from rooftop.lab.check.compare import CHUNK, Verdict, compare, index_of
from rooftop.lab.inputs import by_name, laid_out, make, rounded


@dataclass
class Expected:
    """The right results of one case and what went in."""

    tensors: dict[str, Any]
    options: dict[str, Any]
    exact: dict[str, Any]
    same: dict[str, Any]


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """oneDNN's bfloat16 products on a CPU with AMX multiply what lies beyond the end of a row by 0: NaN, which the checker puts there,
    becomes part of the result (https://github.com/uxlfoundation/oneDNN/issues/5717). Torch's own products stand in for cuBLAS as well."""
    import torch

    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def expect(op: Contract, case: Case, device: Any, seed: int) -> Expected:
    """Inputs of a case with the results in float64 and at the same precision (16 bits: computed in float32, rounded once). Of a tensor that
    is written into, the result is what it holds afterwards."""
    tensors, options = make(op, case, device, seed)
    return expect_given(op, op.problem(case), tensors, options)


def expect_given(op: Contract, problem: Problem, tensors: dict[str, Any], options: dict[str, Any]) -> Expected:
    """The same for tensors and options that are given, of which `problem` tells the facts."""
    import torch

    def own(name: str, t: Any, converted: Any) -> Any:
        return converted.clone() if name in op.mutates and converted is t and t is not None else converted

    with torch.no_grad(), without_onednn(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, of a variance of one element, say: a case that is asked for on purpose
        wide = {n: own(n, t, t.double() if t is not None and computes(t) else t) for n, t in tensors.items()}
        exact = by_name(op, op.reference(*op.arguments(wide, options)))
        exact.update((n, wide[n]) for n in op.mutates)
        narrow = {n: own(n, t, t if op.same else widen(t)) for n, t in tensors.items()}
        if op.same is None and all(narrow[n] is t for n, t in wide.items()):  # bits and whole numbers: there is one precision
            return Expected(tensors, options, exact, rounded(op, problem, tuple(exact.get(n) for n in op.output_names)))
        del wide
        same = rounded(op, problem, (op.same or op.reference)(*op.arguments(narrow, options)))
        same.update((n, laid_out(narrow[n], m)) for n in op.mutates if (m := problem.get(n)) is not None)
    return Expected(tensors, options, exact, same)


def judge(op: Contract, case: Case, expected: Expected, outputs: dict[str, Any]) -> dict[str, Verdict]:
    """Each output, and each tensor that is written into, beside what it must be."""
    return judge_given(op, op.problem(case), expected, outputs)


def settled(op: Contract, outputs: dict[str, Any], expected: Expected) -> tuple[dict[str, Any], Expected]:
    """Outputs, in which elements that may be NaN or infinite by the contract's `undefined`, and are, have the expected values; and what is
    expected, which is that of `undefined` where an output and that are numbers and the reference has none."""
    import torch

    if op.undefined is None:
        return outputs, expected

    def other(change: Callable[[Any], Any] = widen) -> dict[str, Any]:
        assert op.undefined is not None
        with torch.no_grad(), without_onednn():
            return by_name(op, op.undefined(*op.arguments({n: change(t) for n, t in expected.tensors.items()}, expected.options)))

    outputs = settled_by(outputs, expected.same, other)
    numbers = {
        n: t.double().isfinite() & ~s.double().isfinite()
        for n, t in outputs.items() if t is not None and (s := expected.same.get(n)) is not None and s.shape == t.shape and computes(t)
    }
    if not any(bool(mask.any()) for mask in numbers.values()):
        return outputs, expected
    found = []
    for kept, values in ((expected.exact, other(lambda t: t.double() if t is not None and computes(t) else t)), (expected.same, other())):
        found.append({n: torch.where(numbers[n] & values[n].isfinite(), values[n].to(t.dtype), t) if n in numbers else t for n, t in kept.items()})
    return outputs, replace(expected, exact=found[0], same=found[1])


def settled_by(outputs: dict[str, Any], same: Mapping[str, Any], plain: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """`outputs` with the values of `same` where they are NaN or infinite, `same` is a number, and `plain()` is none either."""
    import torch

    def odd(n: str) -> Any:
        return ~outputs[n].double().isfinite() & same[n].double().isfinite()

    left = [n for n, t in outputs.items() if t is not None and same.get(n) is not None and computes(t) and bool(odd(n).any())]
    if not left:
        return outputs
    found = plain()
    made = {n: torch.where(odd(n) & ~found[n].double().isfinite(), same[n].to(outputs[n].dtype), outputs[n]) for n in left}
    return {**outputs, **made}


def judge_given(op: Contract, problem: Problem, expected: Expected, outputs: dict[str, Any]) -> dict[str, Verdict]:
    """The same for a call of which `problem` tells the facts."""
    outputs, expected = settled(op, outputs, expected)
    judged = Judged(outputs, expected.exact, expected.same, expected.tensors, expected.options)
    verdicts = {}
    for n in (*op.output_names, *op.mutates):
        if problem.get(n) is None or (outputs[n] is None and op.grad is not None and n in op.grad.non_differentiable):
            continue
        if n in op.compare:
            verdicts[n] = own_verdict(op.compare[n], judged, n)
            continue
        tolerance = op.tolerance_of(n)
        out, exact, same = (used(op, n, t[n], expected.same) for t in (outputs, expected.exact, expected.same))
        verdicts[n] = compare(out, exact, same, problem[n].dtype, tolerance.multiple, tolerance.exact, tolerance.floor)
        if n in op.mutates and op.twin_of is None and not tolerance.exact and verdicts[n].ok:
            _check_unwritten_elements(verdicts[n], out, expected.tensors[n], exact, same)
    return verdicts


def _check_unwritten_elements(verdict: Verdict, out: Any, before: Any, exact: Any, same: Any) -> None:
    """Elements of a tensor that is written into which the reference leaves alone must be as they were: no error is allowed them."""
    if not computes(before):  # compared bit for bit already
        return
    flat = [t.reshape(-1) for t in (out, before, exact, same)]
    for start in range(0, out.numel(), CHUNK):
        o, b, e, s = (t[start : start + CHUNK].double() for t in flat)
        changed = (s == b) & (e == b) & (o != b)
        if not bool(changed.any()):
            continue
        first = int(changed.byte().argmax())
        verdict.ok, verdict.wrong, verdict.max_share = False, int(changed.sum()), float("inf")
        verdict.where, verdict.value, verdict.expected = index_of(out.shape, start + first), float(o[first]), float(b[first])
        verdict.message = f"{verdict.wrong} elements that must stay as they were have changed"
        return


def used(op: Contract, name: str, t: Any, same: dict[str, Any]) -> Any:
    """The leading elements that mean something, of an output whose size is a result itself."""
    return t if name not in op.sizes else t[: int(same[op.sizes[name]])]


def own_verdict(comparison: Callable[[Judged], str | None], judged: Judged, name: str) -> Verdict:
    wrong = comparison(judged)
    return Verdict(
        ok=wrong is None, message=wrong or "", elements=judged.got[name].numel(), max_share=0.0 if wrong is None else float("inf")
    )
