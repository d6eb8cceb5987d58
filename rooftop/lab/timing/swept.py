"""Records of kind `sweep`, read: points, their share of the roof, where a point falls behind its neighbours or a peer.

A record holds arrays, one entry a point:

| key | what it holds |
|---|---|
| `sizes` | size -> its values; `axis`: the one that drawings have on their x axis, "" for the geometric mean |
| `dtypes`, `dtype` | the dtypes, and of each point which |
| `few`, `aligned` | 1 where the point has few rows; 1 where every row of every tensor starts on 16 bytes |
| `bytes` | read and written, as the contract counts them |
| `us`, `copy_us`, `roof_us` | microseconds: ours, the fastest copy (or read) of as many bytes beside it, and of the roof: that copy, or
what bounds more | | `noise` | how far from 1 the interval of the A/A ratio reached |
| `implementations`, `by` | the kernels that calls take, of each point which |
| `digests`, `sources`, `machines` | kernel -> what made its points together, as a record has it (rooftop.lab.records.identity) |
| `peers` | peer, or an implementation that was named -> microseconds, null where it was not timed |
| `best`, `best_us` | of `rooftop tune --regret`: kernel and config that were the fastest at each point, and their time |
| `tried` | of the same: how many were timed |
| `wrong` | points whose result differs from torch's |
| `seed`, `begun` | what the points were drawn with |"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rooftop.core.spec import Case
from rooftop.lab.check.proofs import device_of
from rooftop.lab.records import identity
from rooftop.lab.records.record import Record
from rooftop.lab.timing.statistics import median

if TYPE_CHECKING:
    from rooftop.lab.candidates import Memo, Subject

__all__ = ["Measured", "cliffs", "counted", "median", "points", "slower"]

NEIGHBOURS = 4
FAR = 2.0  # octaves: points further apart in their sizes are no neighbours
CLIFF = 0.8  # of the median of its neighbours' shares: below it, a point is a cliff
SLOWER = {"torch.compile": 0.95}  # of a peer's speed, that a point must reach
SLOWER_THAN_OTHERS = 0.97


@dataclass(frozen=True)
class Measured:
    """One point. Times are seconds."""

    index: int
    sizes: Mapping[str, int]
    dtype: str
    few: bool
    aligned: bool
    moved: int
    seconds: float
    copy: float | None
    roof: float
    noise: float
    by: str
    peers: Mapping[str, float]

    @property
    def share(self) -> float:
        """Of the roof."""
        return self.roof / self.seconds

    @property
    def title(self) -> str:
        return f"{self.dtype} {' '.join(f'{n} {v}' for n, v in self.sizes.items())}"

    def at(self, axis: str) -> float:
        """Its place on the x axis."""
        if axis:
            return float(self.sizes[axis])
        return math.exp(sum(map(math.log, self.sizes.values())) / len(self.sizes))

    def far_from(self, other: Measured) -> float:
        """Octaves between the sizes of two points."""
        return math.dist([math.log2(v) for v in self.sizes.values()], [math.log2(v) for v in other.sizes.values()])


def timed(record: Record, name: str) -> list[int]:
    """The points that a kernel was timed at: those at which a call takes it; all, where it was named."""
    mine = record["implementations"].index(name) if name in record["implementations"] else -1
    return [i for i, by in enumerate(record["by"]) if name in record.get("named", ()) or (by == mine and record["us"][i] is not None)]


def made_by(record: Record, name: str) -> tuple[Subject, list[Case]] | None:
    """A kernel that a sweep has timed, with its points as cases; None where the tree has no such kernel, or draws other points."""
    from rooftop.core import registry
    from rooftop.lab.candidates import Subject

    if name not in {f.name for f in registry.kernel_files()}:
        return None
    op = registry.op(record.op)
    if op.swept is None:
        return None
    try:
        cases = [
            op.swept.case(record["dtypes"][record["dtype"][i]], {n: v[i] for n, v in record["sizes"].items()}) for i in timed(record, name)
        ]
    except TypeError:  # other sizes
        return None
    return Subject(name, op, registry.implementation(name)), cases


def is_current(record: Record, memo: Memo | None = None) -> bool:
    """Whether the kernels that it timed are those of the tree, as they run at its points."""
    for name, found in record["digests"].items():
        mine = made_by(record, name)
        part = {"digest": found, **{key: record[f"{key}s"][name] for key in ("source", "machine") if name in record.get(f"{key}s", ())}}
        try:
            if mine is None or not identity.fresh(part, *mine, device_of(record), memo):
                return False
        except ValueError:  # it no longer takes a point
            return False
    return True


def points(record: Record) -> list[Measured]:
    """The points of a record that were timed."""
    found = []
    for i, us in enumerate(record["us"]):
        if us is not None:
            peers = {name: row[i] * 1e-6 for name, row in record["peers"].items() if row[i] is not None}
            copy = record["copy_us"][i]
            found.append(Measured(
                i, {n: row[i] for n, row in record["sizes"].items()}, record["dtypes"][record["dtype"][i]], bool(record["few"][i]),
                bool(record["aligned"][i]), record["bytes"][i], us * 1e-6, None if copy is None else copy * 1e-6,
                record["roof_us"][i] * 1e-6, record["noise"][i], record["implementations"][record["by"][i]], peers,
            ))
    return found


def cliffs(found: Sequence[Measured]) -> list[tuple[Measured, float]]:
    """Points under CLIFF of their neighbours, with the median of the neighbours' shares, the worst first. Neighbours: the nearest in size
    of the same dtype and alignment, at most FAR away; fewer than two say nothing."""
    below = []
    for p in found:
        others = [
            (d, q.share) for q in found if q is not p and (q.dtype, q.aligned) == (p.dtype, p.aligned) and (d := p.far_from(q)) <= FAR
        ]
        near = [share for _, share in sorted(others)[:NEIGHBOURS]]
        if len(near) > 1 and p.share < CLIFF * median(near):
            below.append((p, median(near)))
    return sorted(below, key=lambda pm: pm[0].share / pm[1])


def slower(found: Sequence[Measured], named: Sequence[str] = ()) -> list[tuple[Measured, str, float]]:
    """Points that run at less than 0.97 of a peer's speed (0.95 of torch.compile's), beyond the noise; with the peer and the ratio of
    speeds, the worst first. `named`: what is no peer (implementations that were timed beside)."""
    behind = []
    for p in found:
        for name, seconds in p.peers.items():
            ratio = seconds / p.seconds
            if name not in named and ratio * (1 + p.noise) < SLOWER.get(name, SLOWER_THAN_OTHERS):
                behind.append((p, name, ratio))
    return sorted(behind, key=lambda b: b[2])


def counted(found: Sequence[Measured], lines: Sequence[float]) -> list[int]:
    """How many points lie below each share."""
    return [sum(p.share < line for p in found) for line in lines]
