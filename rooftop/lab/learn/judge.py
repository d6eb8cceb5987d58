"""Judges a solution of a puzzle as a rung is judged: right at small cases without a fault, and with counts as good as the rung's own.

CUDA C++ runs in the simulator, Triton in the interpreter. It is for a process of its own (`judge_child`): a solution in Python may do
anything."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftop.core.implementation import Implementation
    from rooftop.core.registry import Rung
    from rooftop.core.spec import Case
    from rooftop.lab.candidates import Subject

LARGEST = 1 << 17  # elements of the largest case that is judged
CASES = 5  # that are judged
SLACK = 1.02  # a count above so many times the rung's is worse
KINDS = {  # of a verdict -> what it means
    "right": "right, and its counts are as good as the rung's",
    "race": "a race: two threads meet at an address with nothing between to order them",
    "bounds": "an access outside a tensor or an array, or at an address that it may not have",
    "unwritten": "a result of memory that nobody wrote",
    "stuck": "it does not come to its end",
    "fault": "another fault of the machine's rules",
    "wrong": "the result is wrong",
    "slower": "right, but it costs more than the rung",
    "broken": "it does not compile, or it raises",
}
_FAULTS = {"shared-race": "race", "warp-race": "race", "global-race": "race", "missing-wait": "race", "out-of-bounds": "bounds", "misaligned": "bounds",
           "uninitialised": "unwritten", "deadlock": "stuck", "barrier-divergence": "stuck"}
_ERRORS = {"OutOfBounds": "bounds", "Misaligned": "bounds", "ReadOnly": "fault", "RaceBetweenPrograms": "race", "DeviceAssert": "fault"}
COUNTED = {  # counts that are compared -> what they are called
    "sectors": "32-byte sectors of global memory", "wavefronts": "wavefronts of shared memory", "requests": "memory requests of a warp",
    "operations": "floating-point operations", "parted": "branches at which a warp parts", "loaded": "bytes loaded by lanes",
    "stored": "bytes stored by lanes",
}


@dataclass(frozen=True)
class Verdict:
    """`kind`: one of KINDS. `said`: the first fault, the first wrong result or the count that is worse. `counts`: at `case`, where it was
    counted."""

    kind: str
    said: str = ""
    case: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def solved(self) -> bool:
        return self.kind == "right"


def judge(rung: Rung, text: str) -> Verdict:
    """The verdict on a source in place of a rung's own. Raises NotSimulatedError and the like only where nothing can be judged here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / rung.path.name
        path.write_text(text, encoding="utf-8")
        try:
            subject = _subject(rung, path)
        except Exception as error:  # what a solution does where it is read
            return Verdict("broken", _said(f"{type(error).__name__}: {error}".splitlines()[0], folder))
        from rooftop.lab.check import checker

        cases = cases_of(rung.name)
        for case in cases:
            result = checker.check(subject, case, backend="cpu")
            if result.status != "ok":
                return _failed(result.status, " ".join(result.message.split()), case.id, folder)
        best, found = counts_of_rung(rung.name), _counts(subject, cases[0])
    worse = [(n, found[n], best[n]) for n in COUNTED if n in found and n in best and found[n] > SLACK * best[n] + 1]
    if worse:
        name, now, least = max(worse, key=lambda w: w[1] / max(w[2], 1))
        times = f", {now / least:.1f} times as many" if least else ""
        return Verdict("slower", f"{now:,} {COUNTED[name]}; the rung takes {least:,}{times}", cases[0].id, found)
    return Verdict("right", "", cases[0].id, found)


def _said(message: str, folder: str) -> str:
    """A message without the folders of the rung's file: the learner's is another."""
    short = re.sub(r"\S*/(?=[\w.]+:(?:\d+:)? )", "", message.replace(folder, "").lstrip("/"), count=1)
    return re.sub(r"\S*\bladders/\w+/(?=\w)", "", short)


def _failed(status: str, message: str, case: str, folder: str) -> Verdict:
    message = _said(message, folder)
    if status == "skipped":
        return Verdict("broken", message, case)
    if status == "error":
        kind, _, rest = message.partition(": ")
        return Verdict(_ERRORS.get(kind, "broken"), rest if kind in _ERRORS else message, case)
    if ": the simulation crashed: " in message:  # a thread overwrote its process before what it did could be told; most runs tell it
        return Verdict("bounds", message, case)
    fault = next((name for name in _FAULTS if f": {name}: " in message), None)
    if fault is None and any(f": {name}: " in message for name in ("assert", "absent-lane", "const-write", "launch")):
        return Verdict("fault", message, case)
    return Verdict(_FAULTS[fault] if fault else "wrong", message, case)


