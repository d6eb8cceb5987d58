"""docs/trust.md: each promise has a test, which is there and can be run; and its prose promises nothing that no row of its tables does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rooftop.core import settings

PAGE = settings.CHECKOUT / "docs" / "trust.md"
ROW = re.compile(r"^\| (?P<promise>[^|]+) \| (?P<by>[^|]+) \| (?P<test>[^|]*) \|$", re.M)
SIMULATED = "The simulation has no access to the network"
COMPILERS = ("The C++ compiler and the assembler read only", "For a file of yours, NVRTC reads only", "The compilers have no access to the network.")
PYTHON = ("No command loads a user's Python file", "If that process ends without an answer", "The same holds in the other commands.")
PROSE = {  # how each sentence and each row of the first table begins -> the promises that it rests on; none where it promises nothing
    "Kernels and records may come": (), "This page lists what rooftop promises": (),
    "**Another person's `.cu` file may be checked": (SIMULATED, "Code that would run before the kernel", *COMPILERS),
    "Another person's `.py` file is a program": (),
    "| a `.cu` file in the simulator": (SIMULATED, "Every system call that is not on"), "| the compilers of a `.cu` file": COMPILERS,
    "| a `.cu` file on a GPU": (), "| a `.py` file": (*PYTHON, "A case that runs without end"), "| the package's own kernels": (),
    "| the head of a `.cu` file": ("An expression of a head computes", "An expression is evaluated"),
    "| records, configs": ("A line that is no record", "If a line of a record was changed"),
    "| compressed files, checkpoints": (
        "A container whose header", "A container that is truncated", "A container whose contents", "An incomplete file of a model",
    ),
    "| the compile cache": (), "On a GPU a `.cu` file has no host code.": (), "For the simulator, the host's compiler": (),
    "A source could then contain code": (),
    "So everything, including loading the library": ("Code that would run before the kernel", SIMULATED), "Simulated code can still find out": (),
    "Without seccomp or Landlock": (), "None of this protects": (), "To be protected from that": (),
    "`rooftop check` loads a Python file in a separate process": PYTHON,
    "Every other command that takes such a file": (*PYTHON, "A command that prints nothing for that time", "Triton uses at most"),
    "A program that `rooftop profile` starts": (), "A Python file can still deceive": (),
    "`rooftop judge` runs a submission in a process that has neither": ("A submission that cheats", "On a system with Landlock, a submission in Python"),
    "In the simulator, the host code of a `solve`": (),
    "`rooftop serve` takes submissions": ("The server's process neither runs", "A submission without an accepted form"),
    "On a GPU, users' kernels run": (), "So on a server with a card": (), "On a GPU the clock is in another process.": (),
    "`rooftop check` compares with float64": ("With a reference of your own",),
    "The simulator judges what a GPU would run": ("A file with a head sees the macros", "A kernel that NVRTC refuses"),
    "A kernel may still be written to deceive": (), "It may contain host code": (),
    "It may recognise the sizes": (), "It may detect that another": (), "Use a case of your own": (), "The result on a GPU counts.": (),
    "Each line says what was tried": ("Kernels, records and commands that once", "No system call, whatever its arguments", "Every command line ends"),
    "A finding is a violation": (), "To run these with a seed of your own": (),
}
NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def promises() -> list[tuple[str, str]]:
    """What the tables promise, and the cell of its test."""
    text = PAGE.read_text(encoding="utf-8")
    tables = [part.strip() for part in re.split(r"\n\n", text) if part.startswith("| promise | by | test |")]
    found = [(m["promise"].strip(), m["test"].strip()) for t in tables for m in ROW.finditer(t) if m["promise"].strip() not in ("promise", "---")]
    assert sum(t.count("\n") - 1 for t in tables) == len(found), "a row that cannot be read"
    return found


@pytest.mark.parametrize(("promise", "cell"), promises(), ids=lambda value: value[:40])
def test_each_promise_has_a_test(promise: str, cell: str) -> None:
    named = NAME.fullmatch(cell)
    assert named, f"{promise}: {cell!r} names no test"
    path = settings.CHECKOUT / Path(named[1])
    assert path.name.startswith("test_"), f"{named[1]} is not collected"
    there = [n.name for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)]
    assert there.count(named[2]) == 1, f"{named[1]} has no {named[2]}, or two, of which pytest runs one"


def test_the_page_has_its_tables() -> None:
    assert len(promises()) > 40
    assert len({promise for promise, _ in promises()}) == len(promises()), "a promise is made twice"


def sentences() -> list[str]:
    """The sentences outside the tables, and the rows of the first table."""
    found = []
    for part in re.split(r"\n\n", PAGE.read_text(encoding="utf-8")):
        text = part.strip()
        if text.startswith("| what |"):
            found += text.splitlines()[2:]
        elif text and not text.startswith(("| promise", "#", "<!-- generated")):
            found += re.split(r"(?<=[.:])\s+(?=[A-Z*`])", " ".join(text.split()))
    return found


def test_the_prose_promises_no_more_than_the_tables() -> None:
    made = [promise for promise, _ in promises()]
    for said in sentences():
        named = [rests for begins, rests in PROSE.items() if said.startswith(begins)]
        assert len(named) == 1, f"what does it rest on, or does it promise nothing? {said}"
        assert [r for r in named[0] if sum(m.startswith(r) for m in made) != 1] == [], said
    assert [b for b in PROSE if not any(said.startswith(b) for said in sentences())] == [], "no sentence begins so any more"
