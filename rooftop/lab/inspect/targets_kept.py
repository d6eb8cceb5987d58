"""What is committed of the sweep over all targets: `targets.json` beside this file, a line a cell, made anew where the kernel's digest
has changed.

A cell: `case`, `digest` (of the kernel for this case on this target), and `registers`, `spills`, `shared` (bytes), `matrix` (instructions
by kind), or `failed`, the compiler's reason; or `refused`: why the kernel takes none of its cases there. A kernel that runs on no such
card has no cell: why not is worked out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core import whole_file
from rooftop.core.child import ChildError, ChildTimeout, Process
from rooftop.core.digests import digest
from rooftop.core.spec import TARGETS, Case
from rooftop.lab.candidates import Memo, Subject
from rooftop.lab.inspect import targets as cells

PATH = Path(__file__).with_name("targets.json")
Kept = dict[str, dict[str, Any]]  # "kernel target" -> cell


@dataclass(frozen=True)
class Cell:
    """A kernel and a target, as the tree has it and as it is kept."""

    subject: Subject
    target: str
    case: Case | None
    digest: str
    refused: str  # why it is not for this target; "": it is
    row: Mapping[str, Any] | None  # None: not compiled yet

    @property
    def key(self) -> str:
        return f"{self.subject.name} {self.target}"

    @property
    def current(self) -> bool:
        """Whether what is kept is of the kernel as it is."""
        return self.row is None if self.foreign else self.row is not None and self.row.get("digest") == self.digest

    @property
    def foreign(self) -> bool:
        """Whether the kernel runs on no such card."""
        return bool(self.refused) and not self.digest

    @property
    def state(self) -> str:
        """`compiles`, `refused` (not for this target), `failed`, `too large` (more shared memory than a block has there), `unknown`."""
        if self.refused:
            return "refused"
        if self.row is None:
            return "unknown"
        if "failed" in self.row:
            return "failed"
        return "too large" if self.row["shared"] > cells.limit_of(self.target) else "compiles"

    @property
    def said(self) -> str:
        """The state, and why."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    @property
    def reason(self) -> str:
        """Why it does not run there, in a line; "" if it does."""
        if self.state == "too large":
            assert self.row is not None
            return f"{self.row['shared']:,} bytes of shared memory; a block has {cells.limit_of(self.target):,} there"
        return self.refused or (str(self.row["failed"]) if self.row and "failed" in self.row else "")


def read(path: Path | None = None) -> Kept:
    path = path or PATH
    found: Kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def write(found: Kept, path: Path | None = None) -> None:
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, sort_keys=True, separators=(',', ':'))}" for k, v in sorted(found.items()))
    (path or PATH).parent.mkdir(parents=True, exist_ok=True)
    whole_file.write(path or PATH, f"{{\n{lines}\n}}\n")


def table(subjects: Sequence[Subject], targets: Iterable[str], found: Kept) -> Iterator[Cell]:
    """The cells of these kernels for these targets, with the digests of the tree: `Cell.current` tells what must be compiled anew."""
    memo = Memo()
    for target in targets:
        for subject in subjects:
            key, case, refused = cells.digest_of(subject, target, memo)
            yield Cell(subject, target, case, digest(key)[:8] if key else "", refused, found.get(f"{subject.name} {target}"))


def shown(subjects: Sequence[Subject], targets: Iterable[str], found: Kept) -> Iterator[Cell]:
    """The cells as they are kept, whether or not the kernels have changed since; nothing of a contract is asked."""
    for target in targets:
        for subject in subjects:
            assert subject.implementation is not None
            row = found.get(f"{subject.name} {target}")
            refused = subject.implementation.foreign(TARGETS[target]) or (str(row["refused"]) if row and "refused" in row else "")
            yield Cell(subject, target, None, str(row["digest"]) if row else "", refused, row)


def make(cell: Cell, process: Process) -> dict[str, Any]:
    """The cell, compiled now in another process. Raises ChildTimeout where the compiler does not answer: that says more of the machine than
    of the kernel."""
    assert cell.case is not None
    job = {"what": "compilation", "kernel": cell.subject.name, "case": cell.case.id, "target": cell.target}
    try:
        row: dict[str, Any] = process.ask(job, cells.LIMIT)["row"]
    except ChildTimeout:
        raise
    except ChildError as error:
        row = {"failed": cells.reason_of(error)}
    return {"case": cell.case.id, "digest": cell.digest, **row}


def compiler() -> Process:
    return Process(Path(sys.executable), "rooftop.lab.inspect.targets_child", {}, what="the compilers")


def update(subjects: Sequence[Subject], targets: Iterable[str], say: Callable[[str], None], path: Path | None = None) -> None:
    """Compile what is not kept, or not as it is now, and write the file after each. What no longer is in the tree goes."""
    there = {s.name for s in cells.subjects()}
    process = compiler()
    try:
        for cell in table(subjects, targets, read(path)):
            if cell.current:
                continue
            try:
                row = None if cell.foreign else {"refused": cell.refused, "digest": cell.digest} if cell.refused else make(cell, process)
            except ChildTimeout as error:
                say(f"{cell.key}: not kept: {error}")
                continue
            found = {k: v for k, v in read(path).items() if k.partition(" ")[0] in there and k != cell.key}
            write(found | ({} if row is None else {cell.key: row}), path)
            say(f"{cell.key}: {Cell(cell.subject, cell.target, cell.case, cell.digest, cell.refused, row).said}")
    finally:
        process.close()


def lost(found: Sequence[Cell]) -> list[str]:
    """Kernels that multiply matrices with matrix instructions on one of the targets, and with none on another: a line each."""
    having: dict[str, str] = {}
    for cell in found:
        if cell.state == "compiles" and cell.row and cell.row["matrix"]:
            having.setdefault(cell.subject.name, cells.COLUMNS[cell.target])
    return [
        f"{c.subject.name} has no matrix instruction on {cells.COLUMNS[c.target]}, and has some on {having[c.subject.name]}"
        for c in found if c.state == "compiles" and c.row and not c.row["matrix"] and c.subject.name in having
    ]
