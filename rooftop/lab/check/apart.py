"""A file of one's own, judged in a process of its own (`apart_child`): loading it, its functions, its reference, compiling it and every case have limits.

The file's Python runs there alone. What it does to its process is a finding: that ends, or does not end, or fills the memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.child import ChildError, Process
from rooftop.core.compile import ToolchainError
from rooftop.lab.check.result import Result
from rooftop.lab.check.selection import Choice
from rooftop.lab.ending import NoGpuError

PRINTED = 4000  # characters of what it prints that are shown


class Own:
    """One file, loaded: `cases` of them are judged, of `whole`. `lost`: what became of it instead. `unable`: none of its cases can run here."""

    def __init__(self, word: str, choice: Choice, reference: str | None = None, shapes: Sequence[dict[str, int]] = ()) -> None:
        """Raises ValueError and the like for what the file, or what is asked of it, is not; as the commands do for an op."""
        self.word, self.whole, self.unable, self.lost = word, 0, False, ""
        self._named: list[tuple[str, str, str]] = []  # subject, op and case of each that is judged
        self._process = Process(Path(sys.executable), "rooftop.lab.check.apart_child", {}, what=Path(word).name, slow=" (ROOFTOP_STEP_SECONDS)")
        told = {**asdict(choice), "records": None if choice.records is None else str(choice.records)}
        try:
            said = self._ask("loading", word=word, reference=reference, shapes=list(shapes), choice=told)
        except ChildError as error:
            self.lost = str(error)
            return
        except BaseException:
            self.end()
            raise
        if "lost" in said:
            self.lost = f"loading {Path(word).name}: {said['lost']}"
        else:
            self.whole, self.unable = int(said["whole"]), bool(said["unable"])
            self._named = [(str(name), str(op), str(case)) for name, op, case in said["cases"]]

    @property
    def cases(self) -> int:
        return len(self._named)

    def results(self) -> Iterator[tuple[Result, dict[str, str]]]:
        """Of each case the result, and the identity that a record of it has. After a case that ended the process none is judged any more."""
        if self.lost:
            yield Result(Path(self.word).stem, "", "all", "error", message=self.lost), {}
        ended = ""
        for number, (name, op, case) in enumerate(self._named):
            if ended:
                yield Result(name, op, case, "error", message=f"not judged: {ended} ended the process"), {}
                continue
            try:
                said = self._ask("case", number=number)
                found = _result(said)
                if found is None:
                    raise ChildError(f"the process of {Path(self.word).name} answers what cannot be read")
                facts = said.get("facts", {})
                yield found, {str(k): str(v) for k, v in facts.items()} if isinstance(facts, dict) else {}
            except ChildError as error:
                ended = case
                yield Result(name, op, case, "error", message=str(error)), {}

    def end(self) -> str:
        """End the process, with all that it has started. What the file printed, cut, without control characters."""
        printed = self._process.printed(PRINTED)
        self._process.close(patience=0.5)
        self._swept()
        return printed

    def _swept(self) -> None:
        from rooftop.lab.simt import build

        if (pid := self._process.pid) is not None:
            build.remove_left_by(pid)

    def _ask(self, what: str, **more: Any) -> Any:
        said = self._process.ask({"what": what, "kernel": self.word, **more}, settings.load().step_seconds)
        if "raised" in said:
            _raise(said["raised"])
        return said


def _result(said: dict[str, Any]) -> Result | None:
    """The result of an answer; None where it holds none."""
    try:
        return Result.from_json(said["result"])
    except (KeyError, TypeError, ValueError):
        return None


def _raise(said: dict[str, Any]) -> None:
    """What the process has found wrong with what was asked, raised here."""
    text = str(said["text"])
    match said["kind"]:
        case "gpu":
            raise NoGpuError(text)
        case "toolchain":
            raise ToolchainError(text)
        case "module":
            raise ModuleNotFoundError(text, name=str(said["name"]))
        case "system":
            raise OSError(said["number"], text, said["name"])
    raise ValueError(text)
