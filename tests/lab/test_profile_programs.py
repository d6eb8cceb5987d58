"""rooftop profile of a program: a Python program by events and torch.profiler, without a GPU as far as that goes; what is refused, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rooftop.core.compile import ToolchainError
from rooftop.lab.cli import app, commands
from rooftop.lab.counters.diagnose import command

SCRIPT = """
import sys
from pathlib import Path
import numbers, torch
import beside
x = torch.ones(64, 64)
for _ in range(3):
    x = x @ x.T / 64
assert issubclass(int, numbers.Integral)  # Python's own module
Path("args.txt").write_text(" ".join([__name__, beside.NAME, *sys.argv[1:]]))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "beside.py").write_text("NAME = 'beside'\n")
    (folder / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return folder / "train.py"


def profiled(*arguments: object) -> Result:
    commands()
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


@pytest.mark.sampled("slow")
def test_a_script_under_torch_profiler_without_a_gpu(script: Path, tmp_path: Path) -> None:
    done = profiled("--with", "torch", "--out", "p", "--", sys.executable, "-W", "ignore", script, "--epochs", 0)
    assert done.exit_code == 0, (done.output, done.exception)
    assert (tmp_path / "args.txt").read_text() == "__main__ beside --epochs 0"
    assert "Self CPU" in done.stdout and "there is no GPU that torch can use" in done.stdout
    assert any(e.get("name") == "aten::mm" for e in json.loads((tmp_path / "p" / "trace.json").read_text())["traceEvents"])


def test_a_script_with_events_and_its_failure_is_told(script: Path) -> None:
    done = profiled("--with", "events", "--out", "p", "--", script, "--epochs", 3)
    assert done.exit_code == 1 and "wall clock" in done.stdout and "events      not collected" in done.stdout
    assert "ended with status 3" in done.output


@pytest.mark.sampled("slow")
def test_a_module_and_code_run_as_python_runs_them(script: Path, tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys; open('seen', 'w').write(__name__ + ' '.join(sys.argv[1:]))")
    assert command.run([sys.executable, "-m", "mod", "a"], "events", tmp_path / "p")["wall_s"] > 0
    assert (tmp_path / "seen").read_text() == "__main__a"
    assert command.run([sys.executable, "-c", "def f(): return f.__name__\nraise ValueError(f())"], "events", tmp_path / "p")["status"] == 1


def test_a_console_script_is_python(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f"#!{sys.executable}\nprint(1)\n")
    assert command.is_program(str(tool), ["a"]) and not command.is_program(str(tool), [])
    tool.chmod(0o755)
    assert command.is_program(str(tool), []) and not command.is_program("softmax", [])
    found = command.python_program([str(tool), "a"])
    assert (found.interpreter, found.kind, found.name, found.arguments) == ((sys.executable,), "file", str(tool), ("a",))


def test_what_is_refused(tmp_path: Path) -> None:
    for how in ("events", "torch"):
        refused = profiled("--with", how, "--out", tmp_path / "p", "--", "/bin/sh", "-c", "true").exception
        assert isinstance(refused, ValueError) and "rooftop profile --with ncu -- /bin/sh -c true" in str(refused)
    for line, said in (([sys.executable], "runs no program"), ([sys.executable, "-m"], "needs a module"), (["no_such_tool", "1"], "no such program"),
                       ([sys.executable, "absent.py"], "no such file"), (["./python3", "a.py"], "no such interpreter")):
        with pytest.raises(ValueError, match=said):
            command.python_program(line)
    assert profiled("--with", "torch", "--case", "a", "--", "python", "a.py").exit_code == 2


def test_an_interpreter_without_torch_and_a_process_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError, match="ended with status 7 before anything"):
        command.run([sys.executable, "-c", "import os; os._exit(7)"], "events", tmp_path / "p")
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"has no torch.*--with ncu does not"):
        command.run([sys.executable, "-c", "1"], "torch", tmp_path / "p")
