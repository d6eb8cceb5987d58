"""What each family's `choose.py` chooses, for every case on every card: a kernel that supports the problem, with a config that its validity predicate takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from rooftop.core import registry
from rooftop.core.call import problem_for_kernels
from rooftop.core.choice import Chosen
from rooftop.core.contract import Contract
from rooftop.core.implementation import Implementation
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


BY_THE_CALLER = ("all_reduce_ranks",)  # rooftop/ranks names the kernel: all processes must launch the same


def without_a_choice(op: Contract, kernels: Sequence[Implementation]) -> str | None:
    """Of an op without a function in its family's `choose.py`: a case that two kernels take, in a line; None if there is none."""
    for case, problem in problems(op, TARGETS["h200"]) if len(kernels) > 1 else ():
        takes = [kernel for kernel in kernels if kernel.rejects(problem) is None]
        if len(takes) > 1:
            both = " and ".join(kernel.name for kernel in takes)
            return f"{takes[0].path.parent.name}/choose.py has no function {op.name}, and {both} take {case}"
    return None


def test_where_two_kernels_take_a_case_the_family_chooses() -> None:
    found = []
    for name in registry.op_names():
        forward = registry.op(name)
        for op in filter(None, (forward, forward.bwd)):
            if op.twin_of is None and op.name not in (*OPS, *BY_THE_CALLER):
                kernels = [i for i in registry.implementations(op.name) if i.backend in ("cuda", "triton", "gluon", "torch")]
                found += filter(None, [without_a_choice(op, kernels)])
    assert found == []


def test_a_family_without_a_choice_is_seen() -> None:
    said = without_a_choice(OPS["transpose"], registry.implementations("transpose"))
    assert said is not None and "\n" not in said and said.startswith("movement/choose.py has no function transpose, and transpose__")
