"""Folders for files, caches that cannot be written, no compiler: one line that says what to do, exit code 1 or 3."""

from __future__ import annotations

import ast
import errno
import os
import pwd
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from _support import command, flat
from packaging.requirements import Requirement

from rooftop.core import disk_cache, settings
from rooftop.lab import scaffold
from rooftop.lab.inspect import binary
from rooftop.lab.report import site
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


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("check", "."), 1, ". is a folder; name files in it"),
        (("check", "folder.cu"), 1, "folder.cu is a folder; a file is needed"),
        (("simt", "folder.cu"), 1, "folder.cu is a folder; a file is needed"),
        (("simt", "[bold]x[/bold].cu"), 1, "no file [bold]x[/bold].cu"),
        (("report", "--records", "damaged.jsonl"), 1, "damaged.jsonl:1: not a record"),
        (("records", "merge", "damaged.jsonl"), 1, "damaged.jsonl:1: not a record"),
        (("report", "--out", "own.cu"), 3, "own.cu is a file; a folder is needed"),
        (("climb", "softmax_cuda", "--out", "own.cu"), 3, "own.cu is a file; a folder is needed"),
        (("decompress", ".", "out.npy"), 3, ". is a folder; a file is needed"),
        (("records", "prune", "--records", "own.cu"), 3, "own.cu is no folder"),
        (("check", "<b>softmax</b>"), 1, "no ladder '<b>softmax<'"),
        (("check", "[bold]softmax[/bold]"), 1, "no ladder '[bold]softmax['"),
        (("show", "softmax_cuda/[red]01"), 1, "[red]01"),
        (("inspect", "softmax_cuda/01", "--case", "[link=x]<i>"), 1, "[link=x]<i>"),
        (("new", "op", "[bold]x"), 1, "[bold]x"),
    ],
)
def test_a_folder_for_a_file_and_a_file_for_a_folder(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, says: str
) -> None:
    assert command(monkeypatch, *words) == code
    said = capsys.readouterr().err
    assert says in flat(said) and len(said.strip().splitlines()) == 1


@pytest.mark.sampled("slow")
def test_a_cache_that_cannot_be_written_ends_a_check(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", "/proc/rooftop")
    assert command(monkeypatch, "check", "own.cu", "--reference", "own.py", "--shape", "N=12") == 3
    assert "set ROOFTOP_CACHE to a folder that can be written" in flat(capsys.readouterr().err)


@pytest.mark.sampled("slow")
def test_a_full_disk_ends_a_check(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real, full = settings.tool_path("g++"), own / "bin" / "g++"
    if real is None:
        pytest.skip("no g++")
    full.parent.mkdir()
    says = 'echo "fatal error: error writing to kernel.o: No space left on device" >&2; exit 1'
    full.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) {says};; *) exec {real} "$@";; esac\n', encoding="utf-8")
    full.chmod(0o755)
    monkeypatch.setenv("PATH", f"{full.parent}:{os.environ['PATH']}")
    assert command(monkeypatch, "check", "own.cu", "--reference", "own.py", "--shape", "N=13") == 3
    assert "No space left on device" in flat(capsys.readouterr().err)


