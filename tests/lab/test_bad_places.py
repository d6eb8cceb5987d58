"""Folders for files, caches that cannot be written, no compiler: one line that says what to do, exit code 1 or 3."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from _support import command, flat

from rooftop.core import settings
from rooftop.lab import scaffold
from rooftop.lab.simt import build

KERNEL = """/* rooftop
args    = ["N: i32", "x: f32[N]", "y: f32[N]"]
[[launch]]
kernel  = "k"
grid    = ["ceil(N / 64)"]
block   = [64]
*/
__global__ void k(int n, const float* x, float* y) { const int i = blockIdx.x * 64 + threadIdx.x; if (i < n) y[i] = x[i]; }
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.cu").write_text(KERNEL, encoding="utf-8")
    (tmp_path / "own.py").write_text("def own(x):\n    return x * 1\n", encoding="utf-8")
    (tmp_path / "folder.cu").mkdir()
    (tmp_path / "damaged.jsonl").write_text('{"kind": "bench"}\n{"kind"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("check", "."), 1, ". is a folder; name files in it"),
        (("check", "folder.cu"), 1, "folder.cu is a folder; a file is needed"),
        (("simt", "folder.cu"), 1, "folder.cu is a folder; a file is needed"),
        (("simt", "[bold]x[/bold].cu"), 1, "no file [bold]x[/bold].cu"),
        (("report", "--records", "damaged.jsonl"), 1, "damaged.jsonl:1: not a record"),
        (("records", "merge", "damaged.jsonl"), 1, "damaged.jsonl:1: not a record"),
        (("report", "--out", "own.cu"), 3, "own.cu: File exists"),
    ],
)
def test_a_folder_for_a_file_and_a_file_for_a_folder(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, says: str
) -> None:
    assert command(monkeypatch, *words) == code
    said = capsys.readouterr().err
    assert says in flat(said) and len(said.strip().splitlines()) == 1


def test_a_cache_that_cannot_be_written_ends_a_check(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", "/proc/rooftop")
    assert command(monkeypatch, "check", "own.cu", "--reference", "own.py", "--shape", "N=12") == 3
    assert "set ROOFTOP_CACHE to a folder that can be written" in flat(capsys.readouterr().err)


def test_a_full_disk_ends_a_check(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(settings.load().cache / "simt" / "x"))

    monkeypatch.setattr(build, "_run", full)
    assert command(monkeypatch, "check", "own.cu", "--reference", "own.py", "--shape", "N=13") == 3
    assert "No space left on device" in flat(capsys.readouterr().err)


def test_without_a_compiler_nothing_is_called_right(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = settings.tool_path
    monkeypatch.setattr(settings, "tool_path", lambda name: None if name in ("g++", "clang++", "c++") else real(name))
    build.compiler.cache_clear()
    try:
        assert command(monkeypatch, "check", "own.cu", "--reference", "own.py", "--shape", "N=14") == 3
        said = capsys.readouterr()
        assert "no C++ compiler on PATH" in flat(said.out) and "nothing was judged" in said.err
        assert command(monkeypatch, "simt", "own.cu", "--shape", "N=14") == 3
        assert "no C++ compiler on PATH" in flat(capsys.readouterr().err)
    finally:
        build.compiler.cache_clear()


def test_a_full_disk_that_names_no_file_says_what_to_do(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scaffold, "write", full)
    assert command(monkeypatch, "new", "op", "scale") == 3
    said = capsys.readouterr().err
    assert "no space left on the disk; free some" in flat(said) and len(said.strip().splitlines()) == 1
