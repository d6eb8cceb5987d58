"""Sweeps: which points are drawn, what their record holds, which points are said to fall behind; the command where there is no GPU."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from _simulated_device import Kernel, Simulated
from typer.testing import CliRunner

from rooftop.core import registry
from rooftop.core.op import Sizes
from rooftop.core.spec import TARGETS, Input
from rooftop.lab.candidates import Subject
from rooftop.lab.inputs import make, rounded
from rooftop.lab.records import rewriting, store
from rooftop.lab.records.record import Record
from rooftop.lab.report import sweep_page
from rooftop.lab.report.data import gather
from rooftop.lab.report.site import environment
from rooftop.lab.timing import models, sweep, sweep_points, swept
from rooftop.lab.timing.bench_group import Bench
from rooftop.lab.timing.timer import Candidate, Timer
from rooftop.lab.tune import regret, worst

H200 = TARGETS["h200"]
GIB = 1 << 30
SWEPT = [n for n in registry.op_names() if getattr(registry.op(n), "swept", None)]


# -- what is drawn -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SWEPT)
def test_points_of_an_op_fit_its_contract_and_the_memory(name: str) -> None:
    op = registry.op(name)
    for one in (op, op.bwd) if op.bwd else (op,):
        of = sweep_points.swept(one)
        found = sweep_points.draw(one, of, H200, 30 * GIB, seed=3, count=16)
        assert found == sweep_points.draw(one, of, H200, 30 * GIB, seed=3, count=16) and found != sweep_points.draw(one, of, H200, 30 * GIB, seed=4, count=16)
        assert any(p.few for p in found) == bool(of.rows) and {p.dtype for p in found} <= set(of.dtypes)
        for p in found:
            problem = one.problem(p.case(of), H200)
            size = sweep_points.held(problem)
            assert all(low <= v <= high for (n, v) in p.sizes for low, high in [of.ranges[n]])
            assert size >= sweep_points.LEAST and size * sweep_points.sets_needed(size, H200.l2_bytes) <= 30 * GIB
            if of.rows and not p.few and dict(p.sizes)[of.rows] < of.ranges[of.rows][1]:
                assert 0.4 * sweep_points.MANY[0] <= one.work(problem).bytes <= 1.5 * sweep_points.MANY[1], p
        assert of.models == {} or set(of.models.values()) <= set(models.WIDTHS)


def test_all_ops_of_one_gpu_have_sizes() -> None:
    without = {n for n in registry.op_names() if getattr(registry.op(n), "swept", None) is None}
    assert without == {n for n in registry.op_names() if registry.op(n).ranks is not None} and without
    with pytest.raises(ValueError, match="of several GPUs"):
        sweep_points.swept(registry.op(min(without)))
    assert registry.op("rope_").swept is registry.op("rope").swept


@pytest.mark.parametrize("name", SWEPT)
def test_the_inputs_of_a_small_point_are_valid(name: str) -> None:
    op = registry.op(name)
    of = sweep_points.swept(op)
    sizes = {n: low if n in of.powers else min(max(low, 3), high) for n, (low, high) in of.ranges.items()}
    case = of.case(of.dtypes[-1], sizes)
    tensors, options = make(op, case, "cpu", 1)
    args = op.arguments(tensors, options)
    assert op.faults is None or op.faults(*args) is None
    given = rounded(op, op.problem(case), op.reference(*args))
    assert all(t.isfinite().all() for t in given.values() if t.is_floating_point() and t.element_size() > 1)
    if name.startswith("decompress"):
        assert not given["damaged"].any()


def test_sizes_that_are_powers_of_two() -> None:
    op = registry.op("spmm_bsr")
    found = sweep_points.draw(op, sweep_points.swept(op), H200, 30 * GIB, count=30, of_models=False)
    assert {dict(p.sizes)["side"] for p in found} == {8, 16, 32, 64, 128}
    with pytest.raises(ValueError, match="side is 8 to 24; it is a power of two"):
        sweep_points.narrowed(sweep_points.swept(op), {"side": (8, 24)})


def test_large_heads_of_models_are_drawn() -> None:
    """At a model's widths a point may move more than one that is drawn; what fits at no number of tokens is not tried again and again."""
    op = registry.op("linear_cross_entropy")
    found = [dict(p.sizes) for p in sweep_points.draw(op, sweep_points.swept(op), H200, 30 * GIB, count=4)]
    assert {(4096, 128256), (768, 50257)} <= {(s["hidden"], s["classes"]) for s in found}
    assert (14336, 250880) not in {(s["hidden"], s["classes"]) for s in found}, "7 GiB of weights, and as many of their gradient"


