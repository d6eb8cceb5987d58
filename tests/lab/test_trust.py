"""docs/trust.md: each promise has a test, which is there and can be run; and its prose promises nothing that no row of its tables does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rooftop.core import settings

PAGE = settings.CHECKOUT / "docs" / "trust.md"
ROW = re.compile(r"^\| (?P<promise>[^|]+) \| (?P<by>[^|]+) \| (?P<test>[^|]*) \|$", re.M)
SIMULATED = "No network, no other program, no other process, no file of yours."
COMPILERS = ("The C++ compiler and the assembler read headers", "NVRTC reads CUDA's headers", "They reach no network.")
PYTHON = ("No command loads a file's Python", "However that process ends", "So it is in the other commands.")
PROSE = {  # how each sentence and each row of the first table begins -> the promises that it rests on; none where it promises nothing
    "Kernels and records may come": (), "This page says what is promised": (),
    "**Another person's `.cu` file may be checked": (SIMULATED, "Code that would run before the kernel", *COMPILERS),
    "Another person's `.py` file is a program": (),
    "| a `.cu` file in the simulator": (SIMULATED, "Every call of the system that is not on"), "| the compilers of a `.cu` file": COMPILERS,
    "| a `.cu` file on a GPU": (), "| a `.py` file": (*PYTHON, "A case that does not end is ended"), "| the package's own kernels": (),
    "| the head of a `.cu` file": ("An expression of a head computes", "An expression is calculated"),
    "| records, configs": ("What is no record is named", "A changed line of a record"),
    "| compressed files, checkpoints": (
        "A container whose header", "A container that is cut", "A container whose contents", "A model's file that is not whole",
    ),
    "| the compile cache": (), "On a GPU a `.cu` file has no host code.": (), "For the simulator the host's compiler": (),
    "So everything, including loading the library": ("Code that would run before the kernel", SIMULATED), "What simulated code can still find out": (),
    "Without seccomp or Landlock": (), "None of this protects": (), "For that, use": (),
    "`rooftop check` loads a file in a process of its own": (*PYTHON, "A command that says nothing for so long", "What Triton takes to compile"),
    "A program that `rooftop profile` starts": (), "A Python file is not kept from deceiving": (),
    "`rooftop judge` runs what is handed in without": ("Submissions that try to get a verdict", "A submission in Python reads no file"),
    "Host code of a `solve` in the simulator": (), "`rooftop serve` takes submissions": ("The server's process neither runs", "What has no accepted form"),
    "Kernels of users run on a GPU": (), "On a GPU it is not near the clock.": (),
    "`rooftop check` compares with float64": ("A function of yours judges by the edge cases",),
    "In the simulator the target is what a GPU would run": ("A file with a head finds the macros", "What NVRTC refuses"),
    "A kernel may still be written to deceive": (), "Use your own case": (),
    "Each line is what was tried": ("Kernels, records and commands that once", "No call, with whatever arguments", "A command line ends"),
    "A finding is what the tables": (), "To try it with a seed of your own": (),
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
