"""rooftop diagnose, profile and predictions as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rooftop.core.devices import lookup
from rooftop.lab import candidates
from rooftop.lab.cli import app, commands
from rooftop.lab.counters.diagnose import drive, sizes
from rooftop.lab.counters.diagnose.sizes import Size
from rooftop.lab.exit_codes import NoGpuError
from rooftop.lab.inspect import inspector
from rooftop.lab.records.record import Record
from rooftop.lab.report import rung_counts
from rooftop.lab.timing.roofline import Ceilings

COUNTERS = {
    "gpu__dram_throughput": 90, "lts__throughput": 40, "l1tex__data_pipe_lsu_wavefronts": 30, "sm__inst_issued": 20, "sm__inst_executed_pipe_fma": 5,
    "sm__inst_executed_pipe_alu": 5, "sm__pipe_tensor_cycles_active": 0,
}
COUNTED = {  # no waste
    "sm__cycles_active.avg": 98000, "sm__cycles_elapsed.max": 100000, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 0,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 0, "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": 0,
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 0,
}


def report(path: Path, us: float, **busy: float) -> Path:
    names = ["ID", "Kernel Name", "Block Size", "Grid Size", "CC", "gpu__time_duration.sum", *(f"{n}.avg.pct_of_peak_sustained_elapsed" for n in COUNTERS),
             *COUNTED]
    units = ["", "", "", "", "", "us", *("%" for _ in COUNTERS), *("" for _ in COUNTED)]
    row = ["0", "k(float *)", "(256, 1, 1)", "(132, 1, 1)", "9.0", str(us), *(str(v) for v in {**COUNTERS, **busy, **COUNTED}.values())]
    path.write_text("\n".join(",".join(f'"{f}"' for f in line) for line in (names, units, row)) + "\n")
    return path


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the predictions that are kept unasked."""
    path = tmp_path / "state" / "predictions.jsonl"
    monkeypatch.setenv("ROOFTOP_PREDICTIONS", str(path))
    return path


def said(*arguments: object) -> str:
    commands()
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_a_report_and_what_came_of_its_predictions(tmp_path: Path) -> None:
    before, after, gains = report(tmp_path / "a.csv", 100.5), report(tmp_path / "b.csv", 95.5), tmp_path / "gains.jsonl"
    assert "bound by   dram (clear)" in said("diagnose", before, "--keep", gains)
    assert json.loads(said("diagnose", before, "--json"))[0]["runner_up"] == "l2"
    assert "1.05x as fast" in said("diagnose", before, "--diff", after, "--keep", gains, "--lever", "overlap")
    (overlap, _) = json.loads(said("predictions", gains, "--json"))
    assert (overlap["lever"], overlap["count"], overlap["inside"]) == ("overlap", 1, 1)


def rows_of(path: Path, kernels: dict[str, float]) -> Path:
    """A report of several kernels: name -> us."""
    parts = [report(path, us).read_text().replace("k(float *)", name).splitlines(keepends=True) for name, us in kernels.items()]
    path.write_text("".join(parts[0][:2]) + "".join(part[2] for part in parts))
    return path


def test_the_kernels_of_two_reports_are_compared(tmp_path: Path) -> None:
    before = rows_of(tmp_path / "a.csv", {"gemm<64>(float *)": 900, "add(int)": 10, "old(int)": 5, "cast(int)": 3})
    after = rows_of(tmp_path / "b.csv", {"add(int)": 11, "gemm<128>(float *)": 300, "fused(int)": 6, "cast(int)": 3})
    text = said("diagnose", before, after, "--no-keep")
    assert "5 kernels, 918 us -> 320 us in all (2.87x as fast)" in text
    for line in (
        "900 us ->    300 us (3.00x as fast)       dram                 gemm<128>(float *)",
        "5 us ->         - only before",
        "- ->      6 us only after",
    ):
        assert line in text
    assert "before  gemm<64>(float *)" in text and "after   gemm<128>(float *)" in text  # in full: the one that changed most
    rows = json.loads(said("diagnose", before, after, "--no-keep", "--json"))
    names = [tuple(r[side] and r[side]["name"] for side in ("before", "after")) for r in rows]
    assert names == [
        ("gemm<64>(float *)", "gemm<128>(float *)"), ("add(int)", "add(int)"), (None, "fused(int)"), ("old(int)", None), ("cast(int)", "cast(int)"),
    ]
    assert said("diagnose", before, "--diff", after, "--no-keep") == text


