"""What is said of a counted run, a sentence a line, and findings that have one cause as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rooftop.lab import simt
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app
from rooftop.lab.simt import verdict
from rooftop.lab.simt.report import Finding, LineCounts, Other, Report


def counted(line: int, space: str = "global", op: str = "read", **more: int | None) -> LineCounts:
    given = {"width": 4, "requests": 32, "lanes": 1024, **more}
    return LineCounts("k.cu", line, "", space, op, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (counted(5, sectors=1024, ideal_sectors=128, apart=1024), "uncoalesced read, 8.0x the sectors: neighbouring threads take 4 B each, 1 KiB apart; let "
         "threadIdx.x run over neighbouring elements, or pass the tile through shared memory"),
        (counted(5, op="write", sectors=256, ideal_sectors=128, apart=8), "uncoalesced write, 2.0x the sectors: neighbouring threads take 4 B each, 8 B apart; "
         "let threadIdx.x run over neighbouring elements, or read them as one vector"),
        (counted(5, sectors=1024, ideal_sectors=128), "scattered addresses; sort the work by address, or stage it in shared memory"),
        (counted(5, space="shared", wavefronts=1024, ideal_wavefronts=32, apart=128), "bank conflicts, 32.0x the wavefronts of the reads: neighbouring threads "
         "are 128 B apart, all in one bank; pad each row by one element, or swizzle the columns"),
        (counted(5, op="atomic", contention=32), "up to 32 threads of a warp add to one address, one after the other; sum within the warp or block first"),
    ],
)
def test_a_line_that_costs_more_than_it_must_is_told_why_and_what_to_do(line: LineCounts, says: str) -> None:
    (found,) = verdict.sentences(Report(lines=(line,)))
    assert found.line == 5
    assert says in str(found)


def test_what_is_as_it_should_be_is_not_told() -> None:
    whole, shared = counted(1, sectors=128, ideal_sectors=128, apart=4), counted(2, space="shared", wavefronts=40, ideal_wavefronts=32)
    assert verdict.sentences(Report(lines=(whole, shared, counted(3, op="atomic", contention=2)))) == ()
    seldom = counted(4, sectors=8, ideal_sectors=1, apart=1024)  # of a run of 1000 sectors
    assert verdict.sentences(Report(lines=(counted(1, sectors=1000, ideal_sectors=1000, apart=4), seldom))) == ()


def test_the_costliest_comes_first_and_divergence_is_told_by_its_line() -> None:
    lines = (counted(7, sectors=200, ideal_sectors=100, apart=8), counted(9, sectors=800, ideal_sectors=100, apart=32))
    found = verdict.sentences(Report(lines=lines, divergent={("k.cu", 3): 32, ("k.cu", 4): 1}, threads=512))
    assert [s.line for s in found] == [9, 7, 3]
    assert "warps parted 32 times here" in found[2].text


def finding(kind: str, line: int, other: int | None = None, count: int = 1) -> Finding:
    there = None if other is None else Other("k.cu", other, "")
    return Finding(kind, "said", "k.cu", line, "", (0, 0, 0), (0, 0, 0), there, count)


def test_findings_of_one_cause_are_one() -> None:
    races = [finding("shared-race", 10, 12, 3), finding("shared-race", 12, 10), finding("shared-race", 14, 12), finding("shared-race", 30, 31)]
    places = [finding("out-of-bounds", 20), finding("out-of-bounds", 20), finding("out-of-bounds", 21), finding("misaligned", 20)]
    made = verdict.grouped([*races, *places])
    assert [(f.kind, f.line, sorted(set(f.also)), f.count) for f in made] == [
        ("shared-race", 10, [12, 14], 5), ("shared-race", 30, [], 1), ("out-of-bounds", 20, [20], 2), ("out-of-bounds", 21, [], 1), ("misaligned", 20, [], 1),
    ]
    assert "(the same at lines 12, 14)" in str(made[0])


def test_only_the_lines_of_the_devices_functions_are_shown() -> None:
    host = "#include <vector>\n\nstatic int host() {\n    return 1;\n}\n\n"
    text = host + "__device__ float f(float x) {\n    return x;\n}\n\n__global__ void k() {\n}\nint main() {}\n"
    assert [list(r) for r in verdict.kernel_lines(text)] == [[7, 8, 9], [11, 12]]


@pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
def test_what_a_tensor_must_hold_is_compared_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands()
    Path("own.cu").write_text("__global__ void k(const float* x, float* out, int n) { int i = threadIdx.x; if (i < n) out[i] = 2 * x[i]; }\n", encoding="utf-8")
    np.save("ref.npy", np.arange(8, dtype=np.float32) * 2)
    np.save("bad.npy", np.arange(8, dtype=np.float32) * 2 + (np.arange(8) == 5))
    words = ["simt", "own.cu", "--kernel", "k", "--grid", "1", "--block", "8", "--arg", "x=f32:8:range", "--arg", "out=f32:8:empty", "--arg", "n=8"]
    assert CliRunner().invoke(app, [*words, "--expect", "out=ref.npy"]).exit_code == 0
    wrong = CliRunner().invoke(app, [*words, "--expect", "out=bad.npy"])
    assert wrong.exit_code == 1 and "wrong: out is not bad.npy" in wrong.output and "at index (5,)" in wrong.output
    assert "of a tensor that the kernel may write: x, out" in str(CliRunner().invoke(app, [*words, "--expect", "y=ref.npy"]).exception)
    assert "it goes with one kernel" in str(CliRunner().invoke(app, ["simt", "own.cu", "--expect", "out=ref.npy"]).exception)