def test_the_models_are_forty_and_their_widths_come_first() -> None:
    assert len({m.name for m in models.MODELS}) == len(models.MODELS) >= 40
    op = registry.op("rms_norm")
    found = sweep_points.draw(op, sweep_points.swept(op), H200, 30 * GIB, count=5)
    columns = [dict(p.sizes)["columns"] for p in found]
    assert 768 in columns and columns[:-5] == [w for (w,) in models.widths(("hidden",))]
    with pytest.raises(ValueError, match="depth is no width of a model"):
        next(models.widths(("depth",)))


def test_half_of_what_is_drawn_is_a_multiple_of_16() -> None:
    op = registry.op("rms_norm")
    found = sweep_points.draw(op, sweep_points.swept(op), H200, 30 * GIB, count=60, of_models=False)
    many = [dict(p.sizes)["columns"] % 16 == 0 for p in found if not p.few]
    assert 0.4 < sum(many) / len(many) < 0.8


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_where_a_few_rows_are_too_little_many_are_drawn() -> None:
    op = registry.op("rms_norm")
    short = sweep_points.narrowed(sweep_points.swept(op), {"columns": (64, 384)})
    found = sweep_points.draw(op, short, H200, 30 * GIB, count=8, of_models=False)
    assert len(found) == 8
    assert not any(p.few for p in found)


