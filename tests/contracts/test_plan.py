"""The plan of a run: what has changed is in it, the rest is a sample of one size however many kernels there are."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from contracts import plan

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case
from rooftop.lab.candidates import Subject
from rooftop.lab.records.identity import Identity
from rooftop.lab.records.record import Record

EVERY = plan.every()
FOLDER = Path(__file__).parent.parent


def subject(name: str) -> Subject:
    return next(s for s in EVERY if s.name == name)


@pytest.fixture
def all_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "proven", lambda s, c: True)


def spent(made: plan.Plan) -> int:
    return sum(plan.PRICE + plan.elements(s, c) for s in made.subjects for c in made.cases(s))


@pytest.mark.usefixtures("all_proven")
def test_a_sample_has_one_size_however_many_kernels_there_are() -> None:
    few = EVERY[:: len(EVERY) // 10]
    for times in (1, 5):
        many = plan.Plan([replace(s, name=f"{s.name} {i}") for i in range(times) for s in few], "seed", budget=1 << 20)
        assert 0.9 * (1 << 20) < spent(many) <= 1 << 20


@pytest.mark.usefixtures("all_proven")
def test_every_kernel_has_its_turn_and_each_seed_another_sample() -> None:
    few = EVERY[:: len(EVERY) // 10]
    made = [plan.Plan(few, f"seed {i}", budget=1 << 20) for i in range(2)]
    assert [len({s.name for s in few if p.cases(s)}) for p in made] == [len(few)] * 2
    assert made[0].sampled != made[1].sampled
    assert made[0].sampled == plan.Plan(few, "seed 0", budget=1 << 20).sampled
    short = plan.Plan(few, "seed", budget=5 * plan.PRICE)
    assert 0 < len(short.sampled) < 5


def test_what_has_changed_runs_but_of_its_long_cases_one(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = subject("softmax__triton")
    monkeypatch.setattr(plan, "proven", lambda s, c: s.name != changed.name)
    few = (changed, *EVERY[::10])
    made = plan.Plan(few, "seed", budget=0)
    for s in few:
        assert bool(made.cases(s)) == (s.name == changed.name)
    ids = {c.id for c in made.cases(changed)}
    edges = {c.id: plan.elements(changed, c) for c in changed.op.cases if "edge" in c.tags and "huge" not in c.tags}
    assert {i for i, n in edges.items() if n <= plan.LONGEST} <= ids
    (long,) = {c.id for c in made.cases(changed) if plan.elements(changed, c) > plan.LONGEST}
    assert any(long != next(c.id for c in plan.Plan([changed], f"{i}", budget=0).cases(changed) if plan.elements(changed, c) > plan.LONGEST) for i in range(9))
    everything = plan.Plan(few, "seed", all_=True, budget=0)
    assert set(edges) <= {c.id for c in everything.cases(changed)}
    assert all(everything.cases(s) for s in few)


def test_what_has_changed_runs_within_a_budget_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "proven", lambda s, c: False)
    few = EVERY[:: len(EVERY) // 10]
    for times in (1, 5):
        many = plan.Plan([replace(s, name=f"{s.name} {i}") for i in range(times) for s in few], "seed", budget=0, unproven_budget=1 << 20)
        assert 0.7 * (1 << 20) < spent(many) <= 1 << 20
        assert len({s.name for s in many.subjects if many.cases(s)}) == len(many.subjects), "every kernel has its turn"


def test_what_has_changed_ends_with_its_time_but_each_kernel_has_its_turn() -> None:
    clock = plan.Clock(seconds=0.0)
    assert clock.allows(["a"]) and not clock.allows(["a"]) and clock.allows(["a", "b"]) and not clock.allows(["b"])
    assert clock.left_out == {"a": 1, "b": 1}
    clock = plan.Clock(seconds=0.02)
    assert all(clock.allows(["a"]) for _ in range(3))
    begun = time.process_time()
    with clock.running():
        while time.process_time() < begun + 0.1:  # os.times counts hundredths of a second
            sum(range(1000))
    assert not clock.allows(["a"])


def check_record(s: Subject, case: Case, made: Identity, ok: bool = True) -> Record:
    device = TARGETS[90]
    return Record({"kind": "check", "op": s.op.name, "subject": s.name, "case": case.id, **made.facts, "error": {"ok": ok},
                   "device": {"name": device.name, "arch": device.arch, "sms": device.sms}})


def test_a_record_stands_for_the_kernel_as_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    s = subject("add__triton")
    case = s.op.case("odd f32")
    made = s.identity(case, TARGETS[90])
    for record, stands in (
        (check_record(s, case, made), True),
        (check_record(s, case, made, ok=False), False),
        (check_record(s, case, replace(made, digest="0123456789ab")), False),
        (check_record(s, s.op.case("odd f16"), made), False),
        (check_record(subject("softmax__triton"), case, made), False),
    ):
        monkeypatch.setattr(plan, "committed", lambda record=record: [record])
        monkeypatch.setattr(plan, "answers", dict)
        monkeypatch.setattr(plan, "_PROVEN", {})
        plan._recorded.cache_clear()
        try:
            assert plan.proven(s, case) is stands, record
        finally:
            plan._recorded.cache_clear()


def test_a_kernel_is_unchanged_where_every_edge_case_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "proven", lambda s, c: True)
    assert plan.unchanged.__wrapped__("add__triton")
    assert not plan.unchanged.__wrapped__("no_such__triton")
    monkeypatch.setattr(plan, "proven", lambda s, c: c.id != "odd f16")
    assert not plan.unchanged.__wrapped__("add__triton")


def test_a_test_runs_where_a_kernel_its_file_or_its_engine_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "unchanged", lambda name: name == "same__triton")

    def changed(group: str, touched: str, *names: str) -> bool:
        monkeypatch.setattr(plan, "touched", lambda: frozenset({touched}))
        return plan.changed(group, "tests/kernels/test_some.py", names)

    assert not changed("kernels", "README.md", "same__triton")
    assert changed("kernels", "README.md", "same__triton", "other__triton")
    assert changed("kernels", "tests/kernels/test_some.py", "same__triton")
    assert not changed("kernels", "rooftop/lab/simt/run.py", "same__triton")
    assert changed("counters", "rooftop/lab/simt/run.py", "same__triton")


def test_a_run_is_bounded_but_for_what_an_author_is_working_at(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, most = plan.SAMPLES["kernels"]
    monkeypatch.setattr(plan, "unchanged", lambda name: name == "same__triton")

    def run(touched: tuple[str, ...], name: str) -> int:
        monkeypatch.setattr(plan, "touched", lambda: frozenset(touched))
        return sum(plan.runs("kernels", rank, "tests/kernels/test_some.py", [name]) for rank in range(2 * most))

    assert run((), "same__triton") == sample
    assert run((), "other__triton") == run(("tests/kernels/test_some.py",), "same__triton") == most
    assert run(("rooftop/kernels/norm/same__triton.py",), "same__triton") == 2 * most
    assert run(("rooftop/ladders/sgemm_cuda/06_vectorized.cu",), "sgemm_cuda/06_vectorized") == 2 * most
    assert run(tuple(f"rooftop/kernels/norm/{i}same__triton.py" for i in ("", *range(plan.FEW))), "same__triton") == sample


@pytest.mark.parametrize(("touched", "draws"), [
    ("rooftop/kernels/gemm/grouped_matmul__triton.py", True), ("rooftop/kernels/gemm/choose.py", True), ("rooftop/kernels/gemm/_group_scheduler.py", True),
    ("rooftop/kernels/gemm/matmul__triton.py", False), ("rooftop/kernels/norm/choose.py", False), ("docs/gemm.md", False),
])
def test_a_test_of_an_op_runs_where_its_kernels_or_their_choice_are_edited(touched: str, draws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, when time is over: each test has its turn."""
    monkeypatch.setattr(plan, "touched", lambda: frozenset({touched}))
    monkeypatch.setattr(plan, "CLOCK", plan.Clock(seconds=0.0))
    ops = plan.ops_of(("grouped_matmul", "bf16", 3, None))
    far = plan.SAMPLES["slow"][1]
    assert ops == ["grouped_matmul"] and plan.may_run("slow", far, (), ops) == draws
    assert [plan.runs("slow", far, "tests/lab/test_some.py", (), ops, "test_rows") for _ in range(2)] == [draws, False]
    assert plan.runs("slow", far, "tests/lab/test_some.py", (), ops, "test_others") == draws


