"""The process in which Python of the user's runs: it reads jobs as JSON lines and answers each with one line. That Python may do anything
to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftop.core.child import Jobs


class Judge:
    """The file that this process has loaded, and what is judged of it."""

    def __init__(self) -> None:
        self.todo: list[Any] = []
        self.choice: Any = None

    def answer(self, job: Mapping[str, Any]) -> dict[str, Any]:
        return self._load(job) if job["what"] == "loading" else self._judge(job["number"])

    def _load(self, job: Mapping[str, Any]) -> dict[str, Any]:
        from rooftop.lab import candidates
        from rooftop.lab.check import checker, own_op
        from rooftop.lab.check.selection import Choice, select

        told = job["choice"]
        self.choice = Choice(**{**told, "tags": tuple(told["tags"]), "records": None if told["records"] is None else Path(told["records"])})
        if job["reference"] is not None:
            found = [own_op.subject(Path(job["word"]), job["reference"], job["shapes"])]
        else:
            found = candidates.find([job["word"]])
        if self.choice.backend == "pallas":
            found = [s for s in found if s.implementation is not None and s.implementation.backend == "pallas"]
        self.todo, whole = select(found, self.choice, job["word"])
        return {"cases": [[s.name, s.op.name, c.id] for s, c in self.todo], "whole": whole,
                "unable": all(checker.backend_of(s, self.choice.backend)[1] for s in found)}

    def _judge(self, number: int) -> dict[str, Any]:
        from rooftop.lab.check import checker, many
        from rooftop.lab.check.result import Result
        from rooftop.lab.check.selection import card
        from rooftop.lab.records import identity

        subject, case = self.todo[number]
        try:
            result = many.check_one(subject, case, self.choice.backend, self.choice.seed)
            facts = (
                identity.facts(subject, [case], card()[1]) if self.choice.records is not None and result.status in ("ok", "wrong") else {}
            )
        except BaseException as error:  # of the file's own functions
            if isinstance(error, OSError) and checker.of_this_machine(error):
                raise
            result, facts = Result(subject.name, subject.op.name, case.id, "error", message=named(error)), {}
        return {"result": result.to_json(), "facts": facts}


def named(error: BaseException) -> str:
    """An error by its kind and text. An exit is one: whoever is judged does not end the judgement."""
    if isinstance(error, SystemExit):
        return f"it ends the process: SystemExit: {error.code}"
    return f"{type(error).__name__}: {error}"


def raised(error: BaseException) -> dict[str, Any]:
    """What was found wrong with what is asked; or what the file does where it is loaded."""
    from rooftop.core.compile import ToolchainError
    from rooftop.core.registry import not_python
    from rooftop.lab.exit_codes import NoGpuError

    if isinstance(error, NoGpuError | ToolchainError):
        return {"raised": {"kind": "gpu" if isinstance(error, NoGpuError) else "toolchain", "text": str(error)}}
    if isinstance(error, ModuleNotFoundError) and error.name:
        return {"raised": {"kind": "module", "text": str(error), "name": error.name}}
    if isinstance(error, OSError) and error.errno is not None:
        name = None if error.filename is None else str(error.filename)
        return {"raised": {"kind": "system", "number": error.errno, "text": error.strerror or str(error), "name": name}}
    if isinstance(error, SyntaxError):
        return {"raised": {"kind": "value", "text": not_python(error)}}
    if isinstance(error, ValueError | LookupError) and type(error).__module__.startswith(("rooftop.", "builtins")):
        return {"raised": {"kind": "value", "text": str(error.args[0] if isinstance(error, LookupError) and error.args else error)}}
    return {"lost": named(error)}


def main() -> None:
    sys.path.append(str(Path.cwd()))  # modules beside the file, after Python's own
    jobs = Jobs()
    judge = Judge()
    for job in jobs:
        try:
            said = judge.answer(job)
        except BaseException as error:
            said = raised(error)
        jobs.answer(said)


if __name__ == "__main__":
    main()
