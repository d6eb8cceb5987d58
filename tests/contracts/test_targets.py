"""What every op does on cards of every kind: those that kernels are compiled for, and those too old."""

from __future__ import annotations

import re

import pytest

from rooftop.core import dispatch, registry
from rooftop.core.call import select
from rooftop.core.implementation import UnsupportedError
from rooftop.core.spec import TARGETS, Device

OPS = [n for name in registry.op_names() for n in (name, *([f"{name}_bwd"] if registry.op(name).bwd else []))]


@pytest.mark.parametrize("name", OPS)
def test_the_choice_for_every_case_and_target_is_made_without_a_gpu(name: str) -> None:

    op = registry.op(name)
    for device in TARGETS.values():
        for c in op.cases:
            call = select(op, op.problem(c, device)).call
            if "bench" in c.tags and registry.implementations(name):  # a new op has no kernel yet
                assert call is not None, c.id
            if call is not None:
                assert call.launches


OLD = (Device("NVIDIA TITAN V", 70, 80, 96 << 10, 4608 << 10), Device("NVIDIA GeForce RTX 2080 Ti", 75, 68, 64 << 10, 5632 << 10))


@pytest.mark.parametrize("device", OLD, ids=lambda d: f"sm_{d.arch}")
@pytest.mark.parametrize("name", OPS)
def test_a_card_that_is_too_old_gets_the_reference_or_by_name_an_error(name: str, device: Device) -> None:
    op = registry.op(name)
    asked = op.problem(next(c for c in op.cases if "bench" in c.tags), device)
    says = rf"needs sm_(80|90) or later; {device.name} is sm_{device.arch}"
    found = dispatch.explain_problem(op, asked)
    assert found.choice is not None and found.choice.call is None
    assert "the reference" in found.why
    assert len(re.findall(says, str(found))) == len(registry.implementations(name))
    for implementation in registry.implementations(name):
        with pytest.raises(UnsupportedError, match=says):
            select(op, asked, implementation.name)
