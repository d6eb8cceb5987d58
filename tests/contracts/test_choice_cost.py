"""What the choice of a kernel costs for a shape that was never seen: Python calls, since times are not deterministic. Modules are loaded beforehand."""

from __future__ import annotations

import dataclasses
import gc
import sys
from typing import Any

import pytest
from contracts.calls import ops

from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS

CARD = TARGETS["h200"]
# problems of this card are in no cache, nor what a model has computed from the number of multiprocessors
LIKE_IT = dataclasses.replace(CARD, name="another card like it", sms=CARD.sms - 1)
MOST = 200
MORE = dict.fromkeys(("matmul", "int_matmul", "scaled_matmul", "quantized_matmul", "attention"), 800)  # a model predicts the times of many tiles


def calls(op: Contract, problem: Any) -> int:
    """Calls of Python functions. Without the collector, which calls what other tests left to be called."""
    count = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(called)
    try:
        select(op, problem)
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("name", ops())
def test_a_new_shape_costs_few_calls(name: str) -> None:
    op = registry.op(name)
    cases = [c for c in op.cases if "bench" in c.tags]
    for case in cases:
        select(op, op.problem(case, CARD))
    assert {c.id: n for c in cases if (n := calls(op, op.problem(c, LIKE_IT))) > MORE.get(name, MOST)} == {}
