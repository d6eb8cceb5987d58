"""What is timed in which duty, what a call allocates, and that both stand in the record: on a device whose true times are known. And which
modules a measured time passes from the timer to the page."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from _simulated_device import Kernel, Simulated

from rooftop.core import registry, settings
from rooftop.core.call import Call
from rooftop.core.cubins import AbsentCompiler
from rooftop.core.spec import TARGETS, Work
from rooftop.lab import candidates
from rooftop.lab.check.checker import Result
from rooftop.lab.cli.look import WAY, reading
from rooftop.lab.records import store
from rooftop.lab.records.record import Record
from rooftop.lab.report.data import Gatherer
from rooftop.lab.timing import bench, bench_group, peak_memory
from rooftop.lab.timing.bench_group import Bench, BenchGroup, Summary
from rooftop.lab.timing.timer import Candidate, Measurement, Timer, Timing, sets_needed

H100 = TARGETS[90]


def made(op: str, case: str, duty: Sequence[str] = ("auto",)) -> Bench:
    contract = registry.op(op)
    f = BenchGroup(contract, contract.case(case), [*candidates.peers(contract), *candidates.implementations(contract)])
    return Bench(f, H100, Timer(Simulated()), 0.5, ("kernel",), Summary(), duty=duty)


def test_what_arithmetic_bounds_is_timed_in_a_burst_and_sustained() -> None:
    assert made("matmul", "4096 cubed f32")._duties() == ("burst", "sustained")
    assert made("add", "1 Mi elements f32")._duties() == ("normal",)
    for asked in (["sustained", "burst"], ["burst", "sustained"]):
        assert made("add", "1 Mi elements f32", asked)._duties() == ("burst", "sustained"), "what is called kernel comes first"
    assert made("matmul", "4096 cubed f32", ["normal"])._duties() == ("normal",)
    writes = made("matmul", "4096 cubed f32")
    writes.f.op = copy(writes.f.op)
    vars(writes.f.op)["mutates"] = ("a",)
    assert writes._duties() == ("normal",), "its inputs are put back between samples"


@pytest.mark.parametrize("duty", [["warm"], [], ["normal", "burst"], ["auto", "sustained"]])
def test_duties_that_do_not_go_together_are_refused(tmp_path: Path, duty: list[str]) -> None:
    with pytest.raises(ValueError, match="duty"):
        bench.run([], tmp_path, duty=duty)


def timed(b: Bench, seconds: dict[str, float]) -> dict[str, dict[str, Measurement]]:
    """The field measured as `rows` does, with candidates of these true times."""
    size = 192 << 20
    found: dict[str, dict[str, Measurement]] = {name: {} for name in seconds}
    for duty in b._duties():
        field = [Candidate(name, [Kernel(name, s, scatter=0.002) for _ in range(sets_needed(size, 50 << 20))]) for name, s in seconds.items()]
        b._measure("kernel", field, size, 0.5, found, duty=duty)
    return found


def test_a_record_names_its_duties_and_compares_within_each(tmp_path: Path) -> None:
    b = made("matmul", "4096 cubed f32")
    peer, ours = (next(s for s in b.f.entries if (s.peer is not None) == is_peer and not s.supports(b.f.case, H100)) for is_peer in (True, False))
    b.checks = {s.name: Result(s.name, "matmul", b.f.case.id, "ok") for s in (peer, ours)}
    b.memory = {peer.name: 80 << 20, ours.name: 64 << 20}
    found = timed(b, {peer.name: 4e-3, ours.name: 3e-3})
    with store.Writer(tmp_path, H100.name) as writer:
        for s in (peer, ours):
            writer.write(b._record(s, found[s.name]))
    record = {r["subject"]: r for r in store.read(tmp_path)}[ours.name]
    assert {name: c["duty"] for name, c in record["clocks"].items()} == {"kernel": "burst", "sustained": "sustained"}
    assert record["clocks"]["kernel"]["median"] == pytest.approx(3e-3, rel=0.01) == record["clocks"]["sustained"]["median"]
    assert 0 < record["clocks"]["kernel"]["busy"] < record["clocks"]["sustained"]["busy"] <= 1, "pauses before each sample, and none"
    for key in ("versus", "sustained_versus"):
        assert record[key] == {peer.name: {**record[key][peer.name], "verdict": "faster"}} and record[key][peer.name]["ratio"] == pytest.approx(0.75, rel=0.01)
    assert record["memory"] == 64 << 20


def test_a_peer_whose_captured_call_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    b = made("add", "1 Mi elements f32")
    b.memory = {"peer:torch": 3 << 30, "peer:liger": 1 << 30}
    measure, most = b.timer.measure, {"fit": 2}

    def short_of_memory(field: Sequence[Candidate], *args: Any, **options: Any) -> Measurement:
        if len(field) > most["fit"]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return measure(field, *args, **options)

    monkeypatch.setattr(b.timer, "measure", short_of_memory)
    found = timed(b, {"peer:torch": 3e-4, "add__triton": 1e-4, "peer:liger": 2e-4})
    assert {name for name, m in found.items() if m} == {"add__triton", "peer:liger"}
    assert b.summary.skipped == ["peer:torch at 1 Mi elements f32: out of device memory, captured together with the others"]
    most["fit"] = 0
    with pytest.raises(torch.OutOfMemoryError):
        timed(b, {"add__triton": 1e-4})


def test_what_a_memory_bound_case_holds_is_of_the_usual_duty() -> None:
    b = made("add", "1 Mi elements f32")
    found = timed(b, {"add__triton": 1e-4})
    assert set(found["add__triton"]) == {"kernel"} and found["add__triton"]["kernel"].duty == "normal"


def test_the_floor_leaves_out_units_that_the_card_has_not() -> None:
    """An fp8 product on a card without fp8 tensor cores is computed otherwise; a unit that no card has is a mistake in a contract."""
    b = made("matmul", "4096 cubed f32")
    b.device = TARGETS[80]
    b.work = Work(0, 0, {"tensor-f8": 1e15})
    assert b.floor("kernel") == 0
    b.device = H100
    assert b.floor("kernel") == pytest.approx(1e15 / (132 * 4096 * 1980e6))
    b.work = Work(0, 0, {"tensor-fp8": 1.0})
    with pytest.raises(ValueError, match="no unit 'tensor-fp8'"):
        b.floor("kernel")


def test_what_a_call_allocates_is_measured_on_the_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The op's own function, the peers', and a rung in memory of its own, their inputs apart; what only the first call allocates, or compiles, is not of a
    call."""
    b = made("add", "1 Mi elements f32")
    log: list[str] = []
    held = {"now": 1000, "most": 0}

    def allocates(name: str, first: int, each: int) -> Any:
        def call(*_: Any, implementation: str | None = None) -> str:
            log.append(implementation or name)
            held["now"] += first if log.count(log[-1]) == 1 else 0
            held["most"] = max(held["most"], held["now"] + each)
            return "result"

        return call

    public = allocates("op", 5000, 300)
    monkeypatch.setattr(peak_memory, "make", lambda op, case, place, seed: ({"x": torch.ones(1), "y": torch.ones(1)}, {}))
    monkeypatch.setattr(type(b.f.op), "__call__", lambda self, *args, **how: public(*args, **how), raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: held["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: held["most"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *_: held.update(most=held["now"]))
    peer = next(s for s in b.f.entries if s.peer is not None)
    vars(peer)["function"] = allocates(peer.name, 0, 70)
    rung = candidates.rungs(registry.ladder("sgemm_cuda"))[0]
    able = [peer, next(s for s in b.f.entries if s.peer is None), rung]
    found = peak_memory.of(b.f.op, b.f.case, able, {s.name: b._public(s) for s in able}, allocates(rung.name, 40, 600))
    assert found == {peer.name: 70, "add__triton": 300, rung.name: 600}
    assert log == [peer.name] * 2 + ["add__triton"] * 2 + [rung.name] * 2


@pytest.mark.parametrize("word", ["spmm_24", "attention_bwd"])
def test_a_word_that_is_an_op_and_a_ladder_means_both(word: str) -> None:
    found = candidates.find([word])
    assert any(s.rung for s in found) and any(s.rung is None and s.implementation for s in found) and {s.op.name for s in found} == {word}


def test_torch_compile_can_be_left_out() -> None:
    found = candidates.find(["softmax"])
    named = {compiled: {s.peer for f in bench.fields(found, compiled=compiled) for s in f.entries if s.peer} for compiled in (True, False)}
    assert named[True] - named[False] == {"torch.compile"} and "torch" in named[False]


def test_a_kernel_that_a_record_proves_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    b = made("add", "1 Mi elements f32")
    kernel = next(s for s in b.f.entries if s.name == "add__triton")
    peer = next(s for s in b.f.entries if s.peer)
    error = {"ok": True, "share": 0.25}
    check = Record({"kind": "check", "op": "add", "subject": kernel.name, "case": b.f.case.id, **kernel.identity(b.f.case, H100).facts, "error": error,
                    "device": {"name": "card"}})
    judged = []

    def absent(*_: object) -> None:
        raise AbsentCompiler("the language is not installed")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(Call, "runner", absent)
    monkeypatch.setattr(bench_group.judgement, "expect", lambda *args: judged.append("reference"))
    monkeypatch.setattr(bench_group.checker, "check", lambda s, *args, **more: Result(s.name, "add", b.f.case.id, "ok"))
    monkeypatch.setattr(bench_group.checker, "check_callable", lambda *args, name, **more: Result(name, "add", b.f.case.id, "ok"))
    b.proofs = store.proven([check], "card")
    b._check([kernel])
    assert b.checks[kernel.name].status == "skipped" and "not installed" in b.summary.skipped[-1], "its language is not here"
    monkeypatch.setattr(Call, "runner", lambda *_: None)
    b._check([kernel])
    assert not judged and b.checks[kernel.name].status == "ok" and b.errors == {kernel.name: error}
    for able, proofs in (([kernel, peer], [check]), ([kernel], [check.but(digest="another")]), ([kernel], [check.but(error={"ok": False})])):
        b.proofs = store.proven(proofs, "card")
        judged.clear()
        b._check(able)
        assert judged == ["reference"]
    peer_check = {k: v for k, v in check.items() if k != "source"} | peer.identity(b.f.case, H100).facts
    timed = Record({**peer_check, "kind": "bench", "subject": peer.name, "error": {"ok": False}, "versions": {"torch": "2"}})
    b.proofs = store.proven([check], "card") | store.judged_peers([timed], "card", {"torch": "2"})
    judged.clear()
    b._check([kernel, peer])
    assert not judged and b.checks[peer.name].status == "wrong" and b.errors[peer.name] == {"ok": False}
    assert not store.judged_peers([timed], "card", {"torch": "3"}) and not store.judged_peers([timed], "another", {"torch": "2"})


# -- the way of a measured time ------------------------------------------------------------------------------------------

SEVEN = 7  # modules, from the timer to the page
LAB = str(settings.PACKAGE / "lab")
NEAR = 6  # how deep in a value its times are looked for


def holds(value: Any, depth: int = NEAR) -> bool:
    """Whether a value is a measured time in one of its forms, or holds one: of the timer, of a record, of a page."""
    if isinstance(value, (Timing, Measurement, Record)):
        return True
    if depth == 0 or isinstance(value, (str, bytes, int, float, Path, type, Gatherer)):
        return False
    if isinstance(value, Mapping):
        return "clocks" in value or any(holds(v, depth - 1) for v in islice(value.values(), 3))
    if isinstance(value, (list, tuple)):
        return any(holds(v, depth - 1) for v in value[:3])
    if dataclasses.is_dataclass(value):
        return any(holds(getattr(value, f.name, None), depth - 1) for f in dataclasses.fields(value))
    return False


def handed_on(work: Iterator[None]) -> set[str]:
    """The modules of the workbench of which a function gave back a measured time while `work` ran."""
    found: set[str] = set()

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        file = frame.f_code.co_filename
        if event == "return" and file.startswith(LAB) and file not in found and holds(arg):
            found.add(file)

    sys.setprofile(watch)
    try:
        for _ in work:
            pass
    finally:
        sys.setprofile(None)
    return {str(Path(file).relative_to(settings.PACKAGE.parent)) for file in found}


def from_timer_to_page(folder: Path) -> Iterator[None]:
    b = made("add", "1 Mi elements f32")
    ours = next(s for s in b.f.entries if s.peer is None and not s.supports(b.f.case, H100))
    b.checks = {ours.name: Result(ours.name, "add", b.f.case.id, "ok")}
    found = timed(b, {ours.name: 3e-6})
    yield
    b.rows = lambda: [b._record(ours, found[ours.name])]  # type: ignore[method-assign]
    with store.Writer(folder, H100.name) as writer:
        assert ours.name in b.write(writer)
    yield
    page = Gatherer(store.read(folder)).op_score("add")
    times = [m.seconds for score in page.scores for row in score.rows for m in row.measured]
    assert times == [pytest.approx(3e-6, rel=0.01)], "the time has come to the page"
    yield


def test_a_time_passes_the_modules_that_where_names_and_no_other(tmp_path: Path) -> None:
    assert handed_on(from_timer_to_page(tmp_path)) == set(WAY)
    assert len(set(WAY)) <= SEVEN


def test_where_tells_the_way_in_its_order() -> None:
    assert reading("record") == [settings.CHECKOUT / name for name in WAY]
    text = (settings.CHECKOUT / "docs" / "timing.md").read_text(encoding="utf-8")
    places = [text.index(f"](../{name})") for name in WAY]
    assert places == sorted(places), "docs/timing.md tells the same"
