"""The command line: exit codes, misspelt names, packages and caches that are missing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from _support import KERNEL, command, flat

import rooftop
from rooftop.core import registry, settings
from rooftop.core.texts import CONTROL
from rooftop.lab import cli, climb, doctor
from rooftop.lab.cli.app import _narrow
from rooftop.lab.exit_codes import ended


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
@pytest.mark.parametrize("words", [("bench", "add"), ("calibrate",), ("tune", "add"), ("sanitize", "add")], ids=" ".join)
def test_commands_that_need_a_gpu_say_so_with_exit_code_3(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *words) == 3
    said = capsys.readouterr()
    assert said.out == "" and "needs an NVIDIA GPU" in flat(said.err)


@pytest.mark.sampled("slow")
def test_the_command_line_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> Any:
        assert command(monkeypatch, *words, "--json") == 0
        return json.loads(capsys.readouterr().out)

    assert {r["name"] for r in printed("ls")} >= {"softmax", "matmul", "add", "sgemm_cuda", "softmax_cuda"}
    assert printed("check", "add", "--case", "odd f32")["results"][0]["status"] == "ok"
    assert printed("explain", "softmax")


without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")


@pytest.mark.parametrize("words", [("inspect", "add", "--arch", "75"), ("explain", "add", "--arch", "75")])
def test_a_target_that_is_not_compiled_for(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, *words) == 1
    assert "sm_75 is not one of sm_80, sm_86, sm_89, sm_90, sm_100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "softmax_cuda/03_onlin"), "did you mean 'softmax_cuda/03_online'?"),
        (("check", "softmax_cud/03"), "did you mean 'softmax_cuda'?"),
        (("check", "add__tritn"), "did you mean 'add__triton'?"),
        (("check", "add", "--case", "od f32"), "no case of add 'od f32'; did you mean 'odd f32'?"),
        (("explain", "ad"), "did you mean 'add'?"),
        (("explain", "add", "--case", "odd f3"), "did you mean 'odd f32'?"),
        (("where", "gleu"), "did you mean 'gelu'?"),
        (("inspect", "sgemm_cuda/naiv"), "did you mean 'sgemm_cuda/01_naive'?"),
        (("climb", "sgemm_cud"), "did you mean 'sgemm_cuda'?"),
        (("bench", "softmx"), "did you mean 'softmax'?"),
        (("sanitize", "softmx"), "did you mean 'softmax'?"),
        (("tune", "softmx"), "did you mean 'softmax'?"),
        (("records", "merge", "nowhere-at-all"), "no nowhere-at-all"),
        (("new", "opp", "scale"), "kind is 'opp'; it is one of op, kernel, rung"),
        (("new", "kernel", "softmx__triton"), "did you mean 'softmax'?"),
        (("new", "kernel", "softmax__tritn"), "no backend 'tritn'; did you mean 'triton'?"),
        (("new", "kernel", "softmax"), "must read <op>"),
        (("inspect", "add", "--arch", "h40"), "'h40' is not one of sm_80, sm_86, sm_89, sm_90, sm_100, sm_103, sm_120, gfx942"),
        (("inspect", "add__triton", "--arch", "gfx942"), "rooftop targets add__triton --target gfx942 has its figures"),
        (("new", "rung", "softmax_cud/09_mine"), "did you mean 'softmax_cuda'?"),
        (("new", "op", "Two Words"), "cannot name an op"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_a_misspelt_name_gets_a_hint_and_exit_code_1(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *words) == 1
    assert says in flat(capsys.readouterr().err)


def test_a_misspelt_file_name_gets_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernel.cu").write_text(KERNEL)
    assert command(monkeypatch, "check", str(tmp_path / "kernle.cu")) == 1
    assert "did you mean 'kernel.cu'" in flat(capsys.readouterr().err)
    with pytest.raises(FileNotFoundError, match=r"no file .*kernle\.cu; did you mean 'kernel\.cu'"):
        rooftop.load(tmp_path / "kernle.cu")
    for name in ("zz.cu", "no folder/kernel.cu"):
        assert command(monkeypatch, "check", str(tmp_path / name)) == 1
        assert "did you mean" not in capsys.readouterr().err


def test_a_misspelt_folder_of_records_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rooftop.lab import climb

    monkeypatch.setattr(climb, "build_report", lambda out, known: out)  # the pages themselves take seconds
    assert command(monkeypatch, "report", "--records", str(tmp_path / "reslts"), "--out", str(tmp_path / "pages")) == 1
    assert "reslts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--dtype", "f33"), "no case has dtype 'f33'; there are bf16, f16, f32"),
        (("--tag", "edgy"), "no case has tag 'edgy'; there are bench, edge"),
        (("--tag", "edge", "--tag", "edgy"), "no case has tag 'edgy'"),
        (("--tag", "huge", "--no-huge"), "nothing to check: no case of add is left"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_a_choice_that_leaves_no_case_is_an_error(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "check", "add", *words) == 1
    assert says in flat(capsys.readouterr().err)


def test_an_unknown_backend_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "check", "add", "--case", "odd f32", "--backend", "gpuu") in (1, 2)
    assert "gpuu" in capsys.readouterr().err


def test_a_setting_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_JOBS", "two")
    assert command(monkeypatch, "inspect", "add", "--arch", "90") == 1
    assert "ROOFTOP_JOBS is 'two'" in capsys.readouterr().err


@without_gpu
@pytest.mark.sampled("slow")
def test_the_doctor_says_that_there_is_no_gpu_and_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = command(monkeypatch, "doctor", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert any(r["state"] != "ok" and "GPU" in r["what"] + r["found"] and r["do"] for r in rows), rows
    assert code == (3 if any(r["state"] == "missing" and r["needed"] for r in rows) else 0)


@without_gpu
def test_a_check_on_a_gpu_that_is_not_there_has_exit_code_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "check", "add", "--case", "odd f32", "--backend", "gpu") == 3
    assert "needs an NVIDIA GPU" in flat(capsys.readouterr().err)


@pytest.mark.parametrize("words", [("nosuch",), ("ls", "--bad"), ("where",), ("inspect", "add", "--arch", "x")])
def test_a_usage_error_is_not_the_exit_code_of_a_slower_kernel(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, *words) == 1


def test_exit_code_two_is_left_to_those_who_mean_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower() -> None:
        raise typer.Exit(2)

    monkeypatch.setattr(cli, "app", typer.Typer())
    cli.app.command()(slower)
    assert command(monkeypatch) == 2


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("jinja2", "jinja2"), ("liger_kernel.ops", "liger-kernel"), ("cuda.bindings.nvrtc", "cuda-bindings"),
        ("cuda.core.experimental", "cuda-core"), ("nvidia.cu13", "nvidia-cuda-runtime"),
    ],
)
def test_a_package_that_is_missing_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def absent() -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(cli, "commands", absent)
    assert command(monkeypatch, "ls") == 3
    assert capsys.readouterr().err == f"rooftop: {package} is not installed: pip install {package}\n"


@pytest.mark.sampled("slow")
def test_where_there_are_no_records_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As in an installed package: nothing but the measured figures is missing."""
    monkeypatch.setenv("ROOFTOP_RESULTS", str(tmp_path / "results"))
    for words in (("show", "softmax_cuda"), ("predictions",), ("report", "--out", str(tmp_path / "pages"))):
        command(monkeypatch, *words)
        said = [line for line in capsys.readouterr().err.splitlines() if "no records" in line]
        assert said == [f"no records in {tmp_path / 'results'}: measured figures are missing. rooftop's checkout has some; ROOFTOP_RESULTS names their folder"]


