"""The score of a kernel, and its place between the rungs: docs/judge.md has the rule and its reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rooftop.core import registry
from rooftop.core.devices import lookup, slug
from rooftop.core.spec import Case
from rooftop.lab.judge import counts
from rooftop.lab.records.store import Record

NEAR = 1.03  # times the roof: a peer as near as this is no middle
AGREE = 0.05  # how far two clocks may lie apart
MIDDLE = 0.5


def score(time: float, first: float, peer: float | None, roof: float) -> float:
    """0 at the first rung's time, 1 at the roof's, between them linear in log time; 0.5 at the best peer's, but where that is within 3 % of
    the roof or slower than the first rung. At most 1, at least 0. Raises ValueError for times that are none, or a first rung that is no
    slower than the roof."""
    given = (time, first, roof, *(() if peer is None else (peer,)))
    if not all(math.isfinite(t) and t > 0 for t in given) or first <= roof:
        raise ValueError(f"a score needs positive times and a first rung above the roof; they are {', '.join(f'{t:.3g}' for t in given)}")
    points = [(math.log(first), 0.0), (math.log(roof), 1.0)]
    if peer is not None and NEAR * roof < peer < first:
        points.insert(1, (math.log(peer), MIDDLE))
    at = math.log(time)
    if at >= points[0][0]:
        return 0.0
    for (slow, low), (fast, high) in pairwise(points):
        if at >= fast:
            return low + (high - low) * (slow - at) / (slow - fast)
    return 1.0


@dataclass(frozen=True)
class Scale:
    """What a time or a cost is held against. `rungs`: of the ladder, in its order, with their times; `peer`: the best one's name and
    time."""

    ladder: str
    case: str
    rungs: tuple[tuple[str, float], ...]
    roof: float
    peer: tuple[str, float] | None = None
    device: str = ""

    @property
    def first(self) -> float:
        return self.rungs[0][1]

    def score(self, time: float) -> float | None:
        return score(time, self.first, self.peer[1] if self.peer else None, self.roof) if self.first > self.roof else None

    def between(self, time: float) -> tuple[str, str]:
        """The slowest rung that is still faster stands second, the fastest that is slower first; empty where there is none."""
        slower = [(t, n) for n, t in self.rungs if t >= time]
        faster = [(t, n) for n, t in self.rungs if t < time]
        return (min(slower)[1] if slower else "", max(faster)[1] if faster else "")

    def lacking(self, time: float) -> str:
        """What the next rung does differently, in the ladder's words; of several as fast the first that is climbed."""
        name = self.between(time)[1]
        if not name:
            return ""
        head = next((r.head for r in registry.ladder(self.ladder).rungs if r.name == name), None)
        return f"{name}: {' '.join(head.idea.split())}" if head is not None and head.idea else name


def by_counts(op: str, dtype: str, language: str) -> tuple[Scale, Case] | None:
    """The scale of the ladder that has counts of this op, and the case they are of. None where there is none."""
    for name, kept in counts.shipped().items():
        if kept["op"] == op and kept["language"] == language and kept["case"].endswith(f" {dtype}"):
            case = counts.case_of(kept)
            rungs = tuple((n, counts.Counts(*c).cost) for n, c in kept["rungs"].items())
            return Scale(name, case.id, rungs, counts.floor(op, case)), case
    return None


def timed(records: Iterable[Record], op: str, device: str) -> dict[str, dict[str, float]]:
    """Case -> subject -> seconds on the kernel clock, of the newest record of each."""
    newest: dict[tuple[str, str], tuple[str, float]] = {}
    for r in records:
        if (r.kind == "bench" and r.op == op and slug(r.card) == slug(device) and "kernel" in r.clocks):
            key = r.case, r.subject
            newest[key] = max(newest.get(key, ("", 0.0)), (r.at, r.clocks["kernel"].median))
    found: dict[str, dict[str, float]] = {}
    for (case, subject), (_, seconds) in newest.items():
        found.setdefault(case, {})[subject] = seconds
    return found


def by_time(records: Sequence[Record], op: str, device: str, dtype: str | None = None, case: str | None = None) -> Scale | None:
    """The scale of an op on a card by its records: the ladder whose first rung was timed at most cases, at its headline where that was
    timed. None without."""
    from rooftop.lab.report.ladder_cases import headline_of
    from rooftop.lab.timing.roofline import Ceilings

    known = timed(records, op, device)
    ceilings = Ceilings.from_records(records, device, lookup(device))
    best: tuple[tuple[bool, int], Scale] | None = None
    contract = registry.op(op)
    for name in registry.ladder_names():
        ladder = registry.ladder(name)
        if ladder.op != op or not ladder.rungs:
            continue
        for case_id, times in known.items():
            rungs = tuple((r.name, times[r.name]) for r in ladder.rungs if r.name in times)
            if (
                len(rungs) < 2
                or rungs[0][0] != ladder.rungs[0].name
                or case not in (None, case_id)
                or (dtype and not case_id.endswith(f" {dtype}"))
            ):
                continue
            try:
                found = contract.case(case_id)
            except (ValueError, LookupError):
                continue
            work = contract.work(contract.problem(found)).of_part(found.part)
            roof = ceilings.roof(work.read, work.write, work.ops).seconds
            peers = sorted((t, n) for n, t in times.items() if n.startswith("peer:"))
            scale = Scale(name, case_id, rungs, roof, (peers[0][1].removeprefix("peer:"), peers[0][0]) if peers else None, device)
            rank = case_id == headline_of(ladder, contract).id, len(rungs)
            if best is None or rank > best[0]:
                best = rank, scale
    return best[1] if best else None


def clocks_agree(judge: float, child: float) -> bool:
    """Whether the child's own events say what the judge's clock says, within 5 %."""
    return abs(judge - child) <= AGREE * max(judge, child)


def impossible(op: str, case: Case, device: str) -> float:
    """Seconds below which no time on this card is true, or 0 where nothing is known of it: the bytes that must cross DRAM (what rests in
    the L2 need not) and the operations, at the datasheet's best."""
    from rooftop.core.devices import floor_seconds, units
    from rooftop.lab.inspect import inspector

    sheet = lookup(device)
    if sheet is None:
        return 0.0
    contract = registry.op(op)
    work = contract.work(contract.problem(case)).of_part(case.part)
    ops = {unit: n for unit, n in work.ops.items() if unit not in units() - set(sheet.rates)}
    return floor_seconds(sheet, max(0, work.bytes - 2 * inspector.device_of(sheet.name).l2_bytes), ops)
