"""The simulator's own speed is recorded, judged by its median, shown as it was recorded, and within what the project asks of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rooftop.core import registry, settings
from rooftop.core.spec import Case, Input, case
from rooftop.lab import candidates, simt
from rooftop.lab.counters import simulator_speed as speed
from rooftop.lab.counters.simulator_speed import Row, Run, row
from rooftop.lab.records import prune, store
from rooftop.lab.report import documents
from rooftop.lab.report.data import gather
from rooftop.lab.report.joined import staleness

RESULTS = settings.CHECKOUT / "results"
RUNGS = {name: [r.name for r in registry.ladder(name).rungs] for name in speed.GOALS}
SMALL = case("rows 8x96", x=Input((8, 96), "f32"), dim=1)


def _case(ladder: str) -> Case:
    wanted = speed.GOALS[ladder].case
    return registry.op(registry.ladder(ladder).op).case(wanted) if isinstance(wanted, str) else wanted


def runs(*seconds: float) -> list[Run]:
    return [Run(s, 0.0, 4, 16) for s in seconds]


def rows(seconds: float = 0.2) -> list[Row]:
    """Of every rung, as if each run had taken as long."""
    return [
        row(name, _case(ladder).id, mode, goal.limits[mode], runs(*[seconds] * 8))
        for ladder, goal in speed.GOALS.items() for name in RUNGS[ladder] for mode in speed.MODES
    ]  # fmt: skip


def at(record: store.Record, when: str, **more: Any) -> store.Record:
    return {**record, "at": when, **more}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str, str]]]:
    """Runs that take what they are told instead of being made: the seconds of a rung in a mode, else 0.1. Gives what was asked for, in order."""

    def put(slow: dict[tuple[str, str], float] | None = None) -> list[tuple[str, str, str]]:
        asked: list[tuple[str, str, str]] = []

        def timed(subject: candidates.Subject, taken: Any, mode: str) -> Run:
            asked.append((subject.name, taken.id, mode))
            return Run((slow or {}).get((subject.name, mode), 0.1), 0.0, 4, 16)

        monkeypatch.setattr(speed, "timed", timed)
        monkeypatch.setattr(simt, "unavailable", lambda: None)
        return asked

    return put


# -- what is judged ----------------------------------------------------------------------------------------------------


def test_the_median_is_judged_and_the_first_run_kept_apart() -> None:
    one = row("softmax_cuda/01_naive", "c", "check", 0.5, [Run(9.0, 8.5, 8, 8), *runs(0.1, 0.2, 0.6, 0.7, 0.8)])
    assert (one.seconds, one.low, one.high, one.n, one.first, one.built) == (0.6, 0.1, 0.8, 5, 9.0, 8.5)
    assert not one.holds and "ABOVE ITS LIMIT" in str(one), "the best run is under the limit, the median is not"
    other = row("softmax_cuda/01_naive", "c", "check", 0.5, [Run(9.0, 8.5, 8, 8), *runs(0.1, 0.2, 0.3, 0.7, 0.8)])
    assert other.holds and "ABOVE" not in str(other), "the slowest run and the first are over the limit, the median is not"
    assert speed.above([one, other]) == [one]


def test_a_time_equal_to_the_limit_is_not_under_it() -> None:
    assert not row("a", "c", "count", 6.0, runs(1, 6, 6, 6)).holds
    assert row("a", "c", "count", 6.0, runs(1, 5.999, 5.999, 5.999)).holds
    with pytest.raises(ValueError, match="at least two"):
        row("a", "c", "count", 6.0, runs(1))


def test_the_limits_are_those_of_the_project() -> None:
    """512 cubed under 3 s to check and 6 s to count, 1024 by 1024 under 0.5 s either way."""
    assert {(name, mode): limit for name, goal in speed.GOALS.items() for mode, limit in goal.limits.items()} == {
        ("sgemm_cuda", "check"): 3.0, ("sgemm_cuda", "count"): 6.0, ("softmax_cuda", "check"): 0.5, ("softmax_cuda", "count"): 0.5,
    }  # fmt: skip
    sizes = {name: [i.shape for _, i in _case(name).tensors()] for name in speed.GOALS}
    assert sizes == {"sgemm_cuda": [(512, 512), (512, 512)], "softmax_cuda": [(1024, 1024)]}
    assert {_case(name).dtype for name in speed.GOALS} == {"f32"}


# -- what is timed -----------------------------------------------------------------------------------------------------


def test_every_rung_is_run_in_turn_in_both_modes(scripted: Callable[..., list[tuple[str, str, str]]]) -> None:
    asked = scripted()
    found = speed.measure(runs=2, say=lambda _: None)
    turn = [(name, _case(ladder).id, mode) for ladder, names in RUNGS.items() for name in names for mode in speed.MODES]
    assert asked == turn * 3
    assert [(r.subject, r.case, r.mode) for r in found] == turn and {r.n for r in found} == {2}
    assert [r.subject for r in speed.measure(["softmax_cuda"], runs=1, say=lambda _: None)] == [n for n in RUNGS["softmax_cuda"] for _ in speed.MODES]
    with pytest.raises(registry.RegistryError, match=r"'softmax'; did you mean 'softmax_cuda'"):
        speed.measure(["softmax"])


@pytest.mark.skipif(simt.unavailable() is not None, reason=f"{simt.unavailable()}")
def test_a_run_is_a_simulation() -> None:
    (subject,) = candidates.find(["softmax_cuda/02"])
    checked, counted = speed.timed(subject, SMALL, "check"), speed.timed(subject, SMALL, "count")
    assert checked.blocks == checked.grid_blocks == 8 and counted.grid_blocks == 8
    assert checked.seconds > checked.built >= 0.0 and counted.seconds > 0.0


def test_a_run_that_finds_a_fault_or_leaves_blocks_out_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    (subject,) = candidates.find(["softmax_cuda/02"])
    fault = simt.Finding("shared-race", "two threads write", "a.cu", 7, "s[0] = 1;", (0, 0, 0), (1, 0, 0))
    monkeypatch.setattr(simt, "run_rung", lambda *_, **__: simt.Report(findings=(fault,), blocks=8, grid_blocks=8))
    with pytest.raises(speed.FaultError, match=r"softmax_cuda/02_shared_reduction, rows 8x96 f32: a\.cu:7: shared-race"):
        speed.timed(subject, SMALL, "count")
    monkeypatch.setattr(simt, "run_rung", lambda *_, **__: simt.Report(blocks=4, grid_blocks=8))
    with pytest.raises(speed.FaultError, match="4 of 8 blocks were run in mode check"):
        speed.timed(subject, SMALL, "check")
    assert speed.timed(subject, SMALL, "count").blocks == 4, "counting takes a sample"
    monkeypatch.setattr(simt, "run_rung", lambda *_, **__: simt.Report())
    with pytest.raises(speed.FaultError, match="0 of 0"):
        speed.timed(subject, SMALL, "count")


def test_no_more_cores_are_used_than_the_limits_are_for() -> None:
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    with speed.few_cores(1) as cores:
        assert cores == 1 and len(os.sched_getaffinity(0)) == 1 and torch.get_num_threads() == 1
        assert settings.load().jobs == 1 or "ROOFTOP_JOBS" in os.environ
    assert os.sched_getaffinity(0) == before and torch.get_num_threads() == threads
    with speed.few_cores() as cores:
        assert 1 <= cores <= speed.CORES == 2 and os.sched_getaffinity(0) <= before


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_one_record_of_all_rungs(
    scripted: Callable[..., list[tuple[str, str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    scripted()
    speed.main(["--out", str(tmp_path)])
    out = capsys.readouterr().out
    (record,) = store.read(tmp_path)
    (path,) = tmp_path.rglob("*.jsonl")
    assert path.parent.name == store.slug_of(speed.describe()["name"]) and str(path) in out
    assert (record["kind"], record["subject"], record["repeats"]) == ("clock", "simulator speed", speed.RUNS)
    assert [r["subject"] for r in record["rows"]] == [n for names in RUNGS.values() for n in names for _ in speed.MODES]
    assert {k: type(v) for k, v in record["rows"][0].items()} == {
        "subject": str, "case": str, "mode": str, "seconds": float, "low": float, "high": float, "n": int, "limit": float, "first": float,
        "built": float, "blocks": int, "grid_blocks": int,
    }  # fmt: skip
    assert all(f"{r['subject']} " in out for r in record["rows"]) and f"all {len(record['rows'])} are under their limits" in out


def test_a_rung_above_its_limit_is_told_recorded_and_exits_1(
    scripted: Callable[..., list[tuple[str, str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    scripted({("softmax_cuda/03_online", "check"): 0.7, ("sgemm_cuda/01_naive", "check"): 2.9})
    with pytest.raises(SystemExit) as exit:
        speed.main(["--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert exit.value.code == 1 and "under their limits" not in printed.out
    assert "1 of 48 are not under their limit: softmax_cuda/03_online (check)" in printed.err
    assert [line.split()[0] for line in printed.out.splitlines() if "ABOVE ITS LIMIT" in line] == ["softmax_cuda/03_online"]
    (record,) = store.read(tmp_path)
    assert [r["subject"] for r in record["rows"] if r["seconds"] >= r["limit"]] == ["softmax_cuda/03_online"], "a bad time is recorded as well"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["nosuch"], "no ladder with a limit 'nosuch'; there are sgemm_cuda, softmax_cuda"),
        (["sgemm_cuda", "softmax"], "did you mean 'softmax_cuda'"),
        (["gelu_cuda"], "no ladder with a limit 'gelu_cuda'"),
        (["softmax_cuda", "--out", "{here}"], "one record of sgemm_cuda and softmax_cuda"),
        (["--out", "{here}/file/folder"], "Not a directory"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_timed(
    given: list[str], says: str, scripted: Callable[..., list[tuple[str, str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    asked = scripted()
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as exit:
        speed.main([word.format(here=tmp_path) for word in given])
    assert exit.value.code == 1 and says in capsys.readouterr().err and not asked
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_faults_and_a_missing_compiler_leave_no_record(
    scripted: Callable[..., list[tuple[str, str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    scripted()

    def faulty(*_: object) -> Run:
        raise speed.FaultError("softmax_cuda/01_naive, rows: a race")

    monkeypatch.setattr(speed, "timed", faulty)
    with pytest.raises(SystemExit) as exit:
        speed.main(["--out", str(tmp_path)])
    assert exit.value.code == 1 and "a race" in capsys.readouterr().err
    monkeypatch.setattr(simt, "unavailable", lambda: "no C++ compiler on PATH")
    with pytest.raises(SystemExit) as exit:
        speed.main(["--out", str(tmp_path)])
    assert exit.value.code == 3 and "no C++ compiler" in capsys.readouterr().err
    assert list(tmp_path.rglob("*.jsonl")) == []


# -- the record, and who reads it --------------------------------------------------------------------------------------


def test_the_record_is_one_that_is_read_again(tmp_path: Path) -> None:
    made = speed.record(rows(), 2, 0.1)
    with store.Writer(tmp_path, str(made["device"]["name"])) as writer:
        written = writer.write(made)
    assert store.read(tmp_path) == [written] and store.parse(json.dumps(written).encode()) == [written]
    assert set(made["versions"]) >= {"python", "torch", "rooftop"} and made["cores"] == 2
    for broken in ({"device": {"name": 5}}, {"rows": [1]}, {"rows": 3}, {"device": {}}):
        with pytest.raises(ValueError, match=r"device|rows"):
            store.parse(json.dumps({**written, **broken}).encode())
    home = tmp_path / "home"
    assert store.merge(tmp_path, home).records == 1 and store.read(home) == [written]


def test_pruning_keeps_the_newest_of_each_cpu_and_other_clocks() -> None:
    made = speed.record(rows(), 2, 0.1)
    found = [
        at(made, "2026-01-02"), at(made, "2026-01-01"), at(made, "2026-01-01", device={"name": "another CPU"}),
        at(made, "2026-01-01", subject="naive timing"), at(made, "2026-01-03"),
    ]  # fmt: skip
    assert prune.superseded(found, staleness(found)) == [True, True, False, False, False]
    left = [r for r, gone in zip(found, prune.superseded(found, staleness(found)), strict=True) if not gone]
    assert documents.speed(found, gather([])) == documents.speed(left, gather([]))


def test_the_table_shows_the_newest_record_and_what_does_not_hold() -> None:
    site = gather([])
    assert documents.speed([], site) == documents.NOTHING
    old = at(speed.record(rows(0.11), 2, 0.1), "2026-01-01")
    new = at(speed.record(rows(0.6), 2, 0.1), "2026-01-02")
    lines = documents.speed([new, old, at(new, "2026-01-03", subject="naive timing")], site).splitlines()
    assert lines == documents.speed([new], site).splitlines() and speed.newest([new, old]) is new
    assert "median of 7 runs" in lines[0] and f"{speed.describe()['name']}, 2 cores" in lines[0]
    table = {line.split(" | ")[0].removeprefix("| "): line for line in lines[4:]}
    assert list(table) == [n for names in RUNGS.values() for n in names]
    assert table["sgemm_cuda/01_naive"] == "| sgemm_cuda/01_naive | 512 cubed f32 | 0.60 (0.60 to 0.60) | 3 | 0.60 (0.60 to 0.60) | 6 | 4 of 16 |"
    assert all(table[n].count("0.5: **not met**") == 2 for n in RUNGS["softmax_cuda"])
    part = {**new, "rows": [r for r in new["rows"] if r["mode"] == "count" and r["subject"] == "sgemm_cuda/01_naive"]}
    assert documents.speed([part], site).splitlines()[4] == "| sgemm_cuda/01_naive | 512 cubed f32 | not measured |  | 0.60 (0.60 to 0.60) | 6 | 4 of 16 |"


def test_the_pages_of_a_folder_with_this_alone_are_those_of_none() -> None:
    """A CPU is no card: it has no row, no roof and no score."""
    alone = gather([at(speed.record(rows(), 2, 0.1), "2026-01-01")])
    assert alone.cards == () and all(not op.scores for op in alone.ops) and all(not page.devices for page in alone.ladders)


UNTIMED = {"softmax_cuda/07_async_copies"}  # newer than the record


def test_the_newest_record_that_comes_with_the_tree_holds_every_rung_within_its_limit() -> None:
    record = speed.newest(store.read(RESULTS))
    assert record is not None, "python -m rooftop.lab.counters.simulator_speed --out results writes it"
    found = {(r["subject"], r["case"], r["mode"]): r for r in record["rows"]}
    wanted = {(name, _case(ladder).id, mode) for ladder, names in RUNGS.items() for name in names for mode in speed.MODES}
    assert set(found) <= wanted and {name for name, _, _ in wanted - set(found)} <= UNTIMED
    for (subject, _, mode), r in found.items():
        assert r["limit"] == speed.GOALS[subject.partition("/")[0]].limits[mode]
        assert 0 < r["low"] <= r["seconds"] <= r["high"] and r["n"] >= 5 and r["n"] == record["repeats"]
        assert r["seconds"] < r["limit"], f"{subject} takes {r['seconds']:.2f} s in mode {mode}; under {r['limit']} s is asked"
        assert r["blocks"] == r["grid_blocks"] if mode == "check" else 0 < r["blocks"] <= r["grid_blocks"]
    assert record["cores"] <= speed.CORES, "the limits are for two cores"
    assert record["versions"]["host compiler"]


# -- a first run -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "code"), [((5.0, 6.0, 5.5), 0), ((15.0, 14.0, 16.0), 1)])
def test_a_first_run_is_recorded_and_shown_beside_what_is_asked(
    seconds: tuple[float, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(speed, "first_runs", lambda: list(seconds))
    monkeypatch.setattr(simt, "unavailable", lambda: None)
    if code:
        with pytest.raises(SystemExit) as exit:
            speed.main(["--first", "--out", str(tmp_path)])
        assert exit.value.code == code and "a first run is not under its limit" in capsys.readouterr().err
    else:
        speed.main(["--first", "--out", str(tmp_path)])
        assert "a first run is under its limit" in capsys.readouterr().out
    (record,) = store.read(tmp_path)
    assert (record["kind"], record["all"], record["limit"], record["n"]) == ("build", list(seconds), 15.0, 3)
    site = gather([])
    shown = documents.speed([speed.record(rows(), 2, 0.1) | {"at": "2026-01-01"}, record], site).splitlines()[-1]
    assert shown.startswith(f"`rooftop simt`, a first run in an empty cache: {seconds[2] if not code else 15:.1f} s (") and "under 15 s is asked" in shown
    assert ("**not met**" in shown) is bool(code)
    assert documents.build([record], site) == documents.NOTHING, "that table is of ways to compile for a GPU"


def test_a_first_run_that_fails_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "FIRST_RUNG", "nosuch/01")
    with pytest.raises(speed.FaultError, match="nosuch"):
        speed.first_runs(1)


def test_the_newest_first_run_that_comes_with_the_tree_is_under_its_limit() -> None:
    found = [r for r in store.read(RESULTS) if r["kind"] == "build" and r["subject"] == speed.FIRST]
    record = max(found, key=lambda r: str(r["at"]))
    assert record["n"] == len(record["all"]) >= 3 and record["cores"] <= speed.CORES
    assert record["seconds"] < record["limit"] == speed.FIRST_LIMIT