def test_a_module_that_rooftop_does_not_use_is_no_package_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'my_helpers.data'", name="my_helpers.data")

    monkeypatch.setattr(cli, "commands", absent)
    assert command(monkeypatch, "ls") == 3
    assert capsys.readouterr().err == "rooftop: Python finds no module my_helpers.data, which rooftop does not use itself\n"


WITHOUT_BINDINGS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("cuda.bindings"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from rooftop.core import compile
for ask in (compile.nvrtc_version, compile._cuda_core):
    try:
        ask()
    except compile.ToolchainError as error:
        print(error)
"""


def test_without_cuda_bindings_the_compiler_names_them() -> None:
    said = subprocess.run([sys.executable, "-c", WITHOUT_BINDINGS], cwd=settings.CHECKOUT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 2
    assert all(line.startswith("cuda-bindings is not installed (") and line.endswith("pip install cuda-core cuda-bindings nvidia-cuda-nvrtc") for line in said)


def test_a_file_that_is_no_python_is_one_line_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")
    made.ops.mkdir()
    (made.ops / "torn.py").write_text('"""Torn."""\n\nOP = Op(\n')
    with pytest.raises(registry.RegistryError, match=r"torn\.py, line 3: '\(' was never closed"):
        registry.op("torn", made)
    real = registry.op
    monkeypatch.setattr(registry, "op", lambda name, house=registry.HOUSE: real("torn", made) if name == "add" else real(name, house))
    assert command(monkeypatch, "explain", "add") == 1
    assert capsys.readouterr().err == f"rooftop: {made.ops / 'torn.py'}, line 3: '(' was never closed\n"
    kernel = tmp_path / "square__triton.py"
    kernel.write_text("def supports(p):\nreturn None\n")
    assert command(monkeypatch, "inspect", str(kernel)) == 1
    apart = f"{kernel}: Python, which may do all that you may; it runs in a process of its own (docs/trust.md)\n"
    assert capsys.readouterr().err == f"{apart}rooftop: {kernel}, line 2: expected an indented block after function definition on line 1\n"


def test_a_module_of_the_house_that_is_missing_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'rooftop.nosuch'", name="rooftop.nosuch")

    monkeypatch.setattr(cli, "commands", absent)
    with pytest.raises(ModuleNotFoundError):
        command(monkeypatch, "ls")


def test_doctor_names_the_packages_that_pages_and_references_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    rows = {r.what: r for r in doctor._packages()}
    assert (rows["jinja2"].state, rows["jinja2"].do, rows["jinja2"].needed) == ("missing", "pip install jinja2", True)
    assert rows["ml_dtypes"].state == "ok"


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError, NotADirectoryError])
@pytest.mark.parametrize("where", ["cache/simt/ab", "cache", ""])
def test_a_cache_that_cannot_be_used_names_its_setting(
    error: type[OSError], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))

    def fails() -> None:
        raise error(1, "No", str(tmp_path / where))

    monkeypatch.setattr(cli, "app", fails)
    assert command(monkeypatch, "ls") == 3
    assert "ROOFTOP_CACHE" in capsys.readouterr().err


def test_another_file_that_is_not_there_is_no_matter_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))

    def fails() -> None:
        raise FileNotFoundError(2, "No such file", str(tmp_path / "mine.cu"))

    monkeypatch.setattr(cli, "app", fails)
    assert command(monkeypatch, "ls") == 1
    assert "ROOFTOP_CACHE" not in capsys.readouterr().err


def test_where_names_the_files_of_what_was_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an op all kernels; of one kernel what that includes alone."""
    assert command(monkeypatch, "where", "layer_norm__cuda_sm90") == 0
    one = capsys.readouterr().out.split()
    assert one[:2] == ["rooftop/ops/layer_norm.py", "rooftop/kernels/norm/norms__cuda_sm90.cu"] and "rooftop/kernels/norm/norms__cuda_sm90.py" in one
    assert not any("triton" in path or "bwd" in path for path in one)
    assert command(monkeypatch, "where", "layer_norm") == 0
    every = capsys.readouterr().out.split()
    assert set(one) < set(every) and any("norms_bwd__triton" in path for path in every)


def test_where_says_on_a_terminal_what_a_file_is_about() -> None:
    from rooftop.core import settings
    from rooftop.lab.cli.look import about

    assert about(settings.PACKAGE / "kernels" / "_device" / "tensor_map.cuh").startswith("CUtensorMap, for which NVRTC")
    assert about(settings.PACKAGE / "ops" / "layer_norm.py").startswith("Layer normalisation of rows")
    assert about(settings.PACKAGE / "ladders" / "softmax_cuda" / "04_warp_shuffle.cu").startswith("The threads of a warp reduce maximum and sum")


def test_a_narrow_table_hangs_its_long_text_in_the_row_and_breaks_no_path() -> None:
    path = "/a/" + "long/" * 20 + "path"
    rows = [{"kind": "op", "name": "sort", "what": "one two " * 12, "do": "do this and that, and then the rest"}]
    rows += [{"kind": "op", "name": "x" * 27, "what": path}]
    lines = "\n".join(_narrow(rows, {"kind": "kind", "name": "name", "what": "what", "do": "do"}, "", 80)).splitlines()
    at = lines[0].index("what")
    assert all(line[at:].startswith("one two one two") or line[at:].startswith("two one two") for line in lines[2:4])
    assert lines[2].split()[:2] == ["op", "sort"]
    assert not lines[3][:at].strip()
    assert "    do: do this and that, and then the rest" in lines
    assert any(line.endswith(path) for line in lines)
    assert all(len(line) <= 80 for line in lines if path not in line)


def test_texts_of_several_lines_stand_below_their_row() -> None:
    lines = "\n".join(_narrow([{"case": "a", "what": "first of many words " * 3 + "\n  second"}], {"case": "case", "what": "what runs"}, "", 60)).splitlines()
    assert lines[0] == "case"
    assert lines[3].startswith("    what runs: first")
    assert lines[-1] == "      second"


def test_a_reader_that_closes_the_pipe_is_no_wrong_result() -> None:
    def task() -> None:
        try:
            raise BrokenPipeError
        except OSError:
            sys.exit(1)  # as typer does

    with pytest.raises(SystemExit) as end:
        ended(task)
    assert end.value.code == 141


def test_the_doctor_says_what_to_do_without_a_cpp_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.settings, "tool_path", lambda name: None)
    row = next(r for r in doctor._optional() if r.what == "C++ compiler")
    assert row.state == "absent"
    assert "apt install g++" in row.do


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as a terminal leaves it, here and in what this process starts: under nohup and in the background of a script it is ignored, and inherited so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "commands", interrupted)
    assert command(monkeypatch, "ls") == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    "task",
    [f"exec({'import os, signal; os.kill(os.getpid(), signal.SIGINT); os.sched_yield()'!r})",  # Python ended by the signal itself
     "import caught",  # the package went on, half imported
     "os.kill(os.getpid(), signal.SIGINT)"],
)
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_command_wherever_it_comes(task: str, tmp_path: Path) -> None:
    (tmp_path / "caught.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    os.sched_yield()\nexcept BaseException:\n    pass\n", encoding="utf-8"
    )
    (tmp_path / "run.py").write_text(
        f"import os, signal, sys\nfrom rooftop.lab.exit_codes import ended\n\ndef task():\n    {task}\n\nended(task)\n", encoding="utf-8"
    )
    env = {**os.environ, "PYTHONPATH": str(settings.CHECKOUT)}
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 130 and not done.stderr


