"""Python of the user's, which runs in a process of its own alone (`apart_child`; of whole commands `rooftop.lab.cli.elsewhere`).

Loading it, its functions, its reference, compiling and every case have limits. What it does to its process is a finding: that ends, or does
not end, or fills the memory. Nothing but an answer of the right form counts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rooftop.core import settings
from rooftop.core.child import ChildError, Process
from rooftop.core.compile import ToolchainError
from rooftop.core.texts import brief
from rooftop.lab.check.result import Result
from rooftop.lab.exit_codes import NoGpuError, echo

PRINTED = 4000  # characters of what it prints that are shown


@dataclass(frozen=True)
class Loaded:
    """The answer where a file is loaded: subject, op and case of each that is judged, of `whole`; whether none of them can run here."""

    cases: list[tuple[str, str, str]]
    whole: int
    unable: bool


@dataclass(frozen=True)
class Judged:
    """The answer to a case, with the identity that a record of it has."""

    result: Result
    facts: dict[str, str]


@dataclass(frozen=True)
class Problem:
    """An error that is of what was asked: `kind` says which exception."""

    kind: Literal["gpu", "toolchain", "module", "system", "value"]
    text: str
    name: str | None = None
    number: int = 0


@dataclass(frozen=True)
class Raised:
    raised: Problem


@dataclass(frozen=True)
class Lost:
    """What the file's Python raised."""

    lost: str


class Apart:
    """The process, with the file that it is of."""

    def __init__(self, word: str, module: str = "rooftop.lab.check.apart_child") -> None:
        self.word = word
        about = {"COLUMNS": str(shutil.get_terminal_size().columns)}
        self._process = Process(Path(sys.executable), module, about, what=Path(word).name, slow=" (ROOFTOP_STEP_SECONDS)")

    def ask(self, what: str, *forms: type, **more: Any) -> Any:
        """Raises ChildError, and what is wrong with what was asked as the commands raise it."""
        said = self._process.ask({"what": what, "kernel": self.word, **more}, settings.load().step_seconds, *forms, Lost, Raised)
        if isinstance(said, Raised):
            _raise(said.raised)
        return said

    def end(self) -> str:
        """End the process, with all that it has started. What the file printed, cut, without control characters."""
        from rooftop.lab.simt import build

        printed = self._process.printed(PRINTED)
        self._process.close(patience=0.5)
        if (pid := self._process.pid) is not None:
            build.remove_left_by(pid)
        return printed


class Own(Apart):
    """One file, loaded: `cases` of them are judged, of `whole`. `lost`: what became of it instead. `unable`: none of its cases can run
    here."""

    def __init__(self, word: str, choice: Any, reference: str | None = None, shapes: Sequence[dict[str, int]] = ()) -> None:
        """`choice`: a `selection.Choice`. Raises ValueError and the like for what the file, or what is asked of it, is not; as the commands
        do for an op."""
        super().__init__(word)
        self.whole, self.unable, self.lost = 0, False, ""
        self._named: list[tuple[str, str, str]] = []
        told = {**asdict(choice), "records": None if choice.records is None else str(choice.records)}
        try:
            said = self.ask("loading", Loaded, word=word, reference=reference, shapes=list(shapes), choice=told)
        except ChildError as error:
            self.lost = str(error)
            return
        except BaseException:
            self.end()
            raise
        if isinstance(said, Lost):
            self.lost = f"loading {Path(word).name}: {said.lost}"
        else:
            self.whole, self.unable, self._named = said.whole, said.unable, said.cases

    @property
    def cases(self) -> int:
        return len(self._named)

    def results(self) -> Iterator[tuple[Result, dict[str, str]]]:
        """Of each case the result, and the identity that a record of it has. After a case that ended the process none is judged any
        more."""
        if self.lost:
            yield Result(Path(self.word).stem, "", "all", "error", message=brief(self.lost)), {}
        ended = ""
        for number, (name, op, case) in enumerate(self._named):
            if ended:
                yield Result(name, op, case, "error", message=f"not judged: {ended} ended the process"), {}
                continue
            try:
                said = self.ask("case", Judged, number=number)
                result = Result(name, op, case, "error", message=said.lost) if isinstance(said, Lost) else said.result
                yield replace(result, message=brief(result.message)), {} if isinstance(said, Lost) else said.facts
            except ChildError as error:
                ended = case
                yield Result(name, op, case, "error", message=str(error)), {}


def announce(files: Sequence[str]) -> None:
    echo(f"{', '.join(files)}: Python, which may do all that you may; it runs in a process of its own (docs/trust.md)", err=True)


def show_printed(word: str, printed: str) -> None:
    if printed.strip():
        echo(f"{word} printed:\n{printed.strip()}", err=True)


def _raise(found: Problem) -> None:
    """What the process has found wrong with what was asked, raised here."""
    match found.kind:
        case "gpu":
            raise NoGpuError(found.text)
        case "toolchain":
            raise ToolchainError(found.text)
        case "module":
            raise ModuleNotFoundError(found.text, name=found.name)
        case "system":
            raise OSError(found.number, found.text, found.name)
    raise ValueError(found.text)
