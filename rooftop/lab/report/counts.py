"""The simulator's counts as a ladder's page shows them: a table of all rungs with what changed from one to the next, and a list for each
rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooftop.core.prediction_names import COUNTS
from rooftop.lab.report.data import RungRow
from rooftop.lab.report.markup import number
from rooftop.lab.report.rung_counts import RungCounts

GROUPS = (  # header of the group -> name of the count -> header of its column, with its unit
    ("Global reads", (("sectors_read", "Sectors", "a request"), ("reads", "Bytes", "× the least"))),
    ("Global writes", (("sectors_written", "Sectors", "a request"), ("writes", "Bytes", "× the least"))),
    (
        "Shared memory",
        (
            ("wavefronts", "Wavefronts", "a request"), ("conflicts", "Bank conflict", "worst, ×"),
            ("wavefronts_per_fma", "Wavefronts", "an FMA")
        )
    ),
    ("Arithmetic", (("intensity", "FLOP", "a byte"),)),
)
SAME = 0.005  # counts that differ by less are the same
WASTE = 1.05  # an access that takes this many times the least is marked


@dataclass(frozen=True)
class Cell:
    """One count of one rung. `before`: that of the rung before, where it was another; `least`: what the same accesses need, where they take
    more."""

    name: str
    value: str
    before: str | None
    least: str | None
    wasteful: bool

    @property
    def about(self) -> str:
        return COUNTS[self.name]


@dataclass(frozen=True)
class Row:
    rung: RungRow
    cells: tuple[Cell | None, ...]  # in the order of the table's columns; None: it has no such accesses
    why: str  # why there are no counts, or nothing


@dataclass(frozen=True)
class Table:
    """`groups`: (header, columns); `case`: at which all were counted; `why`: why there is nothing on the page, or nothing."""

    groups: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]
    rows: tuple[Row, ...]
    case: str
    why: str

    @property
    def columns(self) -> tuple[tuple[str, str, str], ...]:
        return tuple(c for _, columns in self.groups for c in columns)


def table(rungs: Sequence[RungRow]) -> Table | None:
    """None where no rung was to be counted: the ladder is not in CUDA C++, or the caller asked for no counts."""
    counted = [r.counts for r in rungs if r.counts]
    if not counted:
        return None
    if len(reasons := {c.why for c in counted}) == 1 and "" not in reasons:
        return Table((), (), "", reasons.pop())
    present = {name for c in counted for name in c.values}
    groups = tuple((title, kept) for title, columns in GROUPS if (kept := tuple(c for c in columns if c[0] in present)))
    names = [name for _, columns in groups for name, _, _ in columns]
    rows = []
    before: RungCounts | None = None
    for rung in rungs:
        why = "not in CUDA C++" if rung.counts is None else rung.counts.why
        rows.append(Row(rung, tuple(None if why else cell(n, rung.counts, before) for n in names), why))
        before = rung.counts
    return Table(groups, tuple(rows), next((c.case for c in counted if c.case), ""), "")


def cell(name: str, counts: RungCounts | None, before: RungCounts | None) -> Cell | None:
    """One count, beside that of the rung before where the two were counted at one case and differ."""
    if counts is None or name not in counts.values:
        return None
    value, least = counts.values[name], counts.ideals.get(name)
    old = before.values.get(name) if before and before.case == counts.case else None
    changed = old is not None and abs(old - value) > SAME * max(abs(old), abs(value))
    wasteful = least is not None and value > WASTE * least
    before_it = plain(old) if changed and old is not None else None
    return Cell(name, plain(value), before_it, plain(least) if wasteful and least is not None and least != 1 else None, wasteful)


def plain(value: float) -> str:
    """To three digits, a whole number without a point: 16.5, 32."""
    text = number(value, 3)
    return text.rstrip("0").rstrip(".") if "." in text else text


# in a line
COUNTED = {"sectors_read": "sectors read", "sectors_written": "sectors written", "conflicts": "bank conflicts", "intensity": "FLOP a byte"}


def summary(rung: RungRow) -> str:
    """A rung's main counts in a line: of the simulator, and of the binary for the newest target."""
    counts = rung.counts
    values = counts.values if counts is not None and not counts.why else {}
    found = [f"{plain(values[name])} {title}" for name, title in COUNTED.items() if name in values]
    for k in rung.facts[-1].kernels if rung.facts else ():
        found.append(
            f"{k.registers} registers a thread" + (f", {k.spills} bytes spilled" if k.spills else "") + f", occupancy {k.occupancy:.0f} %"
        )
        break
    return "; ".join(found)


def of_rung(rung: RungRow, before: RungRow | None) -> list[Cell]:
    """All counts of a rung."""
    found = (cell(name, rung.counts, before.counts if before else None) for _, columns in GROUPS for name, _, _ in columns)
    return [c for c in found if c]
