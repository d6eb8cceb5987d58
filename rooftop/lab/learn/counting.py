"""Counts a rung while its learner thinks, in a process of its own: who stops does not wait for it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rooftop.core import registry
from rooftop.core.child import ChildError, Process
from rooftop.lab.report import rung_counts
from rooftop.lab.report.data import LadderPage, RungRow
from rooftop.lab.report.rung_counts import RungCounts

LIMIT = 600.0  # seconds


@dataclass(frozen=True)
class Counted:
    """The answer of the process: `why` there are no counts, "" where they are kept now."""

    why: str


def of_rung(ladder: str, rung: str, *, run: bool) -> RungCounts | None:
    """The counts of a rung at the case of its ladder; None where the simulator does not run it. `run=False`: those that are kept."""
    from rooftop.lab import candidates
    from rooftop.lab.report import ladder_cases

    found = registry.ladder(ladder)
    headline = ladder_cases.headline_of(found, registry.op(found.op))
    return rung_counts.count(candidates.rungs(found), headline, only=rung, run=run).get(rung)


class Counting:
    """Counts what is missing of a rung's counts, from `with` on. Leaving it ends the process, whether it has answered or not."""

    def __init__(self, page: LadderPage, row: RungRow) -> None:
        self._page, self._row = page, row
        self._needed = row.counts is not None and row.counts.why == rung_counts.NOT_YET
        self._process = Process(Path(sys.executable), "rooftop.lab.learn.judge_child", {}, what="the simulator")
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Counting:
        job = {"what": "counting", "kernel": self._row.name}
        self._answer = self._pool.submit(self._process.ask, job, LIMIT, Counted) if self._needed else None
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._pool.shutdown()

    @property
    def done(self) -> bool:
        return self._answer is None or self._answer.done()

    def row(self) -> RungRow:
        """The rung with its counts, or with why there are none."""
        if self._answer is None:
            return self._row
        try:
            why = self._answer.result().why
        except ChildError as error:
            why = str(error)
        kept = None if why else of_rung(self._page.name, self._row.name, run=False)
        return replace(self._row, counts=kept or RungCounts("", why=why))