def test_ranges_that_do_not_fit_are_refused() -> None:
    op = registry.op("rms_norm")
    of = sweep_points.swept(op)
    for message, ranges in (("width", {"width": (1, 2)}), ("its range is", {"columns": (1, 64)}), ("its range is", {"columns": (128, 64)})):
        with pytest.raises(ValueError, match=message):
            sweep_points.narrowed(of, ranges)
    with pytest.raises(ValueError, match="dtype 'f64'"):
        sweep_points.narrowed(of, {}, "f64")
    large = sweep_points.narrowed(of, {"rows": (1 << 20, 1 << 20), "columns": (1 << 20, 1 << 20)})
    with pytest.raises(ValueError, match=r"needs 4.1e[+]03 GiB, and 30 GiB of the device may be taken"):
        sweep_points.draw(op, large, H200, 30 * GIB)
    with pytest.raises(ValueError, match="200 GiB do not fit 30 GiB"):
        sweep_points.draw(op, of, H200, 30 * GIB, moved=(200 * GIB, 300 * GIB))
    with pytest.raises(ValueError, match=r"400 sizes drawn from rows .* none fits"):
        sweep_points.draw(op, sweep_points.narrowed(of, {"rows": (1, 2), "columns": (64, 100)}), H200, 30 * GIB, of_models=False)
    with pytest.raises(ValueError, match=r"bytes are 5\.\.2"):
        sweep_points.draw(op, of, H200, 30 * GIB, moved=(5, 2))
    with pytest.raises(ValueError, match="'depth' is no size; there are rows"):
        Sizes(lambda dtype, rows: {}, {"rows": (1, 2)}, models={"depth": "hidden"})
    with pytest.raises(ValueError, match="the range of rows is 0 to 2"):
        Sizes(lambda dtype, rows: {}, {"rows": (0, 2)})


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["all_reduce_ranks"], 1, "all_reduce_ranks has no sizes: it is of several GPUs"),
        (["rms_norm", "--total", "0"], 1, "total is 0"),
        (["rms_norm", "--budget", "-4"], 1, "budget is -4; it must be above 0 seconds"),
        (["rms_norm", "--size", "columns"], 1, "no range of a size"),
        (["rms_norm", "--size", "columns=1..9"], 1, "its range is 64"),
        (["rms_norm", "--bytes", "much"], 1, "no range of bytes"),
        (["rms_norm", "--direction", "up"], 1, "direction is 'up'"),
        (["rms_norm", "--dtype", "f64"], 1, "dtype 'f64' is not swept"),
        (["reduce", "--direction", "backward"], 1, "reduce has no backward"),
        (["sgemm_cuda"], 1, "no op and no implementation"),
        (["rms_nrm"], 1, "rms_nrm"),
        (["rms_norm"], 3, "sweep needs an NVIDIA GPU"),
    ],
)
def test_the_command_says_what_is_wrong(words: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rooftop.lab import cli

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["rooftop", "sweep", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code and said in capsys.readouterr().err


# -- what is measured --------------------------------------------------------------------------------------------------

TRUE = {"ours": 1.0, "torch": 1.5, "ceiling:copy torch copy_": 0.9}  # times of a byte, in picoseconds


class Plain(Bench):
    """A field on a device whose true times are known, with real tensors."""

    wrong = False
    wrong_config = ""

    def candidate(self, s: Subject, sets: Any, options: Any) -> Candidate:
        f, op = s.function if s.peer else self.f.op.reference, self.f.op
        off = 1.5 if s.peer is None and (Plain.wrong or (Plain.wrong_config and Plain.wrong_config in s.name)) else 1.0
        kernels: list[Any] = []
        for tensors in sets:
            kernel = Kernel(s.name, self.work.bytes * TRUE[s.peer or "ours"] * 1e-12)
            run = partial(lambda t: f(*op.arguments(t, options)), tensors)
            kernels.append(_Call(kernel, (lambda run=run: {"out": off * run()}) if s.peer is None else run))
        return Candidate(s.name, kernels)

    def copies(self, size: int, count: int) -> list[Candidate]:
        name = "ceiling:copy torch copy_"
        return [Candidate(name, [Kernel(name, self.work.bytes * TRUE[name] * 1e-12) for _ in range(count)])]

    def once(self, c: Candidate) -> float:
        return 1e-4


class _Call(Kernel):
    def __init__(self, kernel: Kernel, run: Any) -> None:
        super().__init__(kernel.name, kernel.seconds)
        self.run = run

    def __call__(self) -> Any:
        return self.run()


def swept_add(monkeypatch: pytest.MonkeyPatch, wrong: bool = False) -> tuple[sweep.Sweep, store.Record]:
    op = registry.op("add")
    of = Sizes(lambda dtype, rows, columns: dict.fromkeys("xy", Input((rows, columns), dtype)), {"rows": (256, 256), "columns": (1024, 2048)}, axis="columns")
    monkeypatch.setattr(sweep, "Bench", Plain)
    monkeypatch.setattr(Plain, "wrong", wrong)
    monkeypatch.setattr(sweep.Sweep, "compile", lambda self, which: 0)
    points = sweep_points.draw(op, of, H200, 30 * GIB, count=3)
    run = sweep.Sweep(op, of, points, H200, timer=Timer(Simulated(l2_bytes=1 << 20)), compiled=0)
    run.device = TARGETS["h200"].__class__(**{**vars(H200), "l2_bytes": 1 << 20})
    run.on = "cpu"
    return run, run.run(60.0, lambda text: None)


def test_a_record_holds_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, record = swept_add(monkeypatch)
    assert not run.wrong and record["wrong"] == [] and len(record["us"]) == 3
    with store.Writer(tmp_path, H200.name) as writer:
        writer.write(record)
    (read,) = store.read(tmp_path)
    for p, point in zip(swept.points(read), run.points, strict=True):
        assert (p.sizes, p.dtype) == (dict(point.sizes), point.dtype)
        assert p.aligned == (p.sizes["columns"] * {"bf16": 2, "f32": 4}[p.dtype] % 16 == 0)
        assert p.seconds == pytest.approx(p.moved * 1e-12, rel=1e-3) and p.peers == {"torch": pytest.approx(1.5 * p.seconds, rel=1e-3)}
        assert p.share == pytest.approx(0.9, rel=2e-3) and p.copy == p.roof


def one_config_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"block=1024, warps=8": 0.5}
    slow = Plain.candidate

    def candidate(self: Plain, s: Subject, sets: Any, options: Any) -> Candidate:
        made = slow(self, s, sets, options)
        for call in made.calls:
            call.seconds *= next((f for text, f in quick.items() if text in s.name and "triton" in s.name), 1.0)
        return made

    monkeypatch.setattr(Plain, "candidate", candidate)


def test_a_regret_is_the_time_of_the_choice_over_the_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain, _ = swept_add(monkeypatch)
    one_config_is_quick(monkeypatch)
    run = regret.Regret(plain.op, plain.of, plain.points, plain.device, timer=plain.timer)
    run.on = "cpu"
    said: list[str] = []
    saved: list[dict[str, Any]] = []
    monkeypatch.setattr(sweep, "SAVE_S", 0.0)
    monkeypatch.setattr(sweep, "SAVES", 1e9)
    made = run.run(60.0, said.append, saved.append)
    every = list(run.every.values())
    assert [len(r["best"]) for r in saved] == [1, 2, 3], "what there is when the time ends is on disk"
    assert sum("the best of" in text for text in said) == 3
    with store.Writer(tmp_path, "NVIDIA H200") as writer:
        writer.write(made)
    (record,) = store.read(tmp_path)
    assert record["subject"] == "regret of add" and len(record["us"]) == len(run.points) == 3
    assert all("block=1024, warps=8" in best for best in record["best"]) and set(record["peers"]) == {"torch"}
    assert regret.ratios(record) == pytest.approx([2.0] * 3, rel=0.01) and regret.mean(regret.ratios(record)) == pytest.approx(2.0, rel=0.01)
    assert all(e["by"] == "add__triton" and len(e["seconds"]) > 3 and "torch" not in str(e["seconds"]) for e in every)
    assert all(n == len(e["seconds"]) <= 2 + worst.FIRST + worst.DRAWN for n, e in zip(record["tried"], (run.every[i] for i in range(3)), strict=True))
    assert sweep_page.newest([record]) == {}, "the page of an op draws its sweep"
    assert run.run(-1.0, lambda text: None)["us"] == []


def test_a_kernel_that_computes_something_else_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = swept_add(monkeypatch)
    one_config_is_quick(monkeypatch)
    monkeypatch.setattr(Plain, "wrong_config", "block=1024, warps=8")
    run = regret.Regret(plain.op, plain.of, plain.points[:1], plain.device, timer=plain.timer)
    run.on = "cpu"
    made = run.run(60.0, lambda text: None)
    assert made["best"] and all("block=1024, warps=8" not in best for best in made["best"])
    assert len(run.wrong) == 1 and "block=1024, warps=8" in run.wrong[0] and "away from the other kernel's" in run.wrong[0]


def test_what_takes_twice_as_long_in_one_call_is_timed_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = swept_add(monkeypatch)
    one_config_is_quick(monkeypatch)
    slow = "block=1024, warps=8"
    monkeypatch.setattr(Plain, "once", lambda self, c: 3e-4 if slow in c.name else 1e-4)
    run = regret.Regret(plain.op, plain.of, plain.points[:1], plain.device, timer=plain.timer)
    run.on = "cpu"
    (field,) = run.fields([0])
    made = run.run(60.0, lambda text: None)
    (every,) = run.every.values()
    left = [s.name for s in field.entries if slow in s.name]
    assert left and made["tried"] == [len(field.entries)] and set(every["seconds"]) == {s.name for s in field.entries} - set(left)


def test_the_worst_points_have_a_bound_and_the_next_better_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of add, whose configs all take as long on the simulated device, but for one."""
    run, record = swept_add(monkeypatch)
    one_config_is_quick(monkeypatch)
    found = worst.table(run, swept.points(record), 2, 60.0)
    assert len(found) == 2 and found[0]["share"] <= found[1]["share"]
    for row in found:
        assert row["kernel"] == "add__triton" and "block=" in row["config"]
        assert "block=1024, warps=8" in row["next"] and row["faster"] == pytest.approx(2.0, rel=0.01)
        assert "waves" in row["bound"] and "KiB in flight" in row["bound"] and "spilled" not in row["bound"]
    assert worst.table(run, swept.points(record), 1, -1.0)[0]["next"] == "not timed: the budget is spent"
    assert 20 << 10 < worst.needed(H200) < 40 << 10


def test_what_bounds_a_kernel() -> None:
    """Bytes in flight: of the registers' loads by all resident threads, of copies to shared memory by all resident blocks; few blocks are not
    multiplied by those that could be resident."""
    occupied = {"blocks": 4, "limiter": "registers", "percent": 50.0}
    facts = {"kernel": "k<float>", "occupancy": occupied, "registers": 40, "spills": 8, "threads": 256, "shared": 0, "grid": [132 * 8]}
    loads = worst.bound({**facts, "counts": {"LDG.128": 2, "LDG.16": 1, "FFMA": 9}}, H200)
    assert (loads.waves, loads.in_flight, loads.spills) == (2.0, 4 * 256 * 34, 8) and "8 B spilled" in loads.text
    few = worst.bound({**facts, "grid": [100], "counts": {"LDG.128": 2}}, H200)
    assert few.in_flight == 256 * 32 and few.waves == pytest.approx(100 / (4 * 132))
    copied = worst.bound({**facts, "shared": 40960, "counts": {"UBLKCP": 1, "LDG.32": 1}}, H200)
    assert copied.in_flight == 4 * 40960


def test_a_result_that_is_not_torchs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run, record = swept_add(monkeypatch, wrong=True)
    assert record["wrong"] == [0, 1, 2] and len(run.wrong) == 3 and "add__triton" in run.wrong[0] and "away from torch's" in run.wrong[0]


def test_a_spent_budget_leaves_points_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = swept_add(monkeypatch)
    assert run.run(-1.0, lambda text: None)["us"] == []


def test_what_the_budget_does_not_reach_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = swept_add(monkeypatch)
    monkeypatch.setattr(sweep.Sweep, "batch", 2)
    asked: list[list[int]] = []
    monkeypatch.setattr(run, "compile", lambda which: asked.append(list(which)) or 1)
    order, said = list(sweep._scattered_order(3)), list[str]()
    assert len(run.run(60.0, said.append)["us"]) == 3 and asked == [order[:2], order[2:]]
    assert said[-1].startswith("add: 3 of 3 points in ") and "2 programs compiled" in said[-1]
    row = run.row

    def slow(i: int, say: Any) -> Any:
        sweep.time.sleep(0.3)
        return row(i, say)

    monkeypatch.setattr(run, "row", slow)
    asked.clear()
    assert len(run.run(0.2, said.append)["us"]) == 1 and asked == [order[:2]]


def test_a_point_that_raises_is_named_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    run, whole = swept_add(monkeypatch)
    row = run.row
    bad = next(sweep._scattered_order(3))

    def once(i: int, say: Any) -> Any:
        if i == bad:
            raise RuntimeError("no such kernel\nand more")
        return row(i, say)

    monkeypatch.setattr(run, "row", once)
    monkeypatch.setattr(sweep, "SAVE_S", 0.0)
    monkeypatch.setattr(sweep, "SAVES", 1e9)
    saved: list[store.Record] = []
    record = run.run(60.0, lambda text: None, saved.append)
    assert len(record["us"]) == 2 and [len(r["us"]) for r in saved] == [1, 2] and saved[-1] == record
    assert [w.endswith("RuntimeError: no such kernel") for w in run.wrong] == [True] and len(whole["us"]) == 3


def test_a_peer_that_lacks_memory_does_not_end_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = swept_add(monkeypatch)
    made = Plain.candidate

    def short(self: Any, s: Subject, sets: Any, options: Any) -> Candidate:
        if s.peer:
            raise torch.OutOfMemoryError("out of memory")
        return made(self, s, sets, options)

    monkeypatch.setattr(Plain, "candidate", short)
    found = run.run(60.0, lambda text: None)
    assert len(found["us"]) == 3 and found["peers"] == {} and not run.wrong


def test_a_lost_context_ends_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = swept_add(monkeypatch)
    row, began = run.row, iter((True, False))

    def fails(i: int, say: Any) -> Any:
        if next(began):
            return row(i, say)
        raise RuntimeError("CUDA error: misaligned address")

    monkeypatch.setattr(run, "row", fails)
    monkeypatch.setattr(run, "on", "cuda")
    monkeypatch.setattr(sweep, "context_lost", lambda: True)
    said: list[str] = []
    first = run.points[next(sweep._scattered_order(3))]
    monkeypatch.setattr(sweep, "make", lambda op, case, on, seed: make(op, case, "cpu", seed))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    record = run.run(60.0, said.append)
    assert run.ended and [record["sizes"]["columns"], len(record["us"])] == [[dict(first.sizes)["columns"]], 1]
    assert any("2 points left out: the CUDA context is lost" in text for text in said)


def test_a_record_that_grows_is_one_line(tmp_path: Path) -> None:
    with store.Writer(tmp_path, "H200") as writer:
        writer.write(record({1000: 0.9, 1100: 0.8}))
        writer.write(record({1000: 0.9}) | {"op": "y"})
        writer.write(record({1000: 0.9, 1100: 0.8, 1200: 0.7}) | {"op": "y"}, over=True)
        writer.write(record({1000: 0.5}) | {"op": "y"}, over=True)
        assert [(r["op"], len(r["us"])) for r in store.read(tmp_path)] == [("x", 2), ("y", 1)]


class Fake:
    """A sweep of three points, of which some ops cannot be swept."""

    wrong: tuple[str, ...] = ()
    ended = False
    ceilings = None
    budgets: dict[str, float] = {}

    def __init__(self, op: Any, of: Any, points: Any, device: Any, **named: Any) -> None:
        self.op = op
        self.ended = op.name == "gelu"

    def run(self, budget: float, say: Any, save: Any) -> store.Record:
        Fake.budgets[self.op.name] = budget
        if self.op.name == "softmax":
            raise RuntimeError("a compiler's crash")
        found = {**record({1000: 0.9, 1100: 0.9}), "op": self.op.name}
        save({**found, **{n: v[:1] for n, v in found.items() if n in ("us", "copy_us", "roof_us", "noise", "dtype", "few", "aligned", "bytes", "by")},
              "sizes": {"columns": [1000]}, "peers": {"torch": found["peers"]["torch"][:1]}})
        return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A GPU in the eyes of the command, and what it starts in other processes."""
    started: list[list[str]] = []

    def child(command: list[str], **_: Any) -> Any:
        started.append(command)
        return type("Done", (), {"returncode": 2, "stdout": "[]"})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (140 * GIB, 141 * GIB))
    monkeypatch.setattr("rooftop.core.implementation.device_of", lambda index: H200)
    monkeypatch.setattr(sweep, "Sweep", Fake)
    monkeypatch.setattr(sweep, "context_lost", lambda: False)
    monkeypatch.setattr("rooftop.lab.cli.sweep.subprocess.run", child)
    monkeypatch.setattr(Fake, "budgets", {})
    return started


