"""Any command line between two CUDA events or under torch.profiler: a Python program is run in a process of its own by command_child.py.

Both are calls in the process that launches the kernels. A program that is not Python makes no such calls, and none can be put around it
from outside: it is refused with a word on ncu, which needs no help of the program."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.compile import ToolchainError
from rooftop.lab.counters.diagnose.show import time as shown

CHILD = Path(__file__).with_name("command_child.py")
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_VALUED = ("-W", "-X")  # options of the interpreter that take the next argument


@dataclass(frozen=True)
class Program:
    """A Python program: `interpreter` with its own options, `kind` (file, module, code), its name or source, and its arguments."""

    interpreter: tuple[str, ...]
    kind: str
    name: str
    arguments: tuple[str, ...]


def is_program(what: str, arguments: Sequence[str]) -> bool:
    """Whether what `rooftop profile` was given is a command line: it has arguments, or is an executable that is no kernel's file."""
    path = Path(what)
    return bool(arguments) or (path.suffix not in (".py", ".cu") and path.is_file() and bool(path.stat().st_mode & 0o111))


def python_program(command: Sequence[str]) -> Program:
    """The Python program that a command line runs. Raises ValueError, saying what works instead, for any other."""
    first, rest = command[0], list(command[1:])
    found = Path(first) if "/" in first else settings.tool_path(first)
    if _PYTHON.fullmatch(Path(first).name):
        if found is None or not found.is_file():
            raise ValueError(f"{first}: there is no such interpreter")
        options = [str(found)]
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if option in ("-m", "-c"):
                if not rest:
                    raise ValueError(f"{shlex.join(command)}: {option} needs a {'module' if option == '-m' else 'program'}")
                return Program(tuple(options), "module" if option == "-m" else "code", rest[0], tuple(rest[1:]))
            options.append(option)
            if option in _VALUED and rest:
                options.append(rest.pop(0))
        if not rest:
            raise ValueError(f"{shlex.join(command)} runs no program")
        return _file(tuple(options), rest[0], rest[1:])
    if Path(first).suffix == ".py":
        return _file((sys.executable,), first, rest)
    if found is None or not found.is_file():
        raise ValueError(f"{first}: there is no such program")
    with open(found, "rb") as file:
        head = file.readline(256).decode("utf-8", "replace").strip()
    if head.startswith("#!") and _PYTHON.fullmatch(Path(head.split()[-1]).name):
        named = head[2:].split()[-1]
        interpreter = Path(named) if "/" in named else settings.tool_path(named)
        if interpreter is not None and interpreter.is_file():
            return _file((str(interpreter),), str(found), rest)
    raise ValueError(
        f"{first} is no Python program. CUDA events and torch.profiler are calls in the process that launches the kernels, and cannot be "
        f"put around another "
        f"program from outside; hardware counters can: rooftop profile --with ncu -- {shlex.join(command)}"
    )


def _file(interpreter: tuple[str, ...], name: str, arguments: Sequence[str]) -> Program:
    if not Path(name).is_file():
        raise ValueError(f"{name}: there is no such file")
    return Program(interpreter, "file", name, tuple(arguments))


def run(command: Sequence[str], how: str, out: Path) -> dict[str, Any]:
    """Run a command line with `how` (events, torch), what it writes below `out`; its own output goes where ours goes.

    Returns `status`, `gpu` (name or None) and, with events, `wall_s` and, where there is a GPU, `events_s` and `peak_bytes`. Raises
    ValueError for a program that is not Python, ToolchainError where its interpreter has no torch or the program took the process with
    it."""
    program = python_program(command)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "trace.json", "averages.txt"):
        (out / name).unlink(missing_ok=True)
    done = subprocess.run([*program.interpreter, str(CHILD), how, str(out), program.kind, program.name, *program.arguments], check=False)
    if not (out / "run.json").is_file():
        ended = f"by signal {-done.returncode}" if done.returncode < 0 else f"with status {done.returncode}"
        raise ToolchainError(
            f"{shlex.join(command)} ended {ended} before anything could be written (a crash, or os._exit); rooftop profile --with ncu"
        )
    said: dict[str, Any] = json.loads((out / "run.json").read_text(encoding="utf-8"))
    if "error" in said:
        raise ToolchainError(f"{said['error']}: --with {how} needs it in the interpreter that runs the program; --with ncu does not")
    return said


def screen(said: dict[str, Any]) -> str:
    """What a run with events found."""
    lines = [
        f"wall clock  {shown(said['wall_s'])} from the program's first line to the end of its work, without the start of the interpreter "
        f"and of torch"
    ]
    if said["gpu"] is None:
        return "\n".join([*lines, "events      not collected: torch.cuda.is_available() is False"])
    lines.append(
        f"events      {shown(said['events_s'])} between one before and one after it on the current stream of {said['gpu']}, waiting "
        f"included"
    )
    lines.append(f"memory      {said['peak_bytes'] / 2**20:.1f} MiB of the GPU allocated by torch at most")
    return "\n".join(lines)
