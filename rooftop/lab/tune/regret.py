"""`rooftop tune --regret N`: the time that the choice of kernel and config loses, against the fastest of those tried, at N sizes drawn from
a seed.

Tried are the other kernels that take a point, and of the chosen kernel's configs the best predicted and a random sample (`worst.rivals`).
What takes twice as long as the fastest in a single call is timed no further. Its record is that of a sweep with three more columns:
`best`, kernel and config of the fastest, `best_us`, its time beside what a call takes, and `tried`, how many were timed. Where a kernel's
module has `every(p)`, its configs are those; else `configs(p)`, as for tuning."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rooftop.lab.candidates import Subject
from rooftop.lab.records.record import Table
from rooftop.lab.timing import sweep
from rooftop.lab.timing.bench_group import BenchGroup
from rooftop.lab.tune import worst

SUBJECT = "regret of {}"


class Regret(sweep.Sweep):
    """A sweep whose points are each timed beside their rivals. `every`: the times of all that was timed, point by point."""

    batch = 64  # a point has some twenty programs, and a pool of compilers takes seconds to start
    slowest = 2.0

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options, compiled=0)
        # a regret is against rivals; peers, of which one searches among its algorithms, are a sweep's
        self.peers = [s for s in self.peers if s.peer == "torch"]
        self.rivals: dict[int, list[Subject]] = {}
        self.every: dict[int, dict[str, Any]] = {}

    def fields(self, which: Iterable[int]) -> list[BenchGroup]:
        which = list(which)
        found = super().fields(which)
        for i, field in zip(which, found, strict=True):
            field.entries += self.rivals_of(i)
        return found

    def rivals_of(self, i: int) -> list[Subject]:
        if i not in self.rivals:
            self.rivals[i] = worst.rivals(self, self.points[i], every=True)
        return self.rivals[i]

    def row(self, i: int, say: Callable[[str], None]) -> dict[str, Any] | None:
        point, rivals, began = self.points[i], self.rivals_of(i), time.monotonic()
        row = worst.beside(self, point, rivals, say)
        if row is None:
            return None
        named = {s.name for s in rivals}
        times = {row["by"]: row["seconds"], **{n: t for n, t in row["peers"].items() if n in named}}
        peers = {n: t for n, t in row["peers"].items() if n not in named}
        best, case = min(times, key=lambda n: times[n]), point.case(self.of).id
        self.every[i] = {"point": case, "by": row["by"], "config": worst.config_of(self, point), "seconds": times, "peers": peers}
        tried, spent = len(times) + len(row["slow"]), time.monotonic() - began
        say(f"{case}: {row['seconds'] * 1e6:.4g} us, the best of {tried} {times[best] * 1e6:.4g}; {spent:.1f} s, of these {row['timing_s']:.1f} timing")
        return {**row, "peers": peers, "best": best, "best_us": times[best] * 1e6, "tried": tried}

    def _record(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        more = {key: [r[key] for r in rows] for key in ("best", "best_us", "tried")}
        return {**super()._record(rows), "subject": SUBJECT.format(self.op.name), **more}


def ratios(record: Mapping[str, Any]) -> list[float]:
    """Of each point the time of the choice over that of the best of those tried, at least 1."""
    return [max(1.0, us / best) for us, best in zip(record["us"], record["best_us"], strict=True)]


def mean(found: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, found)) / len(found))