def test_contracts_are_tested_whole_where_they_or_the_core_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CLOCK", plan.Clock(seconds=0.0))
    for touched, all_ in (("rooftop/ops/softmax.py", True), ("rooftop/core/call.py", True), ("rooftop/lab/report/site.py", False)):
        monkeypatch.setattr(plan, "touched", lambda touched=touched: frozenset({touched}))
        sample, far = (plan.runs("contracts", rank, "tests/contracts/test_calls.py", ()) for rank in (0, 1000))
        assert (sample, far) == (True, all_)


def test_a_file_of_several_kernels_draws_the_tests_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    file = next(f for f in registry.kernel_files() if f.path.stem != f.name)
    monkeypatch.setattr(plan, "touched", lambda: frozenset({f"rooftop/kernels/{file.path.parent.name}/{file.path.name}"}))
    assert plan.edited([file.name]) and not plan.edited(["add__triton"])


def test_kernels_that_only_a_gpu_runs_are_named_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import conftest

    from rooftop.lab.check import unproven

    said: list[str] = []

    class Reporter:
        section = line = staticmethod(said.append)

    kernels = [unproven.Unproven("far__gluon_sm90", "Gluon kernels run on a GPU only", ("odd bf16", "even bf16"), 5)]
    monkeypatch.setattr(unproven, "gpu_only", lambda: iter([(EVERY[0], "Gluon kernels run on a GPU only")]))
    config = SimpleNamespace(option=SimpleNamespace(collectonly=False), args_source=pytest.Config.ArgsSource.TESTPATHS)
    for found, lines in ((kernels, 2), ([], 0)):
        monkeypatch.setattr(unproven, "unproven", lambda records, found=found, **_: found)
        said.clear()
        conftest.pytest_terminal_summary(Reporter(), config)  # type: ignore[arg-type]
        assert len(said) == lines and all("far__gluon_sm90: 2 of 5 cases" in line for line in said[1:])


