"""What each family's `choose.py` chooses, for every case on every card: a kernel that supports the problem, with a config that its validity predicate takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rooftop.core import registry
from rooftop.core.call import problem_for_kernels
from rooftop.core.choice import Chosen
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS, Device, Problem

CARDS = ("a800", "rtx4090", "h100", "h200")


def chosen_ops() -> Iterator[Contract]:
    for name in registry.op_names():
        forward = registry.op(name)
        for op in (forward, forward.bwd):
            if op is not None and op.twin_of is None and registry.chooser(op.name) is not None:
                yield op


OPS = {op.name: op for op in chosen_ops()}


def problems(op: Contract, device: Device) -> Iterator[tuple[str, Problem]]:
    for case in op.cases:
        if not op.idle(problem := op.problem(case, device)):
            yield case.id, problem_for_kernels(op, problem)[0]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", sorted(OPS))
def test_the_chosen_kernel_takes_the_problem(name: str, card: str) -> None:
    for case, problem in problems(OPS[name], TARGETS[card]):
        found = registry.choose(name, problem)
        if isinstance(found, Chosen):
            kernel = registry.implementation(found.kernel)
            assert kernel.supports(problem) is None, case
            assert kernel.breaks(problem, kernel.own(found.config)) is None, case
            alone = registry.choose(name, problem, found.kernel)
            assert isinstance(alone, Chosen) and alone.config == found.config, f"{case}: named alone it has another config"
        else:
            assert found, case
