"""What every op does on cards that no kernel is compiled for."""

from __future__ import annotations

import re

import pytest
from contracts.calls import ops

from rooftop.core import dispatch, registry
from rooftop.core.call import select
from rooftop.core.implementation import UnsupportedError
from rooftop.core.spec import Device

OLD = (Device("NVIDIA TITAN V", 70, 80, 96 << 10, 4608 << 10), Device("NVIDIA GeForce RTX 2080 Ti", 75, 68, 64 << 10, 5632 << 10))


@pytest.mark.parametrize("device", OLD, ids=lambda d: f"sm_{d.arch}")
@pytest.mark.parametrize("name", ops())
def test_a_card_that_is_too_old_gets_the_reference_or_by_name_an_error(name: str, device: Device) -> None:
    op = registry.op(name)
    asked = op.problem(min((c for c in op.cases if "empty" not in c.tags), key=lambda c: "bench" not in c.tags), device)
    says = rf"needs sm_\d+a? or later; {device.name} is sm_{device.arch}"
    found = dispatch.explain_problem(op, asked)
    assert found.choice is not None and found.choice.call is None
    assert "the reference" in found.why
    assert len(re.findall(says, str(found))) == len(registry.implementations((registry.op(name).twin_of or registry.op(name)).name))
    for implementation in registry.implementations((registry.op(name).twin_of or registry.op(name)).name):
        with pytest.raises(UnsupportedError, match=says):
            select(op, asked, implementation.name)