def _subject(rung: Rung, path: Path) -> Subject:
    from rooftop.core import registry
    from rooftop.lab.candidates import Subject

    op = registry.op(registry.ladder(rung.ladder).op)
    made: Implementation
    if path.suffix == ".cu":
        from rooftop.core.backends.cuda import CudaImplementation

        made = CudaImplementation(rung.path, op.name, rung.name, text=path.read_text(encoding="utf-8"))
    else:
        made = type(rung.implementation)(path, op.name, rung.name, rung.implementation.arch)
        _ = made.module  # type: ignore[attr-defined]  # raises what is wrong with it
    made.contract = partial(registry.op, op.name)
    return Subject(rung.name, op, made, rung)


@cache
def cases_of(name: str) -> tuple[Case, ...]:
    """The cases at which a rung's puzzles are judged: the largest plain one that is quick to simulate, at which it is counted too; then
    others of its dtype, from small to large, first those that launch the same kernels."""
    from rooftop.core import registry
    from rooftop.lab.candidates import Subject
    from rooftop.lab.check import checker

    rung = registry.rung(name)
    subject = Subject(rung.name, registry.op(registry.ladder(rung.ladder).op), rung.implementation, rung)
    where, reason = checker.backend_of(subject, "cpu")
    device = rung.implementation.stand_in(90)
    cases = {c.id: c for c in checker.select_cases(subject) if "huge" not in c.tags}
    size = {i: sum(checker.count(x) for _, x in c.tensors()) for i, c in cases.items()}
    able = [i for i, c in cases.items() if 0 < size[i] <= LARGEST and checker.left_out(subject, c, where, device, reason) is None]
    plain = [i for i in able if all(x.fill == "normal" and x.layout == "contiguous" for _, x in cases[i].tensors())]
    if not plain:
        raise ValueError(f"{name} has no case that runs here{f': {reason}' if reason else ''}")
    first = max(plain, key=lambda i: (size[i], i))
    kernels = {
        i: tuple(str(x.kernel) for x in subject.call(cases[i], device).launches) for i in able if cases[i].dtype == cases[first].dtype
    }
    same = sorted((i for i in kernels if i != first and kernels[i] == kernels[first]), key=lambda i: (size[i], i))
    others = sorted((i for i in kernels if kernels[i] != kernels[first]), key=lambda i: (size[i], i))
    if len(same) >= CASES:
        same = [same[n * (len(same) - 1) // (CASES - 2)] for n in range(CASES - 1)]
    return tuple(cases[i] for i in dict.fromkeys((first, *same, *others[: CASES - 1 - len(same)])))


@cache
def counts_of_rung(name: str) -> Mapping[str, int]:
    """What the rung itself takes at the first of its cases."""
    from rooftop.core import registry

    rung = registry.rung(name)
    return _counts(_subject(rung, rung.implementation.path), cases_of(name)[0])


def _counts(subject: Subject, case: Case) -> dict[str, int]:
    assert subject.implementation is not None
    if subject.implementation.backend != "cuda":
        return _interpreted(subject, case)
    from rooftop.lab import simt

    report = simt.run_rung(subject, case, mode="count", blocks=64)
    scale = report.grid_blocks / max(report.blocks, 1)
    found: dict[str, float] = {
        "sectors": sum(c.sectors for c in report.lines), "wavefronts": sum(c.wavefronts for c in report.lines if c.space == "shared"),
        "requests": sum(c.requests for c in report.lines), "operations": report.fma + report.other_flops,
        "parted": sum(report.divergent.values()),
    }
    return {n: round(v * scale) for n, v in found.items()}


def _interpreted(subject: Subject, case: Case) -> dict[str, int]:
    from rooftop.lab.check import checker
    from rooftop.lab.check.judgement import expect

    runs: list[Any] = []

    def run(call: Any, memory: dict[str, Any]) -> None:
        runs.extend(checker.run_interpreter(call, memory))

    assert subject.implementation is not None
    device = subject.implementation.stand_in(90)
    expected = expect(subject.op, case, "cpu", 0)
    checker.Trial(subject.call(case, device), "cpu", run, 0).run(expected.tensors, expected.options, 0xFF)
    return {"loaded": sum(r.loaded for r in runs), "stored": sum(r.stored for r in runs)}