def test_each_file_of_single_kernels_says_which_kernels_it_runs() -> None:
    """Those that run kernels without a GPU are marked `sampled`: else their time grows with the number of ops."""
    for path in (FOLDER / "kernels").glob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        assert not ("checker.check(" in text or "from _kernels import" in text) or "pytest.mark.sampled(" in text, path.name


def test_the_seed_is_the_commit() -> None:
    head = plan.git("rev-parse", "HEAD")
    assert plan.seed() == (head or "rooftop")
    assert plan.git("no-such-command") is None


RUN = """
import pytest

@pytest.mark.sampled("kernels", "{name}__triton")
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("name", ["same", "other"])
def test_ways(name, number):
    pass

@pytest.mark.sampled("binaries", "{name}")
@pytest.mark.parametrize("name", ["same__triton", "other__triton"])
def test_compiles(name):
    pass

@pytest.mark.sampled("binaries", "never")
def test_is_beyond_the_bounds():
    pass
"""
STANDS_IN = """
from collections import Counter
from contextlib import nullcontext

SAMPLES = {"kernels": (4, 20), "binaries": (0, 2)}
WHOLE = ()

class CLOCK:
    left_out = Counter()
    running = nullcontext

def seed():
    return "seed"

def ops_of(values):
    return []

def may_run(group, rank, names, ops):
    return names != ["never"]

def runs(group, rank, path, names, ops, test):
    CLOCK.left_out["slow__triton"] = 3
    return rank < SAMPLES[group][0] or path in TOUCHED or any(name != "same__triton" for name in names)

def waiting():
    return ["KERNEL waits"]
"""


@pytest.mark.parametrize(
    ("words", "touched", "passed"),
    [
        ((), (), {"ways": (10, 14), "compiles": (1, 1), "is_beyond": (0, 0)}),  # of the kernel that changed, and of the four in the sample the other's
        (("--all",), (), {"ways": (20, 20), "compiles": (2, 2), "is_beyond": (1, 1)}),
        (("tests/test_some.py",), (), {"ways": (20, 20), "compiles": (2, 2), "is_beyond": (1, 1)}),
        (("-n", "1"), ("tests/test_some.py",), {"ways": (20, 20), "compiles": (2, 2), "is_beyond": (0, 0)}),
    ],
)
def test_a_marked_test_runs_where_its_kernel_has_changed_or_by_turns(
    words: tuple[str, ...], touched: tuple[str, ...], passed: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "plan.py").write_text(STANDS_IN.replace("TOUCHED", repr(set(touched))))
    (tmp_path / "conftest.py").write_text((FOLDER / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "tests" / "test_some.py").write_text(RUN)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\ntestpaths = tests\nmarkers = sampled(group): by turns\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-v", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert ("slow__triton: 3 left out" in done.stdout) == (words == ("-n", "1") or not words), done.stdout
    for what, (least, most) in passed.items():
        assert least <= ran(done.stdout, what) <= most, done.stdout


def ran(said: str, what: str) -> int:
    return sum(f"test_{what}" in line and "PASSED" in line for line in said.splitlines())
