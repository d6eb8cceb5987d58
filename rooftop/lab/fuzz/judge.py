"""One random call: through the public function, and without a GPU also through the kernels that a GPU would run, in the interpreter or the
simulator.

Outputs are judged as the checker does. A float32 gradient may err four times as much as autograd of the reference in float32, against that
in float64; with 16 bits, or NaN and infinities, it is judged by the contract's backward, given the outputs as they were rounded. What is
undefined (0 / 0, of finite inputs) is not judged. What misses its allowance is drawn again with other numbers and judged over all draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rooftop.core.call import Call, select
from rooftop.core.contract import Contract, metas_of
from rooftop.core.contract_parts import Judged, Tolerance
from rooftop.core.layouts import computes, widen
from rooftop.core.op import Op
from rooftop.core.spec import TARGETS, Meta, Problem, dtype_of
from rooftop.lab import public_calls
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, judgement
from rooftop.lab.check.compare import Verdict, compare
from rooftop.lab.check.guard_zones import GUARD
from rooftop.lab.fuzz.drafts import Draft
from rooftop.lab.inputs import by_name, laid_out

DRAWS = 16
GRADIENT = Tolerance(4.0)  # of a float32 gradient, beside autograd of the reference
DELAY = 200_000  # cycles that a side stream waits before its inputs are there


@dataclass
class Outcome:
    """`status`: ok, finding, skipped (out of memory), refused. `ran`: what was judged, by name: the public function, kernels."""

    status: str
    messages: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)


@dataclass
class Item:
    """One tensor to judge."""

    got: Any
    exact: Any
    same: Any
    tolerance: Tolerance
    own: str | None = None  # what the contract's own comparison says; "" for nothing wrong


Run = Callable[["Setting"], "tuple[dict[str, Any], dict[str, Any], list[str]]"]  # outputs and gradients by name, and what else is wrong


@dataclass
class Setting:
    """A call with its tensors and what must come out."""

    draft: Draft
    device: str
    tensors: dict[str, Any]
    options: dict[str, Any]
    problem: Problem
    expected: judgement.Expected
    flow: dict[str, Any]  # output -> the gradient that comes for it
    finite: bool  # whether all inputs are

    @property
    def op(self) -> Contract:
        return self.draft.contract


def setting(draft: Draft, device: str) -> Setting:
    import torch

    op = draft.contract
    tensors, options, g = draft.make(device)
    problem = draft.problem(tensors)
    finite = all(bool(widen(t).isfinite().all()) for t in tensors.values() if t is not None and computes(t))  # type: ignore[union-attr]
    expected = judgement.expect_given(op, problem, tensors, options)
    flow: dict[str, Any] = {}
    if draft.mode == "grad":
        for name in public_calls.returned(op, problem):
            same = expected.same[name]
            if computes(same):
                flow[name] = torch.randn(same.shape, generator=g).to(same)
    return Setting(draft, device, tensors, options, problem, expected, flow, finite)


def run(draft: Draft, device: str) -> Outcome:
    """Judge a call. Never raises for what the code under test does."""
    import torch

    outcome = Outcome("ok")
    try:
        todo: list[tuple[str, Run]] = [("public", public)]
        if device == "cpu":
            todo.append(("kernels", kernels))
        for name, runner in todo:
            messages, ran = _judged(draft, device, runner)
            outcome.ran += ran
            outcome.messages += [f"{name}: {m}" for m in messages]
    except (torch.OutOfMemoryError, MemoryError):
        return Outcome("skipped", ["out of memory"])
    except Exception as error:  # whatever a call does is a finding
        if isinstance(error, RuntimeError) and any(said in str(error) for said in ("can't allocate memory", "out of memory")):
            return Outcome("skipped", ["out of memory"])
        if isinstance(error, IndexError) and _out_of_range(draft, device):
            return Outcome("refused")
        outcome.messages.append(f"{type(error).__name__}: {error}")
    if outcome.messages:
        outcome.status = "finding"
    return outcome


def _out_of_range(draft: Draft, device: str) -> bool:
    """Whether the contract finds indices that are none, as of a target drawn for more classes than there are now: such a call raises."""
    tensors, options, _ = draft.make(device)
    return draft.contract.faults is not None and draft.contract.faults(*draft.contract.arguments(tensors, options)) is not None


def _judged(draft: Draft, device: str, runner: Run) -> tuple[list[str], list[str]]:
    first = setting(draft, device)
    outputs, gradients, messages = runner(first)
    if not outputs and not gradients:
        return messages, []
    items = _items(first, outputs, gradients)
    bad: dict[str, Verdict] = {}
    for name, item in items.items():
        verdict = _verdict(item)
        if not verdict.ok:
            bad[name] = verdict
    again = [n for n, v in bad.items() if _inexact(items[n], v)]
    if again:
        draws = [{n: items[n] for n in again}]
        for i in range(1, DRAWS):
            other = setting(replace(draft, seed=(draft.seed + i) % 2**31), device)
            found = _items(other, *runner(other)[:2])
            draws.append({n: found[n] for n in again})
        for name in again:
            verdict = _over_draws([d[name] for d in draws])
            if verdict.ok:
                del bad[name]
            else:
                bad[name] = verdict
    for name, verdict in bad.items():
        at = f" at {list(verdict.where)}: {verdict.value!r}, expected {verdict.expected!r}" if verdict.where is not None else ""
        messages.append(f"{name}: {verdict.message}{at}")
    what = first.op.name + (" with gradients" if gradients else "")
    return messages, [f"{what} {runner.__name__}"]


def _inexact(item: Item, verdict: Verdict) -> bool:
    """Whether a finite number errs more than allowed, of an output that may err. The allowance can be 0 by luck: the same precision was
    exact."""
    return item.own is None and not item.tolerance.exact and verdict.max > 0.0


def _verdict(item: Item) -> Verdict:
    if item.own is not None:
        return Verdict(ok=not item.own, message=item.own)
    return compare(
        item.got, item.exact, item.same, dtype_of(item.got.dtype), item.tolerance.multiple, item.tolerance.exact, item.tolerance.floor
    )


def _over_draws(items: Sequence[Item]) -> Verdict:
    import torch

    got, exact, same = (torch.stack([getattr(i, k).reshape(-1) for i in items]) for k in ("got", "exact", "same"))
    verdict = compare(got, exact, same, dtype_of(got.dtype), items[0].tolerance.multiple, floor=items[0].tolerance.floor)
    error, _, allowed = verdict.message.partition(" in rows ")
    verdict.message = f"{error} over {len(items)} draws; {allowed.partition('; ')[2]}"
    verdict.where = None
    return verdict


def _items(s: Setting, outputs: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Item]:
    op, items = s.op, dict[str, Item]()
    results, expected = judgement.settled(op, dict(outputs), s.expected)
    judged = Judged(results, expected.exact, expected.same, expected.tensors, expected.options)
    for n in (*op.output_names, *op.mutates):
        if results.get(n) is None or s.problem.get(n) is None:
            continue
        own = (op.compare[n](judged) or "") if n in op.compare else None
        got, exact, same = (judgement.used(op, n, t[n], expected.same) for t in (results, expected.exact, expected.same))
        items[n] = Item(got, exact, same, op.tolerance_of(n), own)
    if gradients:
        exact, same, tolerances = expected_gradients(s, outputs)
        if op.grad is not None and (undefined := op.grad.judging.undefined) is not None:
            gradients = judgement.settled_by(dict(gradients), same, lambda: _backward(s, outputs, undefined, s.expected.same, widen))
        for n, got in gradients.items():
            items[f"gradient of {n}"] = Item(got, exact[n], same[n].to(got.dtype), tolerances[n])
    if s.finite:
        plain = _plain(s, outputs, items)
        items = {n: item if item.own is not None or not computes(item.got) else _known(item, plain.get(n)) for n, item in items.items()}
    return items


def _plain(s: Setting, outputs: Mapping[str, Any], items: Mapping[str, Item]) -> dict[str, Any]:
    """Items as the contract's `undefined` has them, where float64 gives NaN in one of them."""
    import torch

    op, values = s.op, dict[str, Any]()
    nans = [n for n, item in items.items() if computes(item.exact) and bool(item.exact.isnan().any())]
    if op.undefined is not None and any(n in op.output_names for n in nans):
        with torch.no_grad():
            values = by_name(op, op.undefined(*op.arguments({n: widen(t) for n, t in s.tensors.items()}, s.options)))
    if op.grad is not None and op.grad.judging.undefined is not None and any(n not in op.output_names for n in nans):
        gradients = _backward(s, outputs, op.grad.judging.undefined, s.expected.same, widen)
        values.update({f"gradient of {n}": t for n, t in gradients.items()})
    return values