def test_one_kernel_on_each_side_is_the_same_kernel_whatever_its_name(tmp_path: Path) -> None:
    before, after = rows_of(tmp_path / "a.csv", {"naive(int)": 90}), rows_of(tmp_path / "b.csv", {"tiled(int)": 30})
    assert "(3.00x as fast)" in said("diagnose", before, after, "--no-keep")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("{a}", "{a}", "--diff", "{a}"), "give one"), (("softmax", "{a}"), "is no report"), (("{trace}", "{a}"), "trace of torch.profiler")],
)
def test_what_cannot_be_compared(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    a, trace = report(tmp_path / "a.csv", 100), tmp_path / "t.json"
    trace.write_text('{"traceEvents": [{"ph": "X"}]}')
    commands()
    done = CliRunner().invoke(app, ["diagnose", *(x.format(a=a, trace=trace) for x in arguments)])
    assert done.exit_code and message in " ".join((done.output + str(done.exception)).replace("│", " ").split())


def test_a_report_of_any_name_that_is_a_file(tmp_path: Path) -> None:
    path = report(tmp_path / "a.csv", 100)
    for name in ("ncu.log", "ncu-output"):
        path = path.rename(tmp_path / name)
        assert "bound by   dram" in said("diagnose", path, "--no-keep")


def test_predictions_are_kept_unasked_and_joined_with_the_next_version(tmp_path: Path, kept: Path) -> None:
    before, after = report(tmp_path / "a.csv", 100), report(tmp_path / "b.csv", 92, gpu__dram_throughput=99)
    (predicted,) = [x["key"] for x in json.loads(said("diagnose", before, "--no-keep", "--json"))[0]["levers"]]
    assert not kept.exists() and json.loads(said("diagnose", after, "--no-keep", "--json"))[0]["levers"] == []
    for path in (before, before, after, after, before):  # a report that is read again adds nothing
        said("diagnose", path)
    assert [("came" in x, x["lever"]) for x in map(json.loads, kept.read_text().splitlines())] == [(False, predicted), (True, predicted)]
    (row, _) = json.loads(said("predictions", "--kept", "--json"))
    assert (row["lever"], row["count"]) == (predicted, 1) and row["no_change"] == pytest.approx(100 / 92 - 1)


def test_predictions_that_cannot_be_kept_do_not_stop_the_diagnosis(tmp_path: Path, kept: Path) -> None:
    path = report(tmp_path / "a.csv", 100)
    kept.parent.write_text("a file where the folder should be")
    assert "bound by   dram" in said("diagnose", path)
    kept.parent.unlink()
    kept.parent.mkdir()
    kept.write_text("[]\n")
    assert "bound by   dram" in said("diagnose", path) and kept.read_text() == "[]\n"


def test_a_kernel_of_two_launches_is_no_next_version(tmp_path: Path, kept: Path) -> None:
    before, after = report(tmp_path / "a.csv", 100), report(tmp_path / "b.csv", 92, gpu__dram_throughput=99)
    after.write_text(after.read_text() + after.read_text().splitlines()[-1] + "\n")
    said("diagnose", before)
    said("diagnose", after)
    assert len(kept.read_text().splitlines()) == 1


def test_a_kernel_without_counters() -> None:
    text = said("diagnose", "sgemm_cuda/05_tile_2d", "--card", "h100")
    assert "without counters" in text and "limited by registers" in text and "not collected" in text


@pytest.mark.sampled("slow")
def test_sizes_and_the_simulators_counts_stand_in_for_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path))  # where nothing has been counted
    text = said("diagnose", "sgemm_cuda/05_tile_2d", "--card", "h100")
    assert "\n  sizes  " in text and "simulator  not counted" in text and "diagnose --count counts it" in text
    line = rung_counts.Line("k.cu", 7, "x", "shared read", 8.0, 4.0, True)
    counts = rung_counts.RungCounts("a[8, 8] f32", 2, 64, {"conflicts": 2.0, "reads": 3.0}, {"conflicts": 1.0}, (line,))
    monkeypatch.setattr(rung_counts, "count", lambda subjects, case, run: {s.name: counts for s in subjects})
    text = said("diagnose", "sgemm_cuda/05_tile_2d", "--card", "h100")
    assert "from the simulator, at a[8, 8] f32, 2 of 64 blocks" in text and "conflicts 2, 1 at the least: 2.0 times that" in text
    assert "k.cu:7: shared read takes 8.0 wavefronts" in text
    assert json.loads(said("diagnose", "sgemm_cuda/05_tile_2d", "--card", "h100", "--json"))[0]["simulated"]["values"]["reads"] == 3.0


