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
    kernels = [i for i in registry.implementations((op.twin_of or op).name) if i.platform == "gpu" and i.where().place != "torch"]  # torch runs on any card
    assert found.choice is not None and (found.choice.call is None or found.choice.call.implementation not in kernels)
    assert found.choice.call is not None or "the reference" in found.why
    assert len(re.findall(says, str(found))) == len(kernels)
    for kernel in kernels:
        with pytest.raises(UnsupportedError, match=says):
            select(op, asked, kernel.name)