def _known(item: Item, plain: Any) -> Item:
    """Of finite inputs: zeros where nothing is asked of a result, since it is 0 / 0 (NaN in float64 and in `plain`), or an intermediate
    result overflows both in plain torch and here, and chance says whether NaN or an infinity comes of it. Where it does in plain torch
    alone, float64 is what must come out."""
    import torch

    exact, same, got = item.exact, item.same, item.got
    if got.shape != exact.shape or got.element_size() == 1:  # of 8 bits: their largest number, not an infinity, is what follows on their range
        return item
    rounded = exact.to(got.dtype)
    overflows = exact.isfinite() & ~same.isfinite() & (rounded.isfinite() | (got == rounded))
    unknown = overflows & ~got.isfinite()
    if plain is not None:
        unknown |= exact.isnan() & plain.isnan()
    if not bool((overflows | unknown).any()):
        return item
    same = torch.where(overflows, rounded, same)
    return replace(item, **{n: t.masked_fill(unknown, 0) for n, t in (("got", got), ("exact", exact), ("same", same))})


# -- gradients -----------------------------------------------------------------------------------------------------


def expected_gradients(s: Setting, outputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tolerance]]:
    """In float64 and at the same precision, by the names of the inputs."""
    floats = [t for t in (*s.tensors.values(), *s.expected.same.values()) if t is not None and computes(t)]
    # NaN is what a contract says of it
    finite = s.draft.finite and all(bool(t.isfinite().all()) for n, t in s.expected.same.items() if n in s.flow)
    if finite and all(t.element_size() >= 4 for t in floats):
        same = _by_autograd(s, widen)
        if same is not None and all(bool(t.isfinite().all()) for t in same.values()):
            exact = _by_autograd(s, _double)
            assert exact is not None
            return exact, same, dict.fromkeys(same, GRADIENT)
    return _by_contract(s, outputs)


