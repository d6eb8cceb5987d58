"""Kernel and config are chosen for rounded row counts: a new row count costs its launches, and the choice fits it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rooftop.core import registry, rounding
from rooftop.core.call import Call, select
from rooftop.core.contract import Contract
from rooftop.core.dispatch import explain_problem
from rooftop.core.spec import TARGETS, Meta, Problem
from rooftop.lab.timing import warm

OPS = [o for n in registry.op_names() for o in (registry.op(n), registry.op(n).bwd) if o is not None and o.rounded is not None]
MOST = 900  # Python function calls from the facts of a call with a new row count to its launches; some were 13,000


def problem(*tensors: Meta | None) -> Problem:
    return Problem("op", tuple((f"t{i}", m) for i, m in enumerate(tensors)), rounded=rounding.rows)


def sized(op: Contract, rows: int, columns: int, card: str = "h200", dtype: str = "bf16") -> Problem:
    """The problem of an op's first case of rows and columns, or of its backward."""
    case = warm.kinds(op.forward or op, dtype)[0]
    was = warm.rows_and_columns(case)
    assert was is not None
    return op.problem(warm.resized(case, {was[0]: rows, was[1]: columns}), TARGETS[card])


def test_five_bits_of_a_row_count_are_kept_and_four_of_a_large_one() -> None:
    p = problem(Meta((4001, 640), "bf16", (1000, 1), 2), None, Meta((640,), "f32"), Meta((4001,), "i64", (3,)), Meta((4001, 640), "bf16"))
    shapes = [None if m is None else (m.shape, m.strides, m.align) for _, m in p.near.tensors]
    assert shapes == [((3840, 640), (1000, 1), 2), None, ((640,), (1,), 16), ((3840,), (3,), 16), ((3840, 640), (640, 1), 16)]
    assert p.near.near is p.near and p.near is p.near
    kept = [n for n in range(1, 70) if (q := problem(Meta((n, 640), "f32"))).near is q]
    assert kept == [*range(1, 33), *range(34, 65, 2), 68]
    kept = [n for n in range(960, 2304) if (q := problem(Meta((n, 640), "f32"))).near is q]
    assert kept == [960, 992, *range(1024, 2048, 128), 2048]


def test_rows_that_cannot_be_told_from_columns_are_kept() -> None:
    p = problem(Meta((641, 641), "bf16"), Meta((641,), "bf16"))
    assert p.near is p and problem(Meta((), "bf16")).near.tensors and Problem("op", (("x", Meta((641, 8), "f32")),)).near.rounded is None


def test_there_are_ops_that_round() -> None:
    assert {"rms_norm", "rms_norm_bwd", "layer_norm_bwd", "softmax", "cross_entropy"} <= {o.name for o in OPS}


@pytest.mark.parametrize("card", ["h200", "a800", "rtx4090"])
@pytest.mark.parametrize("op", OPS, ids=lambda o: o.name)
def test_what_is_chosen_for_a_rounded_row_count_runs_with_the_true_one(op: Contract, card: str) -> None:
    chance = random.Random(f"{op.name} {card}")
    fewer = 0
    for _ in range(25):
        p = sized(op, chance.randrange(1, 1 << chance.randrange(1, 18)), chance.choice((chance.randrange(2, 20000), 64 * chance.randrange(1, 600))), card)
        call = select(op, p).call
        if call is None:
            continue
        assert call.implementation.supports(call.problem) is None
        assert dict(call.problem.tensors) == dict(op.kernel_problem(p).tensors), "the kernel sees the true number"  # type: ignore[union-attr]
        assert call.launches
        near = select(op, call.problem.near).call
        if near is not None and near.implementation is call.implementation and call.problem.near is not call.problem:
            fewer += near.config == call.config
    assert fewer >= 8, "the rounded problem's config is taken"


@pytest.mark.parametrize("op", OPS, ids=lambda o: o.name)
def test_a_new_row_count_asks_no_kernel_whether_it_is_to_be_preferred(op: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    op.rankings.clear()
    first = select(op, sized(op, 4097, 4096)).call
    assert first is not None
    asked: list[str] = []
    for kind in {type(f) for f in registry.implementations(op.name)}:
        monkeypatch.setattr(kind, "prefers", lambda self, problem: asked.append(self.name) or 0)
    second = select(op, sized(op, 4099, 4096)).call
    assert second is not None and second.implementation is first.implementation and second.config == first.config
    assert asked == []
    select(op, sized(op, 4609, 4096))
    assert asked, "that is another rounded number: they are asked"


def calls(function: Callable[[], Any]) -> int:
    """Python function calls."""
    count = 0

    def counted(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("op", OPS, ids=lambda o: o.name)
def test_a_new_row_count_costs_little(op: Contract) -> None:
    """Counted in function calls, which are the same on every machine."""
    select(op, sized(op, 8209, 4096))
    p = sized(op, 8211, 4096)
    found = calls(lambda: select(op, p).call.launches)  # type: ignore[union-attr]
    assert found <= MOST, found


def test_a_rounded_problem_that_a_kernel_does_not_take_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    op, f = registry.op("rms_norm"), registry.implementation("rms_norm__cuda_sm90")
    p = op.kernel_problem(sized(op, 5003, 8192))
    assert p is not None and p.near is not p
    exact = dict(f.choose(p))
    said = f.supports
    monkeypatch.setattr(f, "_rounded", {})
    monkeypatch.setattr(f, "_last_choice", None)
    monkeypatch.setattr(f, "supports", lambda q: "too few rows" if q == p.near else said(q))
    assert dict(f.choose(p)) == exact and f._rounded == {p.near: None}  # type: ignore[attr-defined]
    assert Call.of(op, f, sized(op, 5003, 8192)).config == exact


@pytest.mark.parametrize(
    ("name", "case", "tensors", "most"),
    [
        ("matmul", "4096 cubed bf16", ("a", "out"), 1500),
        ("quantized_matmul", "int4 g128 256x8192x8192 bf16", ("x", "out"), 4500),
        ("attention", "decode 1x131072, 64 heads of 8 bf16", ("k", "v"), 1300),
    ],
)
def test_a_new_length_of_what_is_not_rounded_costs_no_search(name: str, case: str, tensors: tuple[str, ...], most: int) -> None:
    """Products and attention choose for the true sizes: their models are asked once, not once a candidate and caller."""
    op = registry.op(name)

    def longer(by: int) -> Problem:
        metas = op._metas(op.case(case))
        axis = 0 if name != "attention" else 1
        for n in tensors:
            if (m := metas.get(n)) is not None:
                metas[n] = Meta((*m.shape[:axis], m.shape[axis] + by, *m.shape[axis + 1 :]), m.dtype)
        return op.problem_of(metas, op.options(op.case(case)), TARGETS["h200"])

    calls(lambda: select(op, longer(1)))
    p = longer(2)
    found = calls(lambda: select(op, p).call.launches)  # type: ignore[union-attr]
    assert found <= most, found


@pytest.mark.parametrize("op", OPS, ids=lambda o: o.name)
def test_reasons_are_those_of_the_true_row_count(op: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    p = sized(op, 5003, 8192)
    chosen = select(op, p).call
    assert chosen is not None
    kernel = chosen.implementation
    monkeypatch.setattr(op, "rankings", {})
    monkeypatch.setattr(kernel, "supports", lambda q: f"refuses {sorted({m.shape[0] for _, m in q.tensors if m is not None and m.shape} - {8192})}")
    assert f"not {kernel.name}: refuses [5003]" in str(explain_problem(op, p))