@pytest.mark.sampled("slow")
def test_without_a_compiler_nothing_is_called_right(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(own / "nothing"))
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
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scaffold, "written", full)
    assert command(monkeypatch, "new", "op", "scale") == 3
    said = capsys.readouterr().err
    assert "no space left on the disk; free some" in flat(said) and len(said.strip().splitlines()) == 1


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("HOME", "ROOFTOP_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert command(monkeypatch, "cache") == 3
    said = capsys.readouterr().err
    assert "this user has no home folder: set HOME, or ROOFTOP_CACHE to a folder" in flat(said) and len(said.strip().splitlines()) == 1
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    assert command(monkeypatch, "cache") == 0, "what is kept beside the cache lies in it then"
    assert settings.load().predictions == tmp_path / "cache" / "predictions.jsonl"
    monkeypatch.setenv("HOME", "")
    with pytest.raises(OSError, match="set HOME, or X"):
        settings.home("X")


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("words", [("fuzz", "add", "--calls", "1"), ("warm", "rms_norm", "--dtype", "bf16"), ("inspect", "add__triton", "--arch", "80")])
def test_a_cache_of_tritons_that_cannot_be_written_is_no_finding(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(own / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/triton")
    assert command(monkeypatch, *words) == 3
    said = capsys.readouterr().err
    assert "set TRITON_CACHE_DIR to a folder that can be written" in flat(said) and len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_cache_of_tritons_that_was_cut_off_is_made_anew(own: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(own / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(own / "triton"))
    for _ in range(2):
        assert command(monkeypatch, "inspect", "add__triton", "--arch", "80") == 0
        files = [p for p in own.joinpath("triton").rglob("*") if p.is_file()]
        assert files
        for path in files:
            os.truncate(path, int(path.stat().st_size * share))
        for path in own.joinpath("cache").rglob("*.of.json"):
            path.unlink()
    assert disk_cache.mend_triton() and not disk_cache.mend_triton()


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("text", ["[1, 2]", '"x"', '{"child_paths": 3}', "[" * 100_000, "null"])
def test_a_cache_of_tritons_that_holds_other_tables_is_made_anew(own: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(own / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(own / "triton"))
    assert command(monkeypatch, "inspect", "add__triton", "--arch", "80") == 0
    for path in own.joinpath("triton").rglob("*.json"):
        path.write_text(text, encoding="utf-8")
    for path in own.joinpath("cache").rglob("*.of.json"):
        path.unlink()
    assert command(monkeypatch, "inspect", "add__triton", "--arch", "80") == 0
    assert not disk_cache.mend_triton()


def test_a_climb_asks_for_its_tools_before_it_checks(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(binary, "_candidates", lambda name: iter(()))
    assert command(monkeypatch, "climb", "softmax_cuda", "--out", "pages") == 3
    said = capsys.readouterr()
    assert "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm" in flat(said.err) and not said.out


@pytest.mark.parametrize(("does", "says"), [("exit 1", "it ended with 1 and said nothing"), ("kill -9 $$", "signal 9 ended it")])
def test_a_compiler_that_fails_without_a_word_is_named(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], does: str, says: str
) -> None:
    broken = own / "bin" / "g++"
    broken.parent.mkdir()
    broken.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ROOFTOP_CACHE", str(own / "cache"))
    build.compiler.cache_clear()
    try:
        assert command(monkeypatch, "simt", "own.cu", "--shape", "N=15") == 3
        assert f"bin/g++ does not work: {says}" in flat(capsys.readouterr().err)
    finally:
        build.compiler.cache_clear()


def test_a_full_cache_is_named_where_the_error_names_no_file(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *(() if _ else (str(settings.triton_cache()),)))

    monkeypatch.setattr(scaffold, "written", full)
    monkeypatch.setattr(disk_cache, "ready", full)
    assert command(monkeypatch, "new", "op", "scale") == 3
    assert "set TRITON_CACHE_DIR to a folder that can be written" in flat(capsys.readouterr().err)


def test_a_file_of_records_is_read_as_the_house_s_own(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_RESULTS", str(own / "damaged.jsonl"))
    assert command(monkeypatch, "report", "--out", "pages") == 1
    assert "damaged.jsonl:1: not a record" in flat(capsys.readouterr().err)


def test_a_damaged_record_is_named_once(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "results").mkdir()
    (own / "damaged.jsonl").rename(own / "results" / "damaged.jsonl")
    monkeypatch.setenv("ROOFTOP_RESULTS", str(own / "results"))
    assert command(monkeypatch, "report", "--out", "pages") == 1
    said = capsys.readouterr().err
    assert flat(said).count("damaged.jsonl:1: not a record") == 1 and len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [("ls",), ("show", "softmax_cuda"), ("report", "--out", "pages"), ("predictions",)])
@pytest.mark.parametrize(
    ("kind", "says"),
    [("file", "is no folder"), ("loop", "Too many levels of symbolic links; a folder of records is needed"), ("nothing", "a link to nothing"),
     ("below a file", "own.cu is a file; a folder is needed")],
)
def test_a_place_of_records_that_is_none_is_named(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], kind: str, says: str
) -> None:
    place = own / "results"
    if kind == "file":
        place.write_text("", encoding="utf-8")
    elif kind == "below a file":
        place = own / "own.cu" / "results"
    else:
        place.symlink_to(place if kind == "loop" else own / "absent")
    monkeypatch.setenv("ROOFTOP_RESULTS", str(place))
    assert command(monkeypatch, *words) in (1, 3)
    said = capsys.readouterr().err
    assert says in flat(said) and str(own) in said and len(said.strip().splitlines()) == 1, said


def test_a_python_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(ImportError, match=r"rooftop needs Python 3\.11 or later; this is \d"):
        runpy.run_path(str(settings.PACKAGE / "__init__.py"))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or later.*make run PYTHON=python3\.12"):
        monkeypatch.setattr(sys, "argv", ["environment.py", "folder"])
        runpy.run_path(str(settings.CHECKOUT / "scripts" / "environment.py"), run_name="__main__")
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or later.*python3\.12 -m pip install"):
        runpy.run_path(str(settings.CHECKOUT / "setup.py"))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or later; this is \d"):
        monkeypatch.setattr(sys, "argv", ["-m", "ls"])
        exec((settings.PACKAGE / "__init__.py").read_text(encoding="utf-8"), {})  # runpy sets argv itself
    for file in (settings.PACKAGE / "__init__.py", settings.CHECKOUT / "scripts" / "environment.py", settings.CHECKOUT / "setup.py"):
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 7))
        assert "from __future__" not in file.read_text(encoding="utf-8"), "Python 3.6 ends at it, and names no version"


def test_an_older_python_meets_setup_py_before_any_requirement() -> None:
    wanted = [Requirement(r) for r in tomllib.loads((settings.CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]]
    for python in ("3.8", "3.10", "3.11"):
        (one,) = [r for r in wanted if r.marker is None or r.marker.evaluate({"python_version": python})]
        assert (not one.specifier) == (python != "3.11"), "no setuptools of today is for an older Python: pip would end before setup.py says so"


def test_the_package_runs_as_a_module() -> None:
    said = subprocess.run([sys.executable, "-m", "rooftop", "--help"], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "Usage" in said.stdout


def test_a_full_disk_leaves_no_half_page(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match=r"index\.html") as found:
        site._place(own / "index.html", "text")
    assert found.value.errno == errno.ENOSPC and not list(own.glob(".index*"))


def test_a_file_that_is_not_there_is_named_without_a_number(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "decompress", "absent.rft") == 1
    assert flat(capsys.readouterr().err).strip() == "rooftop: no file absent.rft"