def _double(t: Any) -> Any:
    return t if t is None or not computes(t) else t.double()


def _by_autograd(s: Setting, change: Callable[[Any], Any]) -> dict[str, Any] | None:
    """Of the reference as it stands; None where it cannot be differentiated."""
    import torch

    leaves = {n: change(t) for n, t in s.tensors.items()}
    leaves.update({n: leaves[n].detach().clone().requires_grad_() for n in s.draft.wants})
    with torch.enable_grad(), judgement.without_onednn():
        outputs = by_name(s.op, s.op.reference(*s.op.arguments(leaves, s.options)))
        outs = {n: t for n, t in outputs.items() if n in s.flow and t.requires_grad}
        if not outs:
            return None
        gradients = torch.autograd.grad(
            list(outs.values()), [leaves[n] for n in s.draft.wants], [s.flow[n].to(t) for n, t in outs.items()], allow_unused=True
        )
    return {n: torch.zeros_like(leaves[n]) if t is None else t for n, t in zip(s.draft.wants, gradients, strict=True)}


def _by_contract(s: Setting, outputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tolerance]]:
    """By the contract's backward, given what the forward saved."""
    op, grad = s.op, s.op.grad
    assert grad is not None
    # what the forward saved: where the same precision rounds on the way, in float64 that which it has there
    exact = _backward(s, outputs, grad.backward, s.expected.same if op.same is None else s.expected.exact, _double)
    narrow, change = (grad.backward, widen) if grad.judging.same is None else (grad.judging.same, lambda t: t)
    same = _backward(s, outputs, narrow, s.expected.same, change)
    of = {n: name for entry, name in zip(grad.wrt, op.bwd.output_names, strict=True) for n in entry.split("=")} if op.bwd else {}
    tolerances = {n: op.bwd.tolerance_of(of[n]) if op.bwd and n in of else GRADIENT for n in s.draft.wants}
    return exact, same, tolerances


def _backward(
    s: Setting, outputs: Mapping[str, Any], function: Callable[..., Any], forward: Mapping[str, Any], change: Callable[[Any], Any]
) -> dict[str, Any]:
    """What a backward makes of the gradients that come, and of what `forward` and the outputs as they were rounded saved for it."""
    import torch

    op, grad = s.op, s.op.grad
    assert grad is not None
    produced = {n: t for n, t in outputs.items() if t is not None and n not in grad.non_differentiable}
    flows = [s.flow.get(n) for n in op.output_names if n not in grad.non_differentiable]
    inputs = [*flows, *grad.saved({**s.tensors, **forward, **produced, **s.options})]
    with torch.no_grad(), judgement.without_onednn():
        gradients = grad.spread(
            function(*[change(t) if isinstance(t, torch.Tensor) else t for t in inputs], *(s.options[n] for n in op.option_names))
        )
    return {**gradients, **{n: change(s.flow[out]) for n, out in grad.same.items() if out in s.flow}}


# -- running --------------------------------------------------------------------------------------------------------