def swept_by_command(*words: str) -> tuple[int, str]:
    from rooftop.lab.cli import commands
    from rooftop.lab.cli.app import app

    commands()
    found = CliRunner().invoke(app, ["sweep", *words])
    return found.exit_code, found.output


def test_an_op_that_fails_does_not_end_the_others(tmp_path: Path, gpu: list[list[str]]) -> None:
    code, said = swept_by_command("rms_norm", "softmax", "silu", "--direction", "forward", "--points", "2", "--no-models", "--records", str(tmp_path))
    assert code == 1 and "softmax: RuntimeError: a compiler's crash" in said and not gpu
    assert [(r["op"], len(r["us"]), r["seed"]) for r in store.read(tmp_path)] == [("rms_norm", 2, 0), ("silu", 2, 0)]


def test_the_ops_after_a_lost_context_run_in_a_new_process(tmp_path: Path, gpu: list[list[str]]) -> None:
    words = ["gelu", "silu", "--points", "2", "--no-models", "--seed", "3", "--size", "columns=64..4096", "--records", str(tmp_path)]
    code, _ = swept_by_command(*words)
    assert code == 2 and [r["op"] for r in store.read(tmp_path)] == ["gelu"]
    ((*start, size, low, models),) = [command[2:] for command in gpu]
    assert start[:7] == ["rooftop.lab.cli", "sweep", "gelu_bwd", "silu", "silu_bwd", "--direction", "forward"] and (size, low) == ("--size", "columns=64..4096")
    assert models == "--no-models" and start[start.index("--seed") + 1] == "3" and start[start.index("--records") + 1] == str(tmp_path)


