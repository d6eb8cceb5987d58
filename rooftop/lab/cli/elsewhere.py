"""A command that names Python of the user's, in a process of its own: `python -m rooftop.lab.cli.elsewhere` is that process."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rooftop.core import child
from rooftop.core.child import ChildError, Jobs
from rooftop.lab.check import apart
from rooftop.lab.exit_codes import echo

inside = False  # whether this is that process


@dataclass(frozen=True)
class Said:
    """What a command writes; nothing where it only says that it goes on."""

    text: str
    error: bool


@dataclass(frozen=True)
class Ended:
    """The exit code of a command (`rooftop.lab.exit_codes`)."""

    code: Literal[0, 1, 2, 3, 130, 141]


def programs(words: Sequence[str]) -> list[str]:
    """The files among the words of a command line whose Python it would load: `my.py`, `my.py:name`, and a `.cu` whose head lists functions
    of the `.py` beside it. What comes after `--` is a program that a command starts."""
    found = []
    for word in words[: list(words).index("--")] if "--" in words else words:
        for part in (word, word.partition("=")[2]):
            file = part if part.endswith((".py", ".cu")) else part.rpartition(":")[0]
            if file.endswith((".py", ".cu")) and _is_program(Path(file)):
                found.append(file)
    return list(dict.fromkeys(found))


def _is_program(path: Path) -> bool:
    from rooftop.lab import candidates
    from rooftop.lab.check import own_op

    try:
        return candidates.is_own_file(str(path)) and own_op.is_program(path)
    except (OSError, ValueError):
        return False


def elsewhere(words: Sequence[str]) -> None:
    """Run this command in a process of its own, and end as it says, if these of its words name Python of the user's and this is not that
    process already."""
    if inside or not (files := programs(words)):
        return
    apart.announce(files)
    process = apart.Apart(files[0], "rooftop.lab.cli.elsewhere")
    try:
        code = _command(process)
    finally:
        printed = process.end()
        with contextlib.suppress(OSError):
            apart.show_printed(", ".join(files), printed)
    sys.exit(code)


def _command(process: apart.Apart) -> int:
    name = Path(process.word).name
    try:
        said = process.ask("command", Said, Ended, words=sys.argv[1:])
        while isinstance(said, Said):
            if said.text:
                echo(said.text.removesuffix("\n"), err=said.error)
            said = process.ask("command", Said, Ended)
    except ChildError as error:
        raise ValueError(str(error)) from None
    if isinstance(said, apart.Lost):
        raise ValueError(f"{name}: {said.lost}")
    return int(said.code)


def main() -> None:
    from rooftop.lab.check.apart_child import raised

    sys.path.append(str(Path.cwd()))  # modules beside the file, after Python's own
    jobs = Jobs()
    for job in jobs:
        try:
            said = _run(jobs, job["words"])
        except BaseException as error:
            said = raised(error)
        jobs.answer(said)


def _run(jobs: Jobs, words: list[str]) -> dict[str, Any]:
    from rooftop.lab.cli import elsewhere as known  # as the commands know this module, which is __main__ here

    known.inside, sys.argv, sys.modules["__main__"].__package__ = True, ["rooftop", *words], None  # of that the usage line is made
    telling = threading.Lock()
    sys.stdout, sys.stderr = (_Told(jobs, telling, error) for error in (False, True))
    child.alive = sys.stdout.alive
    try:
        runpy.run_module("rooftop.lab.cli.__main__")
    except SystemExit as end:
        if where := _foreign(end):
            return {"lost": f"{where} ends the process: SystemExit: {end.code}"}
        return {"code": end.code or 0}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return {"code": 0}


class _Told(io.TextIOBase):
    """An output of a command, told to the process that has asked for it. What the file prints itself is not."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, jobs: Jobs, telling: Any, error: bool) -> None:
        super().__init__()
        self._jobs, self._telling, self._error = jobs, telling, error
        self._process, self._line = os.getpid(), ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        from rooftop.core.backends.python_files import LOADED

        if not isinstance(text, str):
            raise TypeError(f"a text is written, not {type(text).__name__}")
        if os.getpid() != self._process or str(sys._getframe(1).f_globals.get("__name__", "")).startswith(LOADED):
            os.write(2, text.encode(errors="backslashreplace"))
            return len(text)
        self._line += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._line and os.getpid() == self._process:
            line, self._line = self._line, ""
            self._tell(line)

    def alive(self) -> None:
        """It goes on: of a step that says nothing."""
        if os.getpid() == self._process:
            self._tell("")

    def _tell(self, text: str) -> None:
        with self._telling:
            self._jobs.answer({"text": text, "error": self._error})
            next(iter(self._jobs))


def _foreign(end: SystemExit) -> str | None:
    """File and line that raised it, if that is neither of a command's own code nor of the packages that read its words."""
    at = end.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    name = "" if at is None else str(at.tb_frame.f_globals.get("__name__", ""))
    if at is None or name.startswith("rooftop.lab.") or name.partition(".")[0] in ("typer", "click", "argparse"):
        return None
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"


if __name__ == "__main__":
    main()
