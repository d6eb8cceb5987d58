"""Planted faults in ordinary `.cu` files, each with its clean twin: each kernel's launch is the comment before it, in the words of the command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from rooftop.lab import simt
from rooftop.lab.simt import arguments, ordinary
from rooftop.lab.simt.report import KINDS, Finding

pytestmark = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
FOLDER = Path(__file__).parent / "faults"
_KERNEL = re.compile(r"^// launch: (.*)\n(?:// fixed: (.*)\n)?((?:.*\n)*?^.*__global__ void[^(]*?(?:__\w+__\([^)]*\)\s*)*(\w+)\()", re.M)
_MARK = re.compile(r"//\s*(BUG|MAY):\s*([\w-]+(?:,\s*[\w-]+)*)\s*$")


@dataclass(frozen=True)
class Fault:
    file: Path
    name: str
    launch: str
    fixed: str
    first: int  # lines of its text: from the end of the fault before it
    last: int

    def marks(self, word: str) -> dict[int, tuple[str, ...]]:
        lines = self.file.read_text(encoding="utf-8").splitlines()
        found = ((n, m) for n in range(self.first, self.last + 1) if (m := _MARK.search(lines[n - 1])) and m[1] == word)
        return {n: tuple(k.strip() for k in m[2].split(",")) for n, m in found}

    def run(self, fixed: bool, schedules: int) -> simt.Report:
        text = self.file.read_text(encoding="utf-8")
        text = text.replace("#define FIXED 0", "#define FIXED 1") if fixed else text
        words: dict[str, str] = {}
        args: dict[str, str] = {}
        for said in (self.launch, self.fixed if fixed else ""):
            options = shlex.split(said)
            for option, value in zip(options, [*options[1:], ""], strict=False):
                if option == "--arg":
                    args[value.partition("=")[0]] = value
                elif option.startswith("--"):
                    words[option] = value

        def extents(name: str) -> tuple[int, ...]:
            return tuple(int(n) for n in words[name].split("x")) if name in words else ()

        kernel, entry = ordinary.choose(text, self.file.name, self.name)
        job = arguments.prepare(text, self.file.name, (FOLDER,), kernel, entry, list(args.values()))
        launch = job.launch(extents("--grid"), extents("--block"), extents("--cluster"), int(words.get("--shared", 0)), "--cooperative" in words)
        memory, uninitialised = job.memory()
        return simt.run_launches(
            text, self.file.name, [launch], memory, uninitialised=uninitialised, seed=1, schedules=schedules, folders=(FOLDER,), values=job.values
        )


def faults() -> list[Fault]:
    found = []
    for file in sorted(FOLDER.glob("*.cu")):
        text = file.read_text(encoding="utf-8")
        matches = list(_KERNEL.finditer(text))
        starts = [1, *(text.count("\n", 0, text.index("\n}", m.start())) + 3 for m in matches)]
        for m, first in zip(matches, starts, strict=False):
            end = text.find("\n// launch:", m.end())
            found.append(Fault(file, m[4], m[1], m[2] or "", first, text.count("\n", 0, end if end > 0 else len(text)) + (end > 0)))
    return found


FAULTS = faults()


def test_there_are_thirty_of_them_and_more() -> None:
    assert len(FAULTS) >= 30
    assert len({f.name for f in FAULTS}) == len(FAULTS) == sum(f.read_text(encoding="utf-8").count("// launch:") for f in FOLDER.glob("*.cu"))
    assert all(f.marks("BUG") for f in FAULTS)
    assert all(k in KINDS for f in FAULTS for word in ("BUG", "MAY") for kinds in f.marks(word).values() for k in kinds)


@pytest.mark.sampled("corpus")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_is_found_at_its_line(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_PATIENCE", "2")
    report = fault.run(fixed=False, schedules=3)
    required, allowed = fault.marks("BUG"), fault.marks("MAY")

    def named(f: Finding) -> bool:
        return f.line in required and f.kind == required[f.line][0]

    assert any(map(named, report.findings)), f"not found; reported: {[str(f) for f in report.findings]}"
    stray = [str(f) for f in report.findings if f.kind not in (*required.get(f.line, ()), *allowed.get(f.line, ()))]
    assert not stray, "\n".join(stray)


@pytest.mark.sampled("corpus")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_its_twin_is_clean(fault: Fault) -> None:
    report = fault.run(fixed=True, schedules=3)
    assert not report.findings, "\n".join(map(str, report.findings))
