"""On every card an op selects a kernel that is for it and fits it, or runs plain torch; and `explain` says which. No GPU is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import whole
from contracts import plan

from rooftop.core import dispatch, registry
from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS, Case

CARDS = [*TARGETS.names]
PART = 24  # of the cases one in so many, others in each commit; --all: all


def cases(every: bool) -> Iterator[tuple[Contract, Case]]:
    for name in registry.op_names():
        op = registry.op(name)
        for one in (op, op.bwd):
            for c in one.cases if one is not None else ():
                if "huge" not in c.tags and (every or plan.drawn(PART, name, c.id)):
                    assert one is not None
                    yield one, c


@pytest.mark.parametrize("card", CARDS)
def test_an_op_selects_what_the_card_can_run(card: str, pytestconfig: pytest.Config) -> None:
    device, kernels = TARGETS[card], 0
    for op, case in cases(whole(pytestconfig)):
        call = select(op, op.problem(case, device)).call
        if call is None:
            continue
        kernels += 1
        where = (op.name, case.id, call.implementation.name)
        assert call.implementation.foreign(device) is None, where
        assert [x.shared for x in call.launches if x.shared > device.shared_per_block] == [], where
    assert kernels > 50


@pytest.mark.parametrize(("card", "op", "case", "kernel"), [
    ("b200", "matmul", "4096 cubed bf16", "matmul__triton"), ("b200", "softmax", "rows 2048x131072 bf16", "softmax__ring__cuda_sm90"),
    ("rtx5090", "rms_norm", "rows 16384x8192 bf16", None), ("mi300x", "softmax", "rows 16384x8192 bf16", "softmax__triton"),
    ("mi300x", "sort", None, ""), ("h20", "softmax", "rows 2048x131072 bf16", "softmax__ring__cuda_sm90"),
])
def test_explain_says_what_a_card_runs(card: str, op: str, case: str | None, kernel: str | None) -> None:
    found = registry.op(op)
    problem = found.problem(found.case(case) if case else next(c for c in found.cases if "bench" in c.tags), TARGETS[card])
    said = str(dispatch.explain_problem(found, problem))
    assert TARGETS[card].name in said
    if kernel == "":
        assert "the reference, in plain torch" in said and "only Triton kernels run on AMD's cards" in said
    elif kernel is not None:
        assert f": {kernel}: " in said


def test_tuned_cards_choose_as_before() -> None:
    """A card of a tuned architecture is asked nothing more than its family's function."""
    assert set(TARGETS) == {80, 89, 90} and [TARGETS[a].name for a in TARGETS] == ["NVIDIA A800-SXM4-80GB", "NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3"]
    assert TARGETS["b200"].target == "sm_100a" and TARGETS["sm_120a"] is TARGETS["rtx5090"] and TARGETS["gfx950"].target == "gfx950"
    assert {"80", "86", "103", "gfx942", "gfx1100"} <= set(TARGETS.architectures)
