"""A kernel's recorded times against the size of its work: a fixed cost and a slope, without a counter.

Size is the time of the op's roof at a case, t = fixed + slope x roof. The slope says how far from the roof the kernel is where the work is
large; the fixed part is what a call costs however small it is: launches, filling and draining the pipeline, SMs that a small grid leaves
empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rooftop.core.spec import Case, Device
from rooftop.lab.candidates import Subject
from rooftop.lab.records.store import Record, slug_of
from rooftop.lab.timing.roofline import Ceilings

FEWEST = 3  # sizes that a line is drawn through
SPAN = 4.0  # the largest roof over the smallest: over less, slope and fixed cost are not told apart


@dataclass(frozen=True)
class Size:
    case: str
    roof_s: float
    seconds: float


@dataclass(frozen=True)
class Sizes:
    """`fixed_s` is 0 where the best line with a fixed cost of 0 or more has none. `off`: the median distance of a time from the line, 0.1:
    10 %."""

    points: tuple[Size, ...]
    fixed_s: float
    slope: float
    off: float

    def fixed_share(self, seconds: float) -> float:
        return min(1.0, self.fixed_s / seconds)


def of(subject: Subject, case: Case, device: Device, records: Sequence[Record], ceilings: Ceilings) -> Sizes | None:
    """Through the cases of the same dtypes whose records are of the kernel as it stands; None where they are too few or too near each
    other."""
    dtypes = {n: v.dtype for n, v in case.tensors()}
    like = {c.id: c for c in subject.op.cases if {n: v.dtype for n, v in c.tensors()} == dtypes}
    here = slug_of(device.name)
    newest: dict[str, Record] = {}
    for r in records:
        if r.kind != "bench" or r.subject != subject.name or r.case not in like or "kernel" not in r.clocks:
            continue
        if slug_of(r.card) == here and (r.case not in newest or r.at > newest[r.case].at):
            newest[r.case] = r
    points = []
    for name, r in newest.items():
        try:
            if not subject.identity(like[name], device).made(r):
                continue
        except ValueError:  # a case that it no longer takes
            continue
        work = subject.op.work(subject.op.problem(like[name], device))
        points.append(Size(name, ceilings.roof(work.read, work.write, work.ops).seconds, r.clocks["kernel"].median))
    return line(points)


def line(points: Sequence[Size]) -> Sizes | None:
    """The line of the least squares of relative distances, its fixed cost no less than 0."""
    points = sorted((p for p in points if p.roof_s > 0 and p.seconds > 0), key=lambda p: p.roof_s)
    if len({p.roof_s for p in points}) < FEWEST or points[-1].roof_s < SPAN * points[0].roof_s:
        return None
    inverse = [(1 / p.seconds, p.roof_s / p.seconds) for p in points]  # fixed x a + slope x b = 1 for each
    aa, ab, bb = (sum(x * y for x, y in pairs) for pairs in ([(a, a) for a, _ in inverse], inverse, [(b, b) for _, b in inverse]))
    a, b = sum(a for a, _ in inverse), sum(b for _, b in inverse)
    determinant = aa * bb - ab * ab
    fixed, slope = ((a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant) if determinant > 0 else (0.0, b / bb)
    if fixed < 0:
        fixed, slope = 0.0, b / bb
    elif slope < 0:
        fixed, slope = a / aa, 0.0
    return Sizes(tuple(points), fixed, slope, median(abs((fixed + slope * p.roof_s) / p.seconds - 1) for p in points))
