"""`rooftop tune --regret N`: the time that the choice of kernel and config loses, against the fastest of those tried, at N sizes drawn from
a seed.

Tried are the other kernels that take a point, and of the chosen kernel's configs the best predicted and a random sample (`worst.rivals`).
Its record is that of a sweep with three more columns: `best`, kernel and config of the fastest, `best_us`, its time beside what a call
takes, and `tried`, how many were timed. Where a kernel's module has `every(p)`, its configs are those; else `configs(p)`, as for tuning."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rooftop.lab.candidates import Subject
from rooftop.lab.records.record import Table
from rooftop.lab.timing import bench, sweep
from rooftop.lab.timing.bench_group import BenchGroup
from rooftop.lab.tune import worst

SUBJECT = "regret of {}"


class Regret(sweep.Sweep):
    """A sweep whose points are each timed beside their rivals. `every`: the times of all that was timed, point by point."""

    batch = 8  # a point has some twenty programs

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options, compiled=0)
        # a regret is against rivals; peers, of which one searches among its algorithms, are a sweep's
        self.peers = [s for s in self.peers if s.peer == "torch"]
        self.rivals: dict[int, list[Subject]] = {}
        self.every: dict[int, dict[str, Any]] = {}

    def compile(self, which: Iterable[int]) -> int:
        fields = []
        for i in which:
            self.rivals[i], mine = worst.rivals(self, self.points[i], every=True), self.chosen(self.points[i])
            fields.append(BenchGroup(self.op, self.points[i].case(self.of), [*([mine] if mine else []), *self.rivals[i]]))
        return bench.compile_first(fields, self.device) if self.on == "cuda" else 0

    def row(self, i: int, say: Callable[[str], None]) -> dict[str, Any] | None:
        point, rivals, began = self.points[i], self.rivals[i], time.monotonic()
        row = worst.beside(self, point, rivals, say)
        if row is None:
            return None
        named = {s.name for s in rivals}
        times = {row["by"]: row["seconds"], **{n: t for n, t in row["peers"].items() if n in named}}
        peers = {n: t for n, t in row["peers"].items() if n not in named}
        best, case = min(times, key=lambda n: times[n]), point.case(self.of).id
        self.every[i] = {"point": case, "by": row["by"], "config": worst.config_of(self, point), "seconds": times, "peers": peers}
        say(f"{case}: {row['seconds'] * 1e6:.4g} us, the best of {len(times)} {times[best] * 1e6:.4g}; {time.monotonic() - began:.1f} s")
        return {**row, "peers": peers, "best": best, "best_us": times[best] * 1e6, "tried": len(times)}

    def _record(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        more = {key: [r[key] for r in rows] for key in ("best", "best_us", "tried")}
        return {**super()._record(rows), "subject": SUBJECT.format(self.op.name), **more}


def ratios(record: Mapping[str, Any]) -> list[float]:
    """Of each point the time of the choice over that of the best of those tried, at least 1."""
    return [max(1.0, us / best) for us, best in zip(record["us"], record["best_us"], strict=True)]


def mean(found: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, found)) / len(found))