def public(s: Setting) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Through the public function."""
    import torch

    op, draft, messages = s.op, s.draft, list[str]()
    memory = {n: t if t._base is None else t._base for n, t in s.tensors.items() if t is not None}
    before = {n: t.clone() for n, t in memory.items()}
    for n in draft.wants:
        s.tensors[n].requires_grad_()
    function = public_calls.function(op)
    if draft.mode == "compile":
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager")

    def call() -> Any:
        args, kwargs = public_calls.arguments(op, s.tensors, s.options)
        return function(*args, **kwargs)

    def with_gradients() -> tuple[dict[str, Any], dict[str, Any]]:
        outputs = public_calls.outputs(op, s.problem, call())
        through = {n: t for n, t in outputs.items() if t is not None and t.requires_grad and n in s.flow}
        if not draft.wants or not through:
            return outputs, {}
        gradients = torch.autograd.grad(
            list(through.values()), [s.tensors[n] for n in draft.wants], [s.flow[n] for n in through], allow_unused=True
        )
        return outputs, {n: torch.zeros_like(s.tensors[n]) if t is None else t for n, t in zip(draft.wants, gradients, strict=True)}

    if draft.stream and s.device == "cuda":
        torch.cuda.synchronize()
        with torch.no_grad():
            for t in memory.values():
                t.detach().zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(DELAY)
            with torch.no_grad():
                for n, t in memory.items():
                    t.detach().copy_(before[n])
            outputs, gradients = with_gradients()
        torch.cuda.synchronize()
    else:
        outputs, gradients = with_gradients()
    if s.device == "cuda":
        torch.cuda.synchronize()
    outputs = {n: t if t is None else t.detach() for n, t in outputs.items()}
    outputs.update({n: s.tensors[n] for n in op.mutates if s.tensors.get(n) is not None})
    taken = set(op.bwd.into.values()) if op.bwd and s.options.get("inplace") and gradients else set()
    for n, old in before.items():
        if n in taken:  # the gradients are judged by the inputs as they were
            gradients = {name: t.clone() for name, t in gradients.items()}
            with torch.no_grad():
                memory[n].detach().copy_(old)
        elif n not in op.mutates and not checker.same_bits(memory[n].detach(), old):
            messages.append(f"the input {n} was written")
    for n, t in outputs.items():
        if t is not None and n not in op.mutates and (meta := s.problem.get(n)) is not None and t.numel() and not _has_strides(t, meta):
            messages.append(f"{n} has strides {tuple(t.stride())}; the shape function says {meta.strides}")
    if draft.again and op.deterministic and not op.mutates:
        for n, t in public_calls.outputs(op, s.problem, call()).items():
            if t is not None and not checker.same_bits(
                judgement.used(op, n, t.detach(), s.expected.same), judgement.used(op, n, outputs[n], s.expected.same)
            ):
                messages.append(f"{n}: not the same bits in a second call")
    return outputs, gradients, messages


def _has_strides(t: Any, meta: Meta) -> bool:
    """Whether a tensor has the strides of `meta`, dimensions of one element aside: a public function may drop one (`keepdim=False`)."""
    asked = [s for n, s in zip(meta.shape, meta.strides, strict=True) if n != 1]
    return asked == [s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1]


def kernels(s: Setting) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Through the kernels that an H100 would run, where the interpreter or the simulator can run them: the forward, and on its results the
    backward."""
    op, messages = s.op, list[str]()
    assert isinstance(op, Op)
    tensors, options = public_calls.passed(op, s.tensors, s.options)
    problem = op.problem_of(metas_of(tensors), options)
    if [problem.get(n) for n in op.output_names] != [s.problem.get(n) for n in op.output_names]:
        return {}, {}, messages  # the op computes in another shape than the reference was given
    outputs = kernel(op, problem, tensors, options, messages)
    if outputs is None:
        return {}, {}, messages
    if not s.flow or op.bwd is None or op.grad is None:
        return outputs, {}, messages
    names = op.bwd.tensor_names
    values = {**tensors, **outputs, **options}
    flows = [s.flow.get(n) for n in op.output_names if n not in op.grad.non_differentiable]
    inputs = dict(zip(names, [*flows, *op.grad.saved(values)], strict=True))
    options = {n: options[n] for n in op.bwd.option_names}
    by_kernel = kernel(op.bwd, op.bwd.problem_of(metas_of(inputs), options), inputs, options, messages)
    if by_kernel is None:
        return outputs, {}, messages
    gradients = op.grad.spread(tuple(by_kernel[n] for n in op.bwd.output_names))
    return outputs, {n: t for n, t in gradients.items() if n in s.draft.wants and t is not None}, messages


def kernel(
    op: Contract, problem: Problem, tensors: Mapping[str, Any], options: Mapping[str, Any], messages: list[str]
) -> dict[str, Any] | None:
    """What the chosen kernel writes; None where there is none or it runs on a GPU only."""
    call: Call | None = select(op, problem.on(TARGETS[90])).call
    if call is None or call.idle:
        return None
    where, reason = checker.backend_of(Subject(call.implementation.name, op, call.implementation), "cpu")
    if reason is not None:
        return None
    outputs, guarded = checker.Trial(call, "cpu", checker.RUNNERS[where], GUARD).run(tensors, options, 0xFF)
    messages += [f"{call.implementation.name}, {n}: {stray}" for n, guard in guarded.items() if (stray := guard.stray())]
    promised = {n: laid_out(t, m) if (m := call.promised.get(n)) is not None else t for n, t in outputs.items()}
    return {**dict.fromkeys(op.output_names), **promised}
