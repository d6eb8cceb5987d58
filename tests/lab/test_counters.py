"""Hardware counters: what Nsight Compute's report holds is brought to source lines rightly. (Reading a GPU's counters needs one: records show that.)"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rooftop.core.compile import ToolchainError
from rooftop.core.spec import TARGETS
from rooftop.lab.counters import collect
from rooftop.lab.counters import jobs as jobs
from rooftop.lab.counters import ncu_report as reports
from rooftop.lab.exit_codes import ended
from rooftop.lab.inspect import sass_lines
from rooftop.lab.records import store

H100 = TARGETS[90]
SHOWN = "rooftop/ladders/some/01.cu"
SOURCE = "/* rooftop */\n__global__ void k(float* x) {\n    s[t] = x[t];\n    y[t] = s[t];\n}\n"


class Metric:
    """One metric of a canned report: a number for the kernel, or values by address."""

    def __init__(self, number: float | str = 0, by_address: dict[int, Any] | None = None) -> None:
        self._number, self._by = number, by_address

    def as_double(self, i: int | None = None) -> float:
        return float(self._number if i is None else self._values()[i])

    def as_string(self, i: int | None = None) -> str | None:
        value = self._number if i is None else self._values()[i]
        return value if isinstance(value, str) else None

    def as_uint64(self, i: int) -> int:
        return 0 if isinstance(self._values()[i], str) else int(self._values()[i])

    def _values(self) -> list[Any]:
        assert self._by is not None
        return list(self._by.values())

    def has_correlation_ids(self) -> bool:
        return self._by is not None

    def correlation_ids(self) -> Metric:
        assert self._by is not None
        return Metric(by_address={pc: pc for pc in self._by})

    def num_instances(self) -> int:
        return len(self._by or {})


class Action:
    """One kernel of a canned report: instructions with line, SASS and their source metrics."""

    NameBase_MANGLED = 2

    def __init__(self, symbol: str, instructions: dict[int, tuple[int, str, dict[str, Any]]], totals: dict[str, float]) -> None:
        self._symbol, self._at = symbol, instructions
        self._metrics = {name: Metric(value) for name, value in totals.items()}
        for name in {n for _, _, values in instructions.values() for n in values}:
            self._metrics[name] = Metric(by_address={pc: values[name] for pc, (_, _, values) in instructions.items() if name in values})

    def name(self, base: int = 0) -> str:
        return self._symbol if base == self.NameBase_MANGLED else self._symbol.strip("_Z0123456789")

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self._metrics)

    def metric_by_name(self, name: str) -> Metric | None:
        return self._metrics.get(name)

    def sass_by_pc(self, pc: int) -> str:
        return self._at[pc][1]

    def source_info(self, pc: int) -> Any:
        line = self._at[pc][0]
        return SimpleNamespace(file_name=lambda: f"/somewhere/{SHOWN}", line=lambda: line) if line else None


def shared(wavefronts: int, ideal: int, executed: int = 8) -> dict[str, int]:
    return {
        "inst_executed": executed, "thread_inst_executed_true": 32 * executed,
        "memory_l1_wavefronts_shared": wavefronts, "memory_l1_wavefronts_shared_ideal": ideal,
    }


def sectors(number: int, ideal: int, executed: int = 8) -> dict[str, Any]:
    return {
        "inst_executed": executed, "thread_inst_executed_true": 32 * executed, "memory_access_size_type": 32, "memory_type": "Global",
        "memory_l2_theoretical_sectors_global": number, "memory_l2_theoretical_sectors_global_ideal": ideal,
    }


def action(symbol: str = "_Z1kPf") -> Action:
    return Action(
        symbol,
        {
            0x100: (3, "@!P0 LDG.E.CONSTANT R4, desc[UR4][R2.64] ;", sectors(32, 32)),
            0x110: (3, "LDG.E.CONSTANT R5, desc[UR4][R2.64+0x80] ;", sectors(256, 32)),
            0x120: (3, "STS [R7], R4 ;", shared(8, 8)),
            0x130: (4, "LDS R4, [R7] ;", shared(256, 8)),
            0x140: (4, "@P1 STG.E desc[UR4][R2.64], R4 ;", sectors(32, 32)),
            0x150: (4, "FFMA R4, R4, R4, RZ ;", {"inst_executed": 16, "thread_inst_executed_true": 500}),
            0x160: (0, "LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64] ;", {**sectors(128, 128), **shared(32, 32)}),
        },
        {"dram__bytes_read.sum": 4096.0, "gpu__time_duration.sum": 2000.0},
    )


def test_instructions_are_added_up_by_line_and_opcode() -> None:
    rows, opcodes = reports.lines(action(), SHOWN, SOURCE)
    found = {(r["line"], r["opcode"]): r for r in rows}
    assert set(found) == {(3, "LDG.E.CONSTANT"), (3, "STS"), (4, "LDS"), (4, "STG.E"), (0, "LDGSTS.E.BYPASS.128")}
    load = found[3, "LDG.E.CONSTANT"]
    assert (load["instructions"], load["executed"], load["threads"], load["sectors"], load["ideal_sectors"]) == (2, 16, 512, 288, 64)
    assert (load["file"], load["text"], load["width"], load["space"]) == (SHOWN, "s[t] = x[t];", 32, "Global")
    assert load["sass"] == ["@!P0 LDG.E.CONSTANT R4, desc[UR4][R2.64] ;", "LDG.E.CONSTANT R5, desc[UR4][R2.64+0x80] ;"]
    assert (found[4, "LDS"]["wavefronts"], found[4, "LDS"]["ideal_wavefronts"]) == (256, 8)
    both = found[0, "LDGSTS.E.BYPASS.128"]
    assert (both["file"], both["sectors"], both["wavefronts"]) == ("", 128, 32)
    assert opcodes["FFMA"] == [16, 500]


def test_absent_metrics_are_named_and_left_out() -> None:
    assert reports.totals(action(), collect.TOTALS) == {"dram__bytes_read.sum": 4096.0, "gpu__time_duration.sum": 2000.0}
    absent = reports.missing(action(), collect.METRICS["lines"])
    assert "dram__bytes_write.sum" in absent
    assert "inst_executed" not in absent


def test_what_ncu_refuses_is_read_from_its_words() -> None:
    output = "==PROF== Connected\n==ERROR== Failed to find metric lts__t_sectors_srcunit_tex.sum\n"
    assert collect.refused(output, collect.TOTALS) == ("lts__t_sectors_srcunit_tex.sum",)
    assert collect.refused("==PROF== lts__t_sectors.sum", collect.TOTALS) == ()


def test_the_default_jobs_are_every_rung_and_the_transposes_in_both_tiers() -> None:
    found = jobs.jobs_for([])
    lines = {j.subject for j in found if j.tier == "lines"}
    assert len([s for s in lines if s.startswith("sgemm_cuda/")]) == 16
    assert len([s for s in lines if s.startswith("softmax_cuda/")]) == 10
    assert len([s for s in lines if s.startswith("tests/simt/transpose/")]) == 3
    assert [s for s in lines if s.startswith("tests/simt/patterns/")]
    assert {s for s in lines if "patterns" not in s} == {j.subject for j in found if j.tier == "traffic"}
    for job in found:
        assert job.launches(H100), job
    with pytest.raises(ValueError, match="give --case"):
        jobs.jobs_for(["gelu_cuda"])
    assert jobs.jobs_for(["gelu_cuda/01"], case="tanh 512 MiB 16384x8192 bf16")[0].launches(H100)


def test_a_file_without_an_op_takes_its_shapes() -> None:
    (job,) = jobs.jobs_for(["tests/simt/transpose/padded.cu"], ["lines"], {"M": 40, "N": 70})
    (launch,) = job.launches(H100)
    assert launch.grid == (3, 2)
    assert {k: tuple(t.shape) for k, t in job.memory(H100, "cpu").items()} == {"x": (40, 70), "out": (70, 40)}
    (job,) = jobs.jobs_for(["tests/simt/transpose/padded.cu"], ["lines"], {"M": 40})
    with pytest.raises(ValueError, match="dimension N"):
        job.launches(H100)


def plan(names: list[str]) -> list[jobs.Job]:
    return jobs.jobs_for(names, ["lines"])


def run_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: list[tuple[list[Any], str]]) -> tuple[collect.Run, list[tuple[str, ...]]]:
    """A Run whose ncu gives canned reports, and what was asked of it."""
    asked: list[tuple[str, ...]] = []
    actions: list[Any] = []

    def ncu(self: collect.Run, name: str, plan: Path, what: tuple[str, ...]) -> tuple[Path, str]:
        asked.append(tuple(what))
        found, output = answers[len(asked) - 1]
        actions[:] = found
        (tmp_path / "r.ncu-rep").write_text("")
        return tmp_path / "r.ncu-rep", output

    monkeypatch.setattr(collect.Run, "_ncu", ncu)
    monkeypatch.setattr(reports, "load", lambda path, ncu: list(actions))
    return collect.Run(Path("ncu"), tmp_path, H100, lambda text: None), asked


def words(*said: dict[str, Any]) -> str:
    return "".join(f"==PROF== Profiling\n{collect._MARK}{json.dumps(d)}\n" for d in said)


def test_kernels_are_matched_to_their_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = plan(["tests/simt/transpose/naive.cu", "tests/simt/transpose/padded.cu"])
    three = [action(), action(), action()]
    run, asked = run_with(monkeypatch, tmp_path, [(three, words({"job": 0, "launches": 2}, {"job": 1, "launches": 1}))])
    actions, owners, wrong = run.group("lines", "lines", [first, second])
    assert owners == [first, first, second]
    assert [collect._which(owners, i) for i in range(3)] == [0, 1, 0]
    assert (actions, wrong, len(asked)) == (three, [], 1)


def test_a_failed_job_is_told_and_a_lost_kernel_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = plan(["tests/simt/transpose/naive.cu", "tests/simt/transpose/padded.cu"])
    run, _ = run_with(monkeypatch, tmp_path, [([action()], words({"job": 0, "launches": 0, "error": "LaunchError: no"}, {"job": 1, "launches": 2}))])
    _, _, wrong = run.group("lines", "lines", both)
    assert wrong == ["tests/simt/transpose/naive.cu, M=1024, N=1024: LaunchError: no", "lines: ncu has 1 kernels of 2 launched"]


def test_refused_metrics_are_dropped_then_sections_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = [([], "==ERROR== Failed to find metric memory_type\n"), ([], "==ERROR== no\n"), ([action()], words({"job": 0, "launches": 1}))]
    run, asked = run_with(monkeypatch, tmp_path, answers)
    run.group("lines", "lines", plan(["tests/simt/transpose/naive.cu"]))
    assert "memory_type" in asked[0][1].split(",")
    assert "memory_type" not in asked[1][1].split(",")
    assert asked[2][:2] == ("--section", "SourceCounters")


def test_without_permission_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, _ = run_with(monkeypatch, tmp_path, [([], "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")])
    with pytest.raises(ToolchainError, match="administrators"):
        run.group("lines", "lines", plan(["tests/simt/transpose/naive.cu"]))


def test_a_record_is_one_that_records_take(tmp_path: Path) -> None:
    (job,) = plan(["tests/simt/transpose/naive.cu"])
    (launch,) = job.launches(H100)
    symbol = "_Z9transposeiiPKfPf"
    code = job.implementation.compile([launch.kernel], H100.target).cubin
    listing = sass_lines.instructions(code, symbol, "tests/simt/transpose/naive.cu")
    base = 0x7F0000
    run = Action(symbol, {base + i.offset: (1, i.sass, sectors(32, 4)) for i in listing}, {"dram__bytes_read.sum": 4096.0})
    record = collect._record(run, job, 0, (launch, symbol), code, H100)
    with store.Writer(tmp_path, H100.name) as writer:
        writer.write(record)
    (read,) = store.read(tmp_path)
    assert (read["kind"], read["subject"], read["case"], read["file"]) == ("counters", job.subject, "M=1024, N=1024", "tests/simt/transpose/naive.cu")
    assert job.identity(H100).made(read)
    lines = {(r["opcode"].split(".")[0], r["text"].split(" =")[0]) for r in read["lines"] if r["opcode"].startswith(("LDG", "STG"))}
    assert lines == {("LDG", "const float value"), ("STG", "out[static_cast<long long>(n) * M + m]")}  # the machine code's lines, not the report's
    assert "4,096" in collect.table([read])
    with pytest.raises(ToolchainError, match="_Z1kPf"):
        collect._record(action(), job, 0, (launch, symbol), code, H100)
    other = Action(symbol, {base + i.offset: (1, "FFMA", sectors(32, 4)) for i in listing}, {})
    with pytest.raises(ToolchainError, match="not those of the machine code"):
        collect._record(other, job, 0, (launch, symbol), code, H100)


def test_ncu_report_is_looked_for_beside_the_program_and_where_a_script_points(tmp_path: Path) -> None:
    real = tmp_path / "nsight-compute-2025.3" / "extras" / "python"
    real.mkdir(parents=True)
    (real / "ncu_report.py").write_text("")
    script = tmp_path / "bin" / "ncu"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{tmp_path}/nsight-compute-2025.3/ncu" "$@"\n')
    assert next(iter(reports.folders(script))) == real
    direct = tmp_path / "nsight-compute-2025.3" / "ncu"
    direct.write_bytes(b"\x7fELF")
    assert next(iter(reports.folders(direct))) == real


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
def test_without_a_gpu_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ended(lambda: collect.main(["--out", str(tmp_path)]))
    assert stop.value.code and "counters need an NVIDIA GPU" in capsys.readouterr().err