def test_sizes_are_of_fresh_records_of_the_same_dtypes_and_card() -> None:
    (subject,) = candidates.find(["sgemm_cuda/05_tile_2d"])
    device = inspector.device_of("h100")
    ceilings = Ceilings.from_records([], device.name, lookup(device.name))
    cases = [subject.op.case(f"{n} cubed f32") for n in (1024, 2048, 4096, 8192)]

    def records(stale: int = 9, card: str = device.name) -> list[Record]:
        return [
            Record({"kind": "bench", "subject": subject.name, "case": c.id, "at": "1", "device": {"name": card},
                    "clocks": {"kernel": {"median": 1e-4 + 1e-6 * 8**i, "low": 0.0, "high": 1.0}},
                    **subject.identity(c, device).facts, **({"digest": "old"} if i == stale else {})})
            for i, c in enumerate(cases)
        ]

    found = sizes.of(subject, cases[0], device, records(), ceilings)
    assert found and len(found.points) == 4 and found.fixed_s == pytest.approx(1e-4, rel=0.02)
    fewer = sizes.of(subject, cases[0], device, records(stale=0), ceilings)
    assert fewer and [p.case for p in fewer.points] == [c.id for c in cases[1:]]
    assert sizes.of(subject, cases[0], device, records(card="NVIDIA H200"), ceilings) is None
    other = next(c for c in subject.op.cases if c.dtype != "f32")
    assert sizes.of(subject, other, device, records(), ceilings) is None


def test_a_line_through_sizes() -> None:
    exact = sizes.line([Size(str(r), r, 5e-6 + 2 * r) for r in (1e-6, 1e-5, 1e-4)])
    assert exact and (exact.fixed_s, exact.slope, exact.off) == (pytest.approx(5e-6), pytest.approx(2), pytest.approx(0, abs=1e-9))
    assert exact.fixed_share(10e-6) == pytest.approx(0.5)
    below = sizes.line([Size(str(r), r, r**1.5) for r in (1.0, 4.0, 16.0)])
    assert below and below.fixed_s == 0 and below.slope > 0 and below.off > 0.1
    falling = sizes.line([Size(str(r), r, 1 / r) for r in (1.0, 4.0, 16.0)])
    assert falling and falling.slope == 0
    assert sizes.line([Size("a", 1.0, 1.0), Size("b", 9.0, 9.0)]) is None
    assert sizes.line([Size(str(r), r, r) for r in (1.0, 2.0, 3.0)]) is None


def test_a_profile_where_there_is_no_gpu_or_no_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    commands()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for how in ("events", "torch"):
        assert isinstance(CliRunner().invoke(app, ["profile", "sgemm_cuda/01_naive", "--with", how]).exception, NoGpuError)
    assert "ERR_NVGPUCTRPERM" in drive.why_nothing("==ERROR== ERR_NVGPUCTRPERM - ...", ["a"])
    assert "launched none" in drive.why_nothing("==WARNING== No kernels were profiled.", ["a"])


def test_a_page_of_a_report(tmp_path: Path) -> None:
    path = report(tmp_path / "r.csv", 100)
    said("diagnose", path, "--html", tmp_path / "r.html")
    assert "k(float *)" in (tmp_path / "r.html").read_text() and "Bound by dram" in (tmp_path / "r.html").read_text()


@pytest.mark.sampled("slow")
def test_the_ladders_steps_and_a_place() -> None:
    rows = json.loads(said("predictions", "--json"))
    assert rows[-1]["idea"] == "all" and rows[-1]["error"] < rows[-1]["no_change"]
    placed = json.loads(said("place", "sgemm_cuda/08_conflict_free", "--ladder", "sgemm_cuda", "--json"))
    assert "sgemm_cuda/08_conflict_free" in placed["nearest"]
