"""Simulating a file of one's own: sizes that are missing, misspelt or too small, and loops that do not end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from _support import command, flat

from rooftop.core import registry
from rooftop.lab import simt

needs_compiler = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
ALONE = """/* rooftop
args = ["n: i32", "x: f32[N]"]
[[launch]]
kernel = "k"
grid = ["G"]
block = [32]
*/
__global__ void k(int n, float* x) {
    for (unsigned r = 5; r >= 0; --r) x[(threadIdx.x + r) % n] += 1;
}
"""
FIXED = ALONE.replace("f32[N]", "f32[64]").replace('"n: i32", ', "").replace('["G"]', "[1]")
FIXED = FIXED[: FIXED.index("__global__")] + "__global__ void k(float* x) { x[threadIdx.x] = 1; }\n"


@needs_compiler
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give the sizes of its dimensions (N missing), as in --shape N=1024"),
        (("--shape", "N=64,Q=3,G=1,n=2"), "--shape names Q; the sizes in the head of mine.cu are G, N, n"),
        (("--shape", "N=64,N=3"), "--shape N=64,N=3: N is given twice"),
        (("--shape", "N=64x3"), "--shape N=64x3: mine.cu names no op, so N is one size, as in --shape N=64"),
        (("--shape", "N=64", "--case", "foo"), "--case foo: mine.cu names no op and so has no cases; its sizes are given by --shape"),
        (("--shape", "N=64", "--blocks", "0"), "--blocks 0: it must be 1 or more"),
        (("--shape", "N=64", "--blocks", "-3"), "--blocks -3: it must be 1 or more"),
        (("--shape", "N=64", "--schedules", "0"), "--schedules 0: it must be 1 or more"),
    ],
)
def test_what_a_file_without_an_op_is_simulated_with(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(ALONE, encoding="utf-8")
    assert command(monkeypatch, "simt", "mine.cu", *words) == 1
    assert says in flat(capsys.readouterr().err)


@needs_compiler
def test_a_file_of_fixed_sizes_is_simulated_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(FIXED, encoding="utf-8")
    assert command(monkeypatch, "simt", "mine.cu") == 0
    assert "checked: no fault" in capsys.readouterr().out
    assert command(monkeypatch, "simt", "mine.cu", "--shape", "N=3") == 1
    assert "--shape names N; the sizes in the head of mine.cu are all fixed" in flat(capsys.readouterr().err)


@needs_compiler
def test_a_file_to_simulate_that_is_not_utf8_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_bytes(FIXED.encode() + b"// \xe9\n")
    assert command(monkeypatch, "simt", "mine.cu") == 1
    assert f"mine.cu:{FIXED.count(chr(10)) + 1}: not UTF-8" in flat(capsys.readouterr().err)
    with pytest.raises(ValueError, match=r"mine\.cu:\d+: not UTF-8"):
        simt.simulate(Path("mine.cu"), "k", {"x": torch.zeros(64)}, grid=(1,), block=(32,), arguments=[("x", "ptr")])


@needs_compiler
@pytest.mark.parametrize("given", [{"schedules": 0}, {"blocks": 0}, {"blocks": -1}])
def test_less_than_one_run_or_block(given: dict[str, int]) -> None:
    (name, n), *_ = given.items()
    with pytest.raises(ValueError, match=f"{name} is {n}; it must be 1 or more"):
        simt.simulate(FIXED, "k", {"x": torch.zeros(64)}, grid=(1,), block=(32,), arguments=[("x", "ptr")], **given)


@needs_compiler
def test_sizes_that_an_op_cannot_take_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ladder = registry.ladder("softmax_cuda")
    case = next(c for c in registry.op("softmax").cases if c.inputs["dim"] == 1 and c.name in ladder.cases and c.dtype in ladder.dtypes)
    assert command(monkeypatch, "simt", "softmax_cuda/07", "--case", case.id, "--shape", "x=3") == 1
    assert "softmax cannot take x 3, dim=1: an option names a dimension that no input has" in flat(capsys.readouterr().err)
    assert command(monkeypatch, "simt", "sgemm_cuda/02", "--shape", "a=3x4,b=5x6") == 1
    assert "matmul cannot take a 3x4, b 5x6" in flat(capsys.readouterr().err)


@needs_compiler
def test_what_does_not_end_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_PATIENCE", "1")
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(ALONE, encoding="utf-8")
    ran: list[str] = []
    run = simt.run_launches

    def noted(*args: Any, mode: Any, **options: Any) -> simt.Report:
        ran.append(mode)
        return run(*args, mode=mode, **options)

    monkeypatch.setattr(simt, "run_launches", noted)
    assert command(monkeypatch, "simt", "mine.cu", "--shape", "N=64,G=1,n=64") == 1
    said = flat(capsys.readouterr().out)
    assert ran == ["check"]
    assert "an endless loop?" in said
    assert "not counted: the kernel does not end" in said
