"""Kernels judged without a GPU: with their own choice or a config of the test's, on a card of few multiprocessors, on rows that are hard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.contract import metas_of
from rooftop.core.implementation import Implementation
from rooftop.core.spec import TARGETS, Case
from rooftop.lab import inputs
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, judgement
from rooftop.lab.check.checker import Result

WHERE = {"cuda": "simt", "triton": "interpreter", "gluon": "interpreter"}  # the last: where a test stands in for the GPU


def about_normal(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """A fill: normal numbers, then changed in place."""

    def made(*how: Any) -> Any:
        x = inputs._normal(*how)
        change(x)
        return x

    return made


FILLS = {
    "row 0 is NaN": about_normal(lambda x: x[0].fill_(float("nan"))), "all 1000": about_normal(lambda x: x.fill_(1000)),
    "all 0.3": about_normal(lambda x: x.fill_(0.3)), "mean 10000": about_normal(lambda x: x.add_(10000)),
    "first 3e38": about_normal(lambda x: x[..., 0].add_(3e38)), "first 1e4": about_normal(lambda x: x[..., 0].add_(1e4)),
    "first of 3000": about_normal(lambda x: x[..., 0].add_(3000)), "middle of 3000": about_normal(lambda x: x[..., x.shape[-1] // 2].add_(3000)),
}


def fixed(name: str, config: Any) -> Implementation:
    """The kernel of this name, which always takes this config; or what this function makes of a problem."""
    found = registry.implementation(name)
    made = type(found)(found.path, found.op, found.name, found.arch)
    made.choose = config if callable(config) else lambda problem: config  # type: ignore[method-assign]
    return made


def right(kernel: str | Implementation, case: Case, config: Any = None, *, op: str = "", seed: int = 1, sms: int = 0) -> Result:
    """Judge a kernel, by its name or itself, at a case, in the simulator or the interpreter: what its check says. Fails where it is not right. `config`:
    instead of its own choice; `op`: of a kernel for several; `sms`: multiprocessors of the card, which has no clusters measured then."""
    if isinstance(kernel, str):
        kernel = registry.implementation(kernel) if config is None else fixed(kernel, config)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(inputs.FILLS, FILLS))
        if sms:
            cards = {arch: replace(card, sms=sms, clusters=()) for arch, card in TARGETS.items()}
            stack.enter_context(mock.patch("rooftop.core.implementation.TARGETS", cards))
        found = checker.check(Subject(kernel.name, registry.op(op or kernel.op), kernel), case, backend=WHERE[kernel.backend], seed=seed)
    assert found.status == "ok", f"{kernel.name} at {case.id}, {config or 'as chosen'}: {found.message}"
    return found


def by_the_portable_kernel(op: Any, tensors: dict[str, Any], options: dict[str, Any], card: Any = 90) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What the chosen kernel computes of these tensors in the interpreter, and what is exact; None where no kernel takes them. Fails where it is not right.
    A portable kernel stands in for one of Gluon, which only a GPU runs."""
    problem = op.problem_of(metas_of(tensors), options, TARGETS[card])
    call = select(op, problem).call
    if call is not None and call.implementation.backend == "gluon":
        call = select(op, problem, "triton").call
    if call is None:
        return None
    expected = judgement.expect_given(op, problem, tensors, options)
    trial = checker.Trial(call, "cpu", checker.RUNNERS["interpreter"], 64)
    got, _ = trial.run(tensors, options, 0xFF)
    verdicts = judgement.judge_given(op, problem, expected, {**dict.fromkeys(op.output_names), **got})

    def draws() -> Iterator[tuple[judgement.Expected, dict[str, Any]]]:
        yield expected, got
        for i in range(1, checker.DRAWS if op.forward else 1):
            other = {**tensors, "dout": torch.randn(tensors["dout"].shape, generator=torch.Generator().manual_seed(i)).to(tensors["dout"])}
            yield judgement.expect_given(op, problem, other, options), trial.run(other, options, 0xFF)[0]

    checker.judge_few(op, problem, verdicts, draws())
    assert {n: v.message for n, v in verdicts.items() if not v.ok} == {}
    return got, dict(expected.exact)


def as_torch(ours: Callable[..., Any], theirs: Callable[..., Any], *given: torch.Tensor, compiled: bool = False, **near: float) -> None:
    """Our function has the values of theirs, and the gradients of all that is given, eagerly or compiled as one graph. `near`: rtol and atol of gradients."""
    a, b = ([t.clone().requires_grad_() for t in given] for _ in range(2))
    got, want = (torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours)(*a), theirs(*b)
    torch.testing.assert_close(got, want)
    flow = torch.randn_like(want)
    torch.testing.assert_close(torch.autograd.grad(got, a, flow), torch.autograd.grad(want, b, flow), **near)