def test_a_total_is_shared_out(tmp_path: Path, gpu: list[list[str]]) -> None:
    words = ["--direction", "forward", "--points", "2", "--no-models", "--records", str(tmp_path)]
    swept_by_command("rms_norm", "silu", "--total", "90", "--budget", "40", *words)
    assert Fake.budgets["rms_norm"] == 40 and Fake.budgets["silu"] == 40
    swept_by_command("rms_norm", "silu", "--total", "30", *words)
    assert 14 < Fake.budgets["rms_norm"] <= 15 and 30 > Fake.budgets["silu"] > 15, "what one leaves the next has"
    code, said = swept_by_command("rms_norm", "--total", "1e-9", *words)
    assert code == 0 and "rms_norm: left out: 1e-09 s are spent" in said


# -- what falls behind -------------------------------------------------------------------------------------------------


def record(shares: dict[int, float], torch_ratio: dict[int, float] | None = None) -> store.Record:
    """Points by columns: their share of the roof, and torch's time over ours."""
    n = len(shares)
    ratio = torch_ratio or {}
    return {
        "kind": "sweep", "op": "x", "device": {"name": "H200"}, "axis": "columns", "sizes": {"columns": list(shares)}, "dtypes": ["bf16"], "dtype": [0] * n,
        "few": [0] * n, "aligned": [1] * n, "bytes": [1 << 28] * n, "us": [100 / s for s in shares.values()], "copy_us": [100.0] * n,
        "roof_us": [100.0] * n, "noise": [0.001] * n, "implementations": ["x__triton"], "by": [0] * n, "digests": {"x__triton": "0"}, "wrong": [],
        "peers": {"torch": [ratio.get(c, 2.0) * 100 / s for c, s in shares.items()]},
    }


