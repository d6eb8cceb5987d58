"""What a kernel costs by counts, without a GPU, beside the rungs of its op's ladders, which `scripts/count_rungs.py` counts.

Counts become cycles of one multiprocessor, as a Hopper's moves them: two 32-byte sectors of global memory, one wavefront of shared memory
and 128 operations of its lanes a cycle, one after the other. It is an order of kernels, no time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import registry
from rooftop.core.spec import Case

if TYPE_CHECKING:
    from rooftop.lab.candidates import Subject
    from rooftop.lab.simt.report import Report

KEPT = Path(__file__).with_name("counts.json")
SECTORS, WAVEFRONTS, OPERATIONS = 2.0, 1.0, 128.0  # of one multiprocessor in a cycle


@dataclass(frozen=True)
class Counts:
    """Of all launches of a call: sectors of global memory, wavefronts of shared memory, floating-point operations of lanes."""

    sectors: int
    wavefronts: int
    operations: int

    @property
    def parts(self) -> dict[str, float]:
        return {
            "global memory": self.sectors / SECTORS, "shared memory": self.wavefronts / WAVEFRONTS,
            "arithmetic": self.operations / OPERATIONS,
        }

    @property
    def cost(self) -> float:
        """Cycles."""
        return sum(self.parts.values())

    @property
    def bound(self) -> str:
        """What takes the most of them."""
        part, cycles = max(self.parts.items(), key=lambda p: p[1])
        return f"{part}, {cycles / max(self.cost, 1e-9):.0%} of its cycles by counts"


def of_report(report: Report) -> Counts:
    scale = report.grid_blocks / max(report.blocks, 1)
    waves = sum(c.wavefronts for c in report.lines if c.space == "shared")
    return Counts(
        *(round(n * scale) for n in (sum(c.sectors for c in report.lines if c.space == "global"), waves, report.fma + report.other_flops))
    )


def by_line(report: Report, path: Path) -> tuple[tuple[int, float], ...]:
    """(line, cycles) of the lines of the file that cost any, as `of_report` counts them."""
    scale, names = report.grid_blocks / max(report.blocks, 1), (str(path), str(path.resolve()))
    found: dict[int, float] = {}
    for c in report.lines:
        if c.file in names:
            found[c.line] = found.get(c.line, 0.0) + (c.sectors / SECTORS if c.space == "global" else c.wavefronts / WAVEFRONTS) * scale
    for (at, line), n in [*report.fma_at.items(), *report.other_at.items()]:
        if at in names:
            found[line] = found.get(line, 0.0) + n / OPERATIONS * scale
    return tuple(sorted((line, cycles) for line, cycles in found.items() if cycles > 0))


def of_bytes(loaded: int, stored: int) -> Counts:
    """Of a Triton kernel in the interpreter: the bytes of its lanes, as sectors."""
    return Counts(-(-(loaded + stored) // 32), 0, 0)


def of_subject(subject: Subject, case: Case) -> tuple[Counts, Report | None]:
    """Raises ValueError and the like where it cannot be counted here."""
    assert subject.implementation is not None
    if subject.implementation.backend == "cuda":
        from rooftop.lab import simt

        report = simt.run_rung(subject, case, mode="count", blocks=64)
        if report.findings:
            raise ValueError(str(report.findings[0]))
        return of_report(report), report
    from rooftop.lab.check import checker
    from rooftop.lab.check.judgement import expect

    runs: list[Any] = []
    expected = expect(subject.op, case, "cpu", 0)
    trial = checker.Trial(
        subject.call(case, subject.implementation.stand_in(90)), "cpu", lambda c, m: runs.extend(checker.run_interpreter(c, m)), 0
    )
    trial.run(expected.tensors, expected.options, 0xFF)
    return of_bytes(sum(r.loaded for r in runs), sum(r.stored for r in runs)), None


def floor(op_name: str, case: Case) -> float:
    """Cycles below which no kernel can be: the bytes that must move, and the multiply-adds."""
    op = registry.op(op_name)
    work = op.work(op.problem(case))
    fmas = sum(n for unit, n in work.ops.items() if unit.startswith("fma"))
    return (work.read + work.write) / 32 / SECTORS + fmas / OPERATIONS


@cache
def shipped() -> Mapping[str, Any]:
    """Ladder -> its op, language, case, and of each rung that the simulator counts its Counts."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def case_of(kept: Mapping[str, Any]) -> Case:
    """The case of a ladder of the shipped file."""
    from rooftop.core.spec import Input

    inputs = {n: Input(tuple(v[2:]), v[0], v[1]) if isinstance(v, list) else v for n, v in kept["inputs"].items()}
    return Case(kept["case"].rpartition(" ")[0], inputs)
