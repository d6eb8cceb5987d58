"""`rooftop tune --regret N`: the time that the choice of kernel and config loses, against the fastest of those tried, at N sizes drawn from
a seed.

Tried are the other kernels that take a point, and of the chosen kernel's configs the best predicted and a random sample (`worst.rivals`).
Its record is that of a sweep with three more columns: `best`, kernel and config of the fastest, `best_us`, its time beside what a call
takes, and `tried`, how many were timed. Where a kernel's module has `every(p)`, its configs are those; else `configs(p)`, as for tuning."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rooftop.lab.records.record import Table
from rooftop.lab.timing import bench, sweep
from rooftop.lab.timing.bench_group import BenchGroup
from rooftop.lab.tune import worst

SUBJECT = "regret of {}"


def measured(run: sweep.Sweep, budget_s: float, say: Callable[[str], None], every: Callable[[dict[str, Any]], None] | None = None) -> Table:
    """The record of the points that the budget reaches. `every` is given the times of all that was timed, point by point."""
    ends, rows, best, tried = time.monotonic() + budget_s, [], [], []
    rivals = [worst.rivals(run, p, every=True) for p in run.points]
    fields = [
        BenchGroup(run.op, p.case(run.of), [*([mine] if (mine := run.chosen(p)) else []), *others]) for p, others in zip(run.points, rivals, strict=True)
    ]
    begun = time.monotonic()
    programs = bench.compile_first(fields, run.device) if run.on == "cuda" else 0
    say(f"{run.op.name}: {programs} programs compiled in {time.monotonic() - begun:.1f} s")
    for i, point in enumerate(run.points):
        if time.monotonic() > ends:
            say(f"{run.op.name}: {len(run.points) - i} points left out: {budget_s:g} s are spent")
            break
        row = worst.beside(run, point, rivals[i], say)
        if row is None:
            continue
        named = {s.name for s in rivals[i]}
        times = {row["by"]: row["seconds"], **{n: t for n, t in row["peers"].items() if n in named}}
        fastest = min(times, key=lambda n: times[n])
        if every is not None:
            every({"point": point.case(run.of).id, "by": row["by"], "config": worst.config_of(run, point), "seconds": times, "peers": {
                n: t for n, t in row["peers"].items() if n not in named}})
        rows.append({**row, "index": i, "peers": {n: t for n, t in row["peers"].items() if n not in named}})
        best.append((fastest, times[fastest]))
        tried.append(len(times))
    return {
        **run._record(rows), "subject": SUBJECT.format(run.op.name), "best": [n for n, _ in best], "best_us": [t * 1e6 for _, t in best],
        "tried": tried,
    }


def ratios(record: Mapping[str, Any]) -> list[float]:
    """Of each point the time of the choice over that of the best of those tried, at least 1."""
    return [max(1.0, us / best) for us, best in zip(record["us"], record["best_us"], strict=True)]


def mean(found: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, found)) / len(found))
