"""What `rooftop fuzz --invariant` and `rooftop bench --invariant` draw, say and write."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rooftop
from rooftop.core import implementation, registry
from rooftop.core.call import for_any_rows, select
from rooftop.core.invariance import InvarianceError
from rooftop.core.spec import TARGETS, Meta
from rooftop.lab.check import sequences
from rooftop.lab.check.batches import Compared
from rooftop.lab.fuzz import invariant
from rooftop.lab.records.record import Record
from rooftop.lab.timing import invariant_costs


def test_the_fuzzer_draws_other_rows_each_round_and_shows_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[object] = []

    def compared(op: Any, sizes: Any, dtype: str, **_: Any) -> Compared:
        drawn.append(str(sizes))
        return Compared("a row", "a_kernel", 3, ("1 rows from 2 on: 1 of 8 elements differ",))

    monkeypatch.setattr(sequences, "batches", compared)
    found = invariant.run(["matmul"], seed=5, rounds=6)
    assert len(set(drawn)) > 3 and len(found.wrong) == 6 and found.calls == 18
    assert "a_kernel: 1 rows from 2 on" in found.wrong[0] and "print(batches(registry.op('matmul'), {" in found.wrong[0]
    with pytest.raises(ValueError, match="reduce: no result of these holds under"):
        invariant.run(["reduce"], seed=5, rounds=1)


@pytest.mark.parametrize(
    ("columns", "apart", "align", "copied"), [(176, 200, 16, True), (176, 192, 16, False), (176, 192, 2, True), (200, 208, 16, True), (200, 201, 2, False)]
)
def test_rows_whose_places_change_the_layout_of_a_triton_kernel_are_copied(columns: int, apart: int, align: int, copied: bool) -> None:
    """Whether 16 divides an address and a stride decides how many terms of a row a thread adds first."""
    op = registry.op("softmax").bwd
    assert op is not None and op.swept is not None
    problem = op.problem(op.swept.case("bf16", {"columns": columns, "rows": 5}), TARGETS["h200"])
    moved = problem.replace(**{n: Meta(problem[n].shape, "bf16", (apart, 1), align) for n in ("dy", "y")})
    call = for_any_rows(op, moved, "triton").call
    assert call is not None and call.copies == (("dy", "y") if copied else ())


def test_costs_are_timed_where_the_mode_chooses_and_shown_by_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [op.name for op in invariant_costs.ops(())]
    assert names[:3] == ["matmul", "attention", "rms_norm"] and "rms_norm_bwd" in names and not {"append_kv", "reduce"} & set(names)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(implementation, "device_of", lambda _index: TARGETS["h200"])
    monkeypatch.setattr(invariant_costs, "Timer", lambda _backend: None)
    monkeypatch.setattr(invariant_costs, "CudaBackend", lambda _index: None)
    monkeypatch.setattr(invariant_costs.store, "about", lambda _device: {"name": "a card"})

    def timed(op: Any, case: Any, *_: Any) -> dict[str, Any]:
        if "2048 keys" in case.id:
            raise InvarianceError("attention under rooftop.invariant(), along batch: no kernel runs here")
        for_any_rows(op, op.problem(case, TARGETS["h200"]))  # what cannot be chosen could not be timed
        return {"free": 4e-6, "mode": 8e-6 if " 1 rows" in case.id else 5e-6, "kernels": ["a", "b"]}

    monkeypatch.setattr(invariant_costs, "timed", timed)
    compiled: list[str] = []
    monkeypatch.setattr(invariant_costs, "compile_calls", lambda todo, _device: compiled.extend(call.implementation.name for call, _ in todo))
    records = list(invariant_costs.measure(["matmul", "attention"], say=lambda _line: None))
    now = [Record({**r, "at": "now"}) for r in records]
    text = invariant_costs.table(now)
    assert "| matmul | 14 of N = K = 4096, 1 to 8192 rows | 0.77 | 0.50 | N = K = 4096, 1 to 8192 rows, 1 rows" in text and "Not measured: " in text
    assert {"matmul__gluon_sm90", "attention__splits__triton", "attention__decode__triton"} <= set(compiled)
    assert any("2048 keys" in line for line in records[1]["left"])
    again = Record({**records[1], "at": "then", "rows": [{**r, "mode": r["free"] * 4} for r in records[1]["rows"]]})
    assert "| attention | 1 of decoding, 1 sequence | 0.25 |" in invariant_costs.table([*now, again])
    assert invariant_costs.table([]) == "Nothing has been measured yet."


def test_a_compiled_graph_follows_the_mode() -> None:
    w, x, t = torch.randn(48, 40), torch.randn(9, 40), torch.randint(48, (9,))
    given = torch.compile(lambda x, t: rooftop.linear_cross_entropy(rooftop.rms_norm(x, (40,)), w, t, reduction="none"), backend="eager", fullgraph=True)
    free = given(x, t)
    with rooftop.invariant():
        many, one = given(x, t), given(x[4:5], t[4:5])
        with pytest.raises(InvarianceError, match=r"linear_cross_entropy under .*, along batch: implementation='triton' is given; it runs as"):
            rooftop.linear_cross_entropy(x, w, t, implementation="triton")
        op = registry.op("linear_cross_entropy")
        with pytest.raises(InvarianceError, match=r"runs as rooftop.matmul and rooftop.cross_entropy there"):
            select(op, op.problem(op.cases[0]))
    assert torch.equal(many[4:5], one)
    torch.testing.assert_close(many, free)