@pytest.mark.parametrize("words", [("explain", "add", "\u202eabc"), ("ls", "\x1b[31m"), ("explain", "--\x1b[1m", "add"), ("bench", "--budget", "\u202e")])
def test_a_usage_error_shows_no_control_characters(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, *words) == 1
    said = capsys.readouterr().err
    assert CONTROL.search(said) is None and re.search(r"\\(u202e|x1b)", said)


def test_a_rank_that_is_ended_is_an_error_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.multiprocessing as mp

    from rooftop.lab.check import ranks

    def ended_by_somebody(*_: object) -> None:
        raise mp.ProcessExitedException("process 0 terminated with signal SIGKILL", 0, 1, -9)

    monkeypatch.setattr(mp, "spawn", ended_by_somebody)
    (result,) = ranks.check_here("all_reduce_ranks", 2, 0)
    assert result.status == "error" and "terminated with signal SIGKILL; run it again" in result.message


def test_report_says_what_it_does_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def build(out: Path, known: Any, digests: Any, say: Callable[[str], None], *rest: Any) -> tuple[Path, str]:
        say("page [1] of 2")
        return out / "index.html", ""

    monkeypatch.setattr(climb, "build_report", build)
    monkeypatch.setattr(climb, "EVERY_S", 0.0)
    (tmp_path / "records").mkdir()
    assert command(monkeypatch, "report", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")) == 0
    assert "page [1] of 2\n" in capsys.readouterr().err