def test_a_cliff_is_seen_and_a_slope_is_not() -> None:
    flat = dict.fromkeys((1000, 1100, 1200, 1300, 1400), 0.95)
    assert swept.cliffs(swept.points(record(flat))) == []
    (found,) = swept.cliffs(swept.points(record({**flat, 1200: 0.7})))
    assert found[0].sizes == {"columns": 1200} and found[1] == pytest.approx(0.95)
    assert swept.cliffs(swept.points(record({1000: 0.95, 1200: 0.88, 1400: 0.81, 1600: 0.75, 1900: 0.7}))) == []
    assert swept.cliffs(swept.points(record({64: 0.3, 4096: 0.95, 65536: 0.9}))) == [], "too far apart to be neighbours"


def test_a_point_slower_than_a_peer_is_seen() -> None:
    shares = dict.fromkeys((1000, 1100), 0.9)
    (found,) = swept.slower(swept.points(record(shares, {1100: 0.9})))
    assert found[0].sizes == {"columns": 1100} and found[1] == "torch" and found[2] == pytest.approx(0.9)
    assert swept.slower(swept.points(record(shares, {1100: 0.98}))) == []
    assert swept.slower(swept.points(record(shares, {1100: 0.9})), named=("torch",)) == []
    assert swept.counted(swept.points(record({1000: 0.5, 1100: 0.8})), (0.6, 0.88)) == [1, 2]


