"""What a kernel costs by counts, without a GPU, beside the rungs of its op's ladders. `python -m rooftop.lab.judge.counts` counts the rungs anew.

Counts become cycles of one multiprocessor, as a Hopper's moves them: two 32-byte sectors of global memory, one wavefront of shared memory and 128 operations of
its lanes a cycle, one after the other. It is an order of kernels, no time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import registry
from rooftop.core.spec import Case

if TYPE_CHECKING:
    from rooftop.lab.candidates import Subject
    from rooftop.lab.judge.tasks import OpTask
    from rooftop.lab.simt.report import Report

KEPT = Path(__file__).with_name("counts.json")
SECTORS, WAVEFRONTS, OPERATIONS = 2.0, 1.0, 128.0  # of one multiprocessor in a cycle
SMALL, LARGEST = 1 << 12, 1 << 16  # elements of the case that is counted


@dataclass(frozen=True)
class Counts:
    """Of all launches of a call: sectors of global memory, wavefronts of shared memory, floating-point operations of lanes."""

    sectors: int
    wavefronts: int
    operations: int

    @property
    def parts(self) -> dict[str, float]:
        return {"global memory": self.sectors / SECTORS, "shared memory": self.wavefronts / WAVEFRONTS, "arithmetic": self.operations / OPERATIONS}

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
    return Counts(*(round(n * scale) for n in (sum(c.sectors for c in report.lines if c.space == "global"), waves, report.fma + report.other_flops)))


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
    trial = checker.Trial(subject.call(case, subject.implementation.stand_in(90)), "cpu", lambda c, m: runs.extend(checker.run_interpreter(c, m)), 0)
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
    found: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def case_of(op_name: str, case_id: str, inputs: Mapping[str, Any]) -> Case:
    """A case of the shipped file."""
    from rooftop.core.spec import Input

    return Case(case_id.rpartition(" ")[0], {n: Input(tuple(v["shape"]), v["dtype"], v["fill"]) if isinstance(v, dict) else v for n, v in inputs.items()})


def _ladder(name: str) -> dict[str, Any] | None:
    """Counted: the largest small plain case of the first dtype that most rungs take."""
    from rooftop.lab import candidates
    from rooftop.lab.check import checker
    from rooftop.lab.judge.tasks import OpTask

    ladder = registry.ladder(name)
    rungs = [s for s in candidates.rungs(ladder) if s.implementation is not None and s.implementation.backend in ("cuda", "triton")]
    rungs = [s for s in rungs if checker.backend_of(s, "cpu") in (("simt", None), ("interpreter", None))]
    try:
        task = OpTask(ladder.op)
    except ValueError:
        return None
    op = task.op

    def usual(c: Case) -> bool:
        tensors = {n: None for n in op.tensor_names} | {n: _meta(v) for n, v in c.tensors()}
        return task._usual(tensors, op.options(c)) == op.options(c)

    def takes(s: Subject, c: Case) -> bool:
        assert s.implementation is not None
        try:
            return checker.left_out(s, c, s.implementation.where().place, s.implementation.stand_in(90)) is None
        except Exception:
            return False

    dtypes = sorted(ladder.dtypes, key=lambda d: d != "f32")
    cases = [r for d in dtypes for c in _plain(task, d) for sizes in ROUND if (r := _round(task, c, sizes)) is not None]
    cases += [c for d in dtypes for c in op.cases if c.dtype == d and SMALL <= _count(c) <= LARGEST and not c.tags & {"huge"} and usual(c) and _ordinary(c)]
    if not rungs or not cases:
        return None
    best = max(cases, key=lambda c: (sum(takes(s, c) for s in rungs), c.dtype == dtypes[0], c.name.startswith("round"), -_ranks(c), -cases.index(c)))
    rungs = [s for s in rungs if takes(s, best)]
    found: dict[str, Any] = {}
    for s in rungs:
        try:
            found[s.name] = asdict(of_subject(s, best)[0])
        except Exception as error:  # one that cannot be counted is left out, and said
            print(f"{s.name} at {best.id}: {' '.join(str(error).split())[:160]}")
    inputs = {n: {"shape": list(v.shape), "dtype": v.dtype, "fill": v.fill} if hasattr(v, "shape") else v for n, v in best.inputs.items()}
    backends = {s.implementation.backend for s in rungs if s.implementation is not None}
    return {"op": ladder.op, "language": "cuda" if "cuda" in backends else "triton", "case": best.id, "inputs": inputs, "rungs": found} if len(found) > 1 else None


ROUND = (4096,), (1024, 32), (4096, 16), (128, 64, 64), (64, 32, 16, 8)  # sizes in place of so many different ones, the largest first


def _plain(task: OpTask, dtype: str) -> list[Case]:
    try:
        return [c for c in task.plain(dtype) if _ranks(c) > len(list(c.tensors())) or all(len(v.shape) < 2 for _, v in c.tensors())]
    except ValueError:
        return []


def _ordinary(case: Case) -> bool:
    return all(v.layout == "contiguous" and (v.fill == "normal" or v.fill.startswith("below ")) for _, v in case.tensors())


def _ranks(case: Case) -> int:
    return sum(len(v.shape) for _, v in case.tensors())


def _round(task: OpTask, case: Case, chosen: Sequence[int]) -> Case | None:
    """The case with sizes that are powers of two, where the op takes them."""
    from rooftop.lab.inputs import make
    from rooftop.lab.judge.tasks import resized

    every = sorted({e for _, v in case.tensors() for e in v.shape if e > 1}, reverse=True)
    if len(every) != len(chosen):
        return None
    sizes = dict(zip(every, chosen, strict=True)) | {1: 1, 0: 0}
    inputs = {n: resized(v, sizes) if hasattr(v, "shape") else v for n, v in case.inputs.items()}
    made = replace(case, name="round " + ", ".join("x".join(map(str, v.shape)) for v in inputs.values() if hasattr(v, "shape")), inputs=inputs)
    try:
        tensors, options = make(task.op, made, "cpu", 0)
        made = replace(made, inputs={**made.inputs, **{n: v for n, v in task._usual(tensors, options).items() if n in made.inputs}})
        task._expected(*make(task.op, made, "cpu", 0))
    except Exception:  # sizes that the op does not take together
        return None
    return made if SMALL <= _count(made) <= LARGEST else None


def _meta(spec: Any) -> Any:
    import torch

    from rooftop.core.spec import DTYPES

    return torch.empty(spec.shape, dtype=getattr(torch, DTYPES[spec.dtype].torch))


def _count(case: Case) -> int:
    from math import prod

    return sum(prod(v.shape) for _, v in case.tensors())


def main(names: Sequence[str] = ()) -> None:
    """Count the ladders named (all where none is) and write the file that is shipped."""
    made = dict(shipped()) if KEPT.is_file() else {}
    for name in names or registry.ladder_names():
        counted = _ladder(name)
        made.pop(name, None)
        if counted is not None:
            made[name] = counted
            print(f"{name}: {len(counted['rungs'])} rungs at {counted['case']}", flush=True)
    KEPT.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(made[n])}" for n in sorted(made)) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
