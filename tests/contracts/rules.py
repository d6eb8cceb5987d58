"""What every contract keeps, as functions of one op: the tests ask it of each op of the tree, and of ops made up to break it.

Each reads the contract: dtypes from its cases, targets from its implementations; what makes sense for floats alone is asked of floats alone."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.implementation import Implementation
from rooftop.core.spec import TARGETS
from rooftop.lab.check.contracts import (
    are_rejected,
    backward_is_the_gradient,
    can_fail,
    cpu_gradients_pass,
    cpu_passes,
    less_is_rejected,
    reference_passes,
)

__all__ = [
    "are_rejected", "backward_is_the_gradient", "can_fail", "choices_are_made", "cpu_gradients_pass", "cpu_passes", "less_is_rejected", "reference_passes",
]


def choices_are_made(op: Contract, found: Sequence[Implementation]) -> None:
    """Without a GPU, for every case and target. On the newest target each timed case has a kernel; on an older one, where the op has kernels for it, some
    case has one, and each kernel that does not take a case says why."""
    for device in TARGETS.values():
        mine = [i for i in found if i.arch <= device.arch]
        taken = 0
        for c in op.cases:
            if op.idle(problem := op.problem(c, device)):
                continue
            choice = select(op, problem)
            if choice.call is not None:
                assert choice.call.launches or choice.call.implementation.where().place == "torch", c.id
                taken += 1
            elif "bench" in c.tags and found:
                assert device.arch < max(TARGETS), f"{op.name}: no kernel takes {c.id} on {device.name}"
                assert len(choice.rejected) == len(found) and all(reason for _, reason in choice.rejected), c.id
        assert taken or not mine, f"{op.name}: {', '.join(i.name for i in mine)} take nothing on sm_{device.arch}"