def test_columns_of_another_length_are_no_record() -> None:
    wrong = record({1000: 0.9, 1100: 0.9})
    wrong["noise"] = [0.0]
    line = json.dumps(wrong).encode()
    with pytest.raises(ValueError, match="length of noise"):
        store.parse(line)


def test_the_page_of_the_op_shows_it(tmp_path: Path) -> None:
    flat = dict.fromkeys((1000, 1100, 1200, 1300, 1400), 0.95)
    made = Record({**record({**flat, 1200: 0.7}, {1400: 0.9}), "op": "add", "seed": 7, "at": "2026-01-01T00:00:00+00:00",
                   "digests": {"add__triton": "no longer"}})
    data = gather([made.but(at="2025-01-01T00:00:00+00:00", us=[1.0] * 5), made])
    (view,) = data.swept["add"]
    assert (view.count, view.seed, view.current) == (5, 7, False) and dict(view.below)[0.75] == 1
    assert [(b.title, b.why) for b in view.behind] == [("bf16 columns 1200", "neighbours at 95 %"), ("bf16 columns 1400", "0.90 of the speed of torch")]
    assert view.picture.count("<circle") == 10 and view.picture.count("<polyline") == 2, "wide and narrow"
    page = environment().get_template("op.html.j2").render(op=next(o for o in data.ops if o.name == "add"), sweeps=[], swept=data.swept["add"], site=data)
    assert "Between the cases" in page and "bf16 columns 1200" in page and "stale" in page
    assert rewriting.superseded([made.but(at="1"), made.but(at="2")], lambda r: False) == [True, False]


def test_the_command_is_there() -> None:
    from rooftop.lab.cli import commands
    from rooftop.lab.cli.app import app

    commands()
    assert "well-known" in CliRunner().invoke(app, ["sweep", "--help"]).output
