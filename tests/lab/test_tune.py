"""Tuning against a simulated device with known times: who wins, what is dropped, what is tuned at all."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rooftop.core import registry
from rooftop.core.compile import Job
from rooftop.core.spec import TARGETS, Input, case
from rooftop.lab import aot, candidates
from rooftop.lab.candidates import Subject
from rooftop.lab.records import store
from rooftop.lab.timing.timer import Call, Candidate, Clock, Program, Timer, sets_needed
from rooftop.lab.tune import contest, tables, tuner
from rooftop.lab.tune.tables import TuneError

MIB = 1 << 20
SIZE = 64 * MIB
H100 = TARGETS[90]
H800 = dataclasses.replace(H100, name="NVIDIA H800")


# -- a device whose times are known --------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class Kernel:
    name: str
    seconds: float
    scatter: float = 0.0

    def __call__(self) -> None:
        pass


class Simulated:
    """Its clock moves only as kernels run; each sample of one is off by a factor of its own, `scatter` the sigma of the log."""

    l2_bytes = 50 * MIB

    def __init__(self, seed: int = 1) -> None:
        self.random, self.clock = random.Random(seed), 0.0
        self.ran: dict[str, int] = {}

    def now(self) -> float:
        return self.clock

    def pause(self, seconds: float) -> None:
        self.clock += seconds

    def empty(self, clock: Clock) -> Call:
        return Kernel("nothing", 1e-6)

    def describe(self) -> dict[str, Any]:
        return {"name": H100.name}

    def captured(self, calls: Sequence[Call], *, cold: bool) -> Program:
        return SimulatedProgram(self, calls)

    eager = captured

    def host(self, calls: Sequence[Call]) -> Program:
        raise AssertionError("tuning has no use for the host clock")


class SimulatedProgram:
    method = "graph"

    def __init__(self, device: Simulated, calls: Sequence[Call]) -> None:
        first = calls[0]
        assert isinstance(first, Kernel)
        self.device, self.kernel, self.calls = device, first, len(calls)

    def run(self, replays: int, lead: int) -> float:
        one = self.kernel.seconds * self.calls
        seconds = one * replays * 2.718281828 ** self.device.random.gauss(0, self.kernel.scatter)
        self.device.ran[self.kernel.name] = self.device.ran.get(self.kernel.name, 0) + 1
        self.device.clock += seconds + lead * one + 20e-6
        return seconds


def entrant(name: str, seconds: float, scatter: float = 0.002) -> Candidate:
    return Candidate(name, [Kernel(name, seconds, scatter) for _ in range(sets_needed(SIZE, Simulated.l2_bytes))])


def rounds(device: Simulated, times: Mapping[str, float], scatter: float = 0.002) -> contest.Outcome:
    return contest.contest(Timer(device), [entrant(n, s * 1e-6, scatter) for n, s in times.items()], size=SIZE)


# -- who wins ------------------------------------------------------------------------------------------------------


def test_the_fastest_wins_and_what_is_clearly_slower_is_dropped_early() -> None:
    device = Simulated()
    found = rounds(device, {"heuristic": 100, "slow": 150, "a": 97, "best": 93, "b": 99})
    assert (found.verdict, found.pick) == ("faster", "best")
    assert found.ratio == pytest.approx(0.93, abs=0.003)
    assert found.dropped == {"slow": pytest.approx(150 / 93, rel=0.01)}
    assert device.ran["slow"] < device.ran["a"], "a dropped config takes no further samples"
    assert set(found.seconds) == {"heuristic", "slow", "a", "best", "b"}
    assert found.seconds["best"] == pytest.approx(93e-6, rel=0.005)
    assert set(found.last.timings) == {"heuristic", "best"}, "the pick was measured once more beside the heuristic alone"


def test_the_heuristic_stays_in_the_field_however_slow_it_is() -> None:
    found = rounds(Simulated(), {"heuristic": 200, "a": 100, "b": 101, "c": 102})
    assert (found.verdict, found.pick) == ("faster", "a")
    assert found.ratio == pytest.approx(0.5, abs=0.005)
    assert "heuristic" not in found.dropped


def test_where_none_is_faster_the_heuristic_stands() -> None:
    for times in ({"h": 100, "a": 100, "b": 103}, {"h": 100, "a": 104}, {"h": 100, "a": 130, "b": 140, "c": 150}):
        found = rounds(Simulated(), dict(times))
        assert (found.verdict, found.pick, found.ratio) == ("heuristic", None, None), times


def test_two_percent_in_ten_percent_of_noise_is_not_kept() -> None:
    found = rounds(Simulated(), {"heuristic": 100, "a": 98, "b": 99}, scatter=0.4)
    assert found.pick is None
    assert found.verdict == "unresolved"


def test_many_configs_that_are_the_same_give_no_winner() -> None:
    """The best of twenty lucky draws would win now and then, if it were not measured once more."""
    picks = [rounds(Simulated(seed), {"heuristic": 100, **{f"c{i}": 100 for i in range(20)}}, scatter=0.004).pick for seed in range(20)]
    assert sum(p is not None for p in picks) <= 1


def test_large_fields_are_thinned_twice() -> None:
    device = Simulated()
    found = rounds(device, {"heuristic": 100, **{f"c{i:02d}": 96 + i for i in range(19)}})  # up to 114: all within 1.15 of the fastest
    assert found.pick == "c00"
    assert set(found.dropped) >= {f"c{i:02d}" for i in range(6, 19)}
    assert not {"c00", "c01", "c02"} & set(found.dropped)


def test_a_field_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="1 configs"):
        rounds(Simulated(), {"heuristic": 100})


# -- what is tuned -------------------------------------------------------------------------------------------------


def test_each_implementation_is_tuned_once_on_its_bench_cases() -> None:
    todo = tuner.jobs(candidates.find(["sgemm_cuda/16", "matmul"]), dtype="f32")
    assert len({j.title for j in todo}) == len(todo)
    assert {j.implementation.name for j in todo} == {i.name for i in registry.implementations("matmul")}
    assert all("bench" in j.case.tags for j in todo)
    assert [j.case.id for j in tuner.jobs(candidates.find(["add__triton"]), case="odd f32")] == ["odd f32"]


def test_the_plan_leaves_out_what_cannot_be_tuned_and_says_why() -> None:
    summary = tuner.Summary()
    found = candidates.find(["softmax__cuda_sm90", "sgemm_cuda/01", "add__triton"])
    again = tuner.Job(found[-1], dataclasses.replace(found[-1].op.case("1 Mi elements f32"), name="the same again"))
    planned = tuner.plan([*tuner.jobs(found, dtype="f32"), again], TARGETS[80], [], summary)
    assert {j.implementation.name for j in planned} == {"add__triton"}
    assert any("softmax__cuda_sm90" in line and "90" in line for line in summary.skipped)
    assert any("sgemm_cuda/01_naive" in line and "no config but the heuristic's" in line for line in summary.skipped)
    assert any("the same again" in line and "same shapes as 1 Mi elements f32" in line for line in summary.skipped)


def test_unusual_strides_are_not_tuned_for_they_are_not_in_the_key() -> None:
    subject = candidates.find(["sgemm_cuda/16"])[0]
    odd = case("strided", a=Input((64, 64), layout="padded"), b=Input((64, 64)), alpha=1.0, beta=0.0)
    job = tuner.Job(subject, dataclasses.replace(odd, inputs={**subject.op.case("512 cubed f32").inputs, **odd.inputs}))
    assert "*" in job.signature(H100)
    summary = tuner.Summary()
    assert not tuner.plan([job], H100, [], summary)
    assert "strides or alignments" in summary.skipped[0]


def test_what_was_never_tuned_comes_first_then_the_longest_ago() -> None:
    todo = tuner.jobs(candidates.find(["add"]))
    assert len(todo) >= 4

    def record(job: tuner.Job, at: str, code: str | None = None) -> store.Record:
        return store.Record({
            "kind": "tune", "subject": job.implementation.name, "op": "add", "case": job.case.id, "at": at, "device": {"name": H100.name},
            **job.identity(H100).facts, **({"digest": code} if code else {}),
        })

    known = [record(todo[0], "2026-03-01"), record(todo[1], "2026-02-01"), record(todo[2], "2026-04-01", "other code")]
    assert [j.case.id for j in tuner.plan(todo, H100, known, tuner.Summary())] == [todo[i].case.id for i in (2, 3, 1, 0)]


def test_a_pinned_subject_takes_its_config_whatever_the_problem_and_leaves_the_kernel_alone() -> None:
    (subject,) = candidates.find(["add__triton"])
    kernel = subject.implementation
    assert kernel is not None
    problem = subject.op.problem(subject.op.case("odd f32"), H100)
    other = kernel.configs(problem)[-1]
    fixed = tuner.pinned(subject, other).implementation
    assert fixed is not None and fixed.resolve(problem) == (other, "tried")
    assert kernel.resolve(problem) == (kernel.choose(problem), "heuristic") != (other, "heuristic")
    assert fixed.digest == kernel.digest


def test_every_config_of_a_cuda_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Job] = []
    monkeypatch.setattr(tuner, "compile_many", seen.extend)
    todo = tuner.jobs(candidates.find(["matmul__simt__cuda_sm80", "add"]), dtype="f32")
    assert tuner.compile_configs(todo, H100) == len(seen) == len({tuple(kernels) for _, _, _, kernels, _ in seen}) > 3
    assert {target for _, _, target, _, _ in seen} == {"sm_90a"}


@pytest.mark.sampled("slow")
def test_triton_configs_are_compiled_in_other_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ROOFTOP_JOBS", "1")
    job = tuner.jobs(candidates.find(["add"]), case="odd f32")[0]
    compiler = tuner.TritonCompiler()
    try:
        assert compiler(job, H100) == len(job.configs(H100))
    finally:
        compiler.close()
    assert len(list(tmp_path.rglob("*.cubin"))) == len(job.configs(H100))
    assert aot.compile_triton("add__triton", job.case, H100, {"nonsense": 1}) is False


@pytest.mark.sampled("slow")
def test_what_is_about_to_run_is_compiled_first_and_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, folder in (("TRITON_CACHE_DIR", "triton"), ("ROOFTOP_CACHE", "rooftop"), ("ROOFTOP_JOBS", "")):
        monkeypatch.setenv(name, str(tmp_path / folder) if folder else "1")
    subject = candidates.find(["silu__triton"])[0]
    todo = [(subject, c) for c in subject.op.cases if c.name in ("odd", "one block") or "bench" in c.tags]
    assert subject.implementation is not None
    job = todo[0][1]
    todo += [(tuner.pinned(subject, c), job) for c in subject.implementation.configs(subject.kernel_problem(job, H100)[1])[:3]]
    found = aot.compile_first(todo, H100)
    assert found == len(list((tmp_path / "triton").rglob("*.cubin"))) > aot.FEW
    monkeypatch.setattr(aot, "ProcessPoolExecutor", None)
    assert aot.compile_first(todo, H100) == found


# -- a job from its configs to its table ---------------------------------------------------------------------------

LURE = '''
from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.core.spec import Launch


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr, SKIP: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, inside)
    if not SKIP:
        total += tl.load(y + at, inside)
    tl.store(out + at, total, inside)


@dataclass(frozen=True)
class Config:
    block: int
    skip: bool


def supports(p):
    return None


def choose(p):
    return Config(256, False)


def configs(p):
    return [Config(1024, False), Config(1024, True), Config(1000, False)]  # right; half the reading left out; not a power of two


def launches(p, config):
    n = p["x"].numel
    args = {"x": "x", "y": "y", "out": "out", "n": n, "BLOCK": config.block, "SKIP": config.skip}
    return [Launch(kernel=_add, grid=(-(-n // config.block),), args=args, warps=4)]
'''


class OnPaper(tuner.Tuner):
    """Checks are real, in the interpreter; times are those given, in microseconds."""

    times: Mapping[str, float]
    scatter = 0.002

    def faults(self, job: tuner.Job, configs: Mapping[str, Any], where: str = "auto") -> dict[str, str]:
        return super().faults(job, configs, "auto")

    def measure(self, job: tuner.Job, configs: Mapping[str, Any]) -> contest.Outcome:
        self.entered = list(configs)
        return contest.contest(self.timer, [entrant(n, self.times[n] * 1e-6, self.scatter) for n in configs], size=SIZE)


@pytest.fixture
def lure(tmp_path: Path) -> tuner.Job:
    path = tmp_path / "add__lure__triton.py"
    path.write_text(LURE, encoding="utf-8")
    return tuner.jobs(candidates.find([str(path)]), case="odd f32")[0]


def tuned(tmp_path: Path, todo: Sequence[tuner.Job], times: Mapping[str, float], scatter: float = 0.002, **how: Any) -> OnPaper:
    with store.Writer(tmp_path / "records", H100.name) as writer:
        tuner = OnPaper(tmp_path / "tuned", H100, Timer(Simulated()), writer, how.pop("deadline", time.monotonic() + 1e6))
        tuner.times, tuner.scatter = times, scatter
        tuner.run(todo, lambda text: None)
    return tuner


RIGHT, BASE, WRONG, BROKEN = (f"block={b}, skip={s}" for b, s in ((1024, False), (256, False), (1024, True), (1000, False)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the checks are those of the interpreter")
def test_a_wrong_config_never_wins_however_fast_it_is(tmp_path: Path, lure: tuner.Job) -> None:
    tuner = tuned(tmp_path, [lure], {BASE: 100, RIGHT: 90, WRONG: 20, BROKEN: 10})
    assert tuner.entered == [BASE, RIGHT]
    (row,) = store.read(tmp_path / "records")
    assert (row["kind"], row["verdict"], row["pick"], row["config"]) == ("tune", "faster", {"block": 1024, "skip": False}, {"block": 256, "skip": False})
    assert row["over_heuristic"] == pytest.approx(1 / 0.9, abs=0.01)
    faults = {tables.label(r["config"]): (r["fault"] or "").partition(":")[0] for r in row["configs"]}
    assert faults == {BASE: "", RIGHT: "", WRONG: "wrong", BROKEN: "error"}
    assert len(tuner.summary.wrong) == 1 and WRONG in tuner.summary.wrong[0]
    assert len(tuner.summary.failed) == 1 and BROKEN in tuner.summary.failed[0]
    path = tables.table_path(tmp_path / "tuned", H100.name, lure.implementation.name)
    assert tuner.summary.tables == [str(path)]
    entry = tables.read_table(path)[lure.signature(H100)]
    assert (entry["config"], entry["digest"], entry["case"]) == ({"block": 1024, "skip": False}, lure.implementation.digest, "odd f32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the checks are those of the interpreter")
def test_a_heuristic_that_stands_replaces_the_config_and_noise_leaves_it(tmp_path: Path, lure: tuner.Job) -> None:
    path = tables.table_path(tmp_path / "tuned", H100.name, lure.implementation.name)
    tuned(tmp_path, [lure], {BASE: 100, RIGHT: 90})
    first = path.read_text(encoding="utf-8")
    tuner = tuned(tmp_path, [lure], {BASE: 100, RIGHT: 99}, scatter=0.5)
    assert tuner.summary.written[0]["verdict"] == "unresolved"
    assert path.read_text(encoding="utf-8") == first
    tuned(tmp_path, [lure], {BASE: 100, RIGHT: 120})
    (entry,) = tables.read_table(path).values()
    assert (entry["config"], entry["over_heuristic"]) == (None, None)


def test_beyond_the_deadline_nothing_begins(tmp_path: Path, lure: tuner.Job) -> None:
    tuner = tuned(tmp_path, [lure], {}, deadline=time.monotonic() - 1)
    assert tuner.summary.left == [lure.title]
    assert not (tmp_path / "tuned").exists()


def test_a_users_own_kernel_has_no_table_in_the_package(lure: tuner.Job) -> None:
    with pytest.raises(TuneError, match="--keep DIR"):
        tuner.require_shipped([lure])
    tuner.require_shipped(tuner.jobs(candidates.find(["add", "sgemm_cuda/03"])))


def test_subjects_without_a_kernel_are_not_tuned() -> None:
    op = registry.op("softmax")
    assert tuner.jobs([Subject("peer:torch", op, peer="torch")]) == []
