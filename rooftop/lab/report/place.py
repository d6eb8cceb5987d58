"""Where a kernel stands on a ladder: the rung whose machine code and counts are nearest, the steps it has not gone, and what each gained
when it was measured.

A kernel's traits are figures of its hottest code and of its accesses. A step of the ladder is told by the traits that it changes; a kernel
has gone it where most of those are nearer to the rung after than to the rung before. Of the steps up to the nearest rung only traits count
in which the kernel differs from
that rung: what a later step undid is not missing. A step that changes no trait cannot be told, and is said to be so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rooftop.lab.records.store import Record

if TYPE_CHECKING:
    from rooftop.core import registry
    from rooftop.core.contract import Contract
    from rooftop.core.spec import Case
    from rooftop.lab.candidates import Subject

TITLES: Mapping[str, str] = {
    "shared memory": "2 where it is used", "FFMA a shared word": "multiply-adds for a 32-bit word read from shared memory",
    "FFMA a global word": "multiply-adds for a word read from global memory", "global load": "bytes of the widest load from global memory",
    "shared load": "bytes of the widest load from shared memory", "copies without registers": "2 where cp.async or TMA fills shared memory",
    "tensor cores": "2 where they multiply", "shuffles": "2 where lanes exchange values", "sectors read": "sectors for a read of a warp",
    "sectors written": "sectors for a write of a warp", "conflicts": "shared wavefronts over the least that would do",
}
NO_GAIN = 1.02  # times: a step that gained no more is not missing
CHANGED = 0.4  # of log2 of a trait: less is no change
_MULTIPLY = ("FFMA", "HFMA2", "DFMA", "IMAD.WIDE")
_TENSOR = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "BMMA", "DMMA")
_COUNTED = {"sectors_read": "sectors read", "sectors_written": "sectors written", "conflicts": "conflicts"}


@dataclass(frozen=True)
class Ahead:
    """A step of the ladder: to which rung, its idea in the ladder's words, the traits it changes, and the time before over that after where
    both rungs were timed (`case`, `card`). `gone`: True, False, or None where the traits do not tell."""

    rung: str
    idea: str
    changes: tuple[str, ...]
    gone: bool | None
    gain: float | None
    case: str
    card: str


@dataclass(frozen=True)
class Placed:
    """`nearest`: the rungs at the least distance, several where their traits are the same. `counted`: why no accesses were counted, or
    empty."""

    subject: str
    ladder: str
    nearest: tuple[str, ...]
    distance: float
    traits: Mapping[str, float]
    steps: tuple[Ahead, ...]
    counted: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def traits(facts: Mapping[str, Any], counts: Mapping[str, float]) -> dict[str, float]:
    """Of a kernel's machine code (rooftop.lab.inspect) and of its accesses, counted by the simulator or by a profiler (`counts`, where
    there are any)."""
    kernel = max(facts["kernels"], key=lambda k: sum(k["loop"].values()) or k["instructions"])
    whole, loop = kernel["counts"], kernel["loop"] or kernel["counts"]
    multiply = sum(n for op, n in loop.items() if op.startswith(_MULTIPLY))
    values = {
        "shared memory": 2.0 if kernel["shared"] else 1.0,
        "global load": float(_widest(whole, ("LDG", "LDGSTS"))), "shared load": float(_widest(whole, ("LDS",))),
        "copies without registers": 2.0 if any(op.startswith(("LDGSTS", "UTMALDG", "UBLKCP")) for op in whole) else 1.0,
        "tensor cores": 2.0 if any(op.startswith(_TENSOR) for op in whole) else 1.0,
        "shuffles": 2.0 if any(op.startswith("SHFL") for op in whole) else 1.0,
    }
    for key, start in (("FFMA a shared word", "LDS"), ("FFMA a global word", "LDG")):
        if multiply and (words := _words(loop, start)):
            values[key] = multiply / words
    return values | {title: float(counts[name]) for name, title in _COUNTED.items() if name in counts}


def _widest(counts: Mapping[str, int], starts: tuple[str, ...]) -> int:
    """Bytes of the widest access whose opcode is one of `starts`; 1 where there is none."""
    return max((int(bits) // 8 for op in counts for name, _, bits in [op.partition(".")] if name in starts and bits.isdigit()), default=1)


def _words(counts: Mapping[str, int], name: str) -> float:
    return sum(
        n * int(op.partition(".")[2]) / 32 for op, n in counts.items() if op.partition(".")[0] == name and op.partition(".")[2].isdigit()
    )


def measured_by(kernel: Any) -> dict[str, float]:
    """The counted traits of a profiler's report of the kernel; what it did not collect is not among them."""
    gains = {}
    for name, op in (("sectors_read", "ld"), ("sectors_written", "st")):
        sectors, requests = (kernel.get(f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum") for what in ("sectors", "requests"))
        if sectors is not None and requests:
            gains[name] = sectors / requests
    wavefronts, lost = kernel.get("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"), kernel.get(
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
    )
    if wavefronts and lost is not None and wavefronts > lost:
        gains["conflicts"] = wavefronts / (wavefronts - lost)
    return gains


_LANGUAGES = {"cuda": "CUDA C++", "triton": "Triton", "gluon": "Gluon"}


def distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Sum over the traits that both have of the difference in powers of 2, each at most 3; a trait that one of them alone has counts 1."""
    total = 0.0
    for key in {*one, *other}:
        if key in one and key in other:
            total += min(3.0, abs(math.log2(one[key] / other[key])))
        elif key not in _COUNTED.values():  # uncounted is not different
            total += 1.0
    return total


def place(subject: Subject, ladder: str, records: Sequence[Record], target: str = "h200", *, case: str | None = None,
          dtype: str | None = None, count: bool = False, measured: Mapping[str, float] | None = None) -> Placed:
    """`case`, `dtype`: of the ladder's cases; else the headline, or the first that the subject takes. `count`: let the simulator count the
    accesses that it has not counted before; `measured`: those of the kernel, by a profiler (see `measured_by`).

    Raises ValueError where the subject computes another op than the ladder, or takes none of its cases."""
    from rooftop.core import registry
    from rooftop.lab.inspect import inspector
    from rooftop.lab.report import rung_counts

    climbed = registry.ladder(ladder)
    if subject.op.name != climbed.op:
        raise ValueError(f"{subject.name} computes {subject.op.name}; the ladder {ladder} is of {climbed.op}")
    refused: dict[str, str] = {}
    chosen = None
    for c in _cases(climbed, subject.op, case, dtype):
        try:
            facts = inspector.facts_of(subject, c, target)
        except ValueError as error:  # the kernel does not take it
            refused[str(error)] = c.id
            continue
        if "refused" not in facts:
            chosen = c
            break
        refused[str(facts["refused"])] = c.id
    if chosen is None:
        raise ValueError("; ".join(f"{subject.name} at {c}: {why}" for why, c in refused.items()))
    rungs = _rungs(climbed)
    counted = rung_counts.count([*rungs, subject], chosen, run=count)
    counts = {n: c.values for n, c in counted.items()} | ({} if measured is None else {subject.name: measured})
    whys = "" if counts.get(subject.name) else counted[subject.name].why if subject.name in counted else "the simulator does not run it"
    return _placed(subject.name, ladder, traits(facts, counts.get(subject.name, {})), rungs, chosen, target, counts, records, whys)


def places(facts: Mapping[str, Any], name: str, ladders: Sequence[str], records: Sequence[Record], target: str = "h200", *,
           case: str | None = None, dtype: str | None = None, measured: Mapping[str, float] | None = None,
           backends: Sequence[str] = ("cuda",)) -> list[Placed]:
    """Where a kernel of a file of one's own stands on each of the ladders, the nearest first. `facts`: of its machine code
    (rooftop.lab.simt.own_file);
    `backends`: of the rungs that it is compared with."""
    from rooftop.core import registry
    from rooftop.lab.report import rung_counts

    def one(ladder: str) -> Placed:
        climbed = registry.ladder(ladder)
        rungs = [s for s in _rungs(climbed) if s.implementation is not None and s.implementation.backend in backends]
        if len(rungs) < 2:
            languages = " or ".join(_LANGUAGES.get(b, b) for b in backends)
            raise ValueError(f"{ladder}: no rungs in {languages} to compare {name} with")
        chosen = _cases(climbed, rungs[0].op, case, dtype)[0]
        counts = {n: c.values for n, c in rung_counts.count(rungs, chosen, run=False).items()}
        whys = "" if measured else "rooftop simt counts them"
        return _placed(name, ladder, traits(facts, measured or {}), rungs, chosen, target, counts, records, whys)

    return on_each(ladders, one)


def on_each(ladders: Sequence[str], one: Callable[[str], Placed]) -> list[Placed]:
    """What `one` finds on each ladder, the nearest first; those that it refuses are passed over.

    Raises its ValueError where it refuses all."""
    placed, refused = [], []
    for ladder in ladders:
        try:
            placed.append(one(ladder))
        except ValueError as error:
            refused.append(str(error))
    if not placed:
        raise ValueError("; ".join(dict.fromkeys(refused)) or "there is no ladder to place it on")
    return sorted(placed, key=lambda p: p.distance)


def _rungs(ladder: registry.Ladder) -> list[Subject]:
    from rooftop.lab import candidates

    return [s for s in candidates.rungs(ladder) if s.implementation is not None]


def _cases(ladder: registry.Ladder, op: Contract, case: str | None, dtype: str | None) -> list[Case]:
    """The cases of a ladder that are meant: the headline first."""
    from rooftop.lab.report.ladder_cases import cases_of, headline_of

    every = {c.id: c for c in (headline_of(ladder, op), *cases_of(ladder, op))}
    cases = [c for c in every.values() if dtype in (None, c.dtype) and case in (None, c.name, c.id)]
    if not cases:
        raise ValueError(f"{case or ''} {dtype or ''}".strip() + f": no case of the ladder {ladder.name}; it has {', '.join(every)}")
    return cases


def _placed(name: str, ladder: str, own: Mapping[str, float], rungs: Sequence[Subject], case: Case, target: str,
            counts: Mapping[str, Mapping[str, float]], records: Sequence[Record], whys: str) -> Placed:
    from rooftop.lab.inspect import inspector

    every = inspector.many([(s, case, target) for s in rungs])
    by_name = {n: traits(facts, counts.get(n, {})) for (n, _), facts in every.items() if "refused" not in facts}
    on = [s for s in rungs if s.name in by_name]
    if not on:
        raise ValueError(f"no rung of {ladder} takes {case.id} on {target}")
    apart = {s.name: distance(own, by_name[s.name]) for s in on}
    least = min(apart.values())
    near = tuple(n for n, d in apart.items() if d <= least + 0.05)
    at = max(i for i, s in enumerate(on) if s.name in near)
    steps = [_step(a, b, by_name, own, by_name[on[at].name] if i < at else None, records) for i, (a, b) in enumerate(pairwise(on))]
    return Placed(name, ladder, near, least, own, tuple(steps), whys)


def _step(before: Subject, after: Subject, by_name: Mapping[str, Mapping[str, float]], own: Mapping[str, float],
          here: Mapping[str, float] | None, records: Sequence[Record]) -> Ahead:
    """`here`: the traits of the nearest rung where the step lies before it."""
    a, b = by_name[before.name], by_name[after.name]
    changes = tuple(k for k in TITLES if k in a and k in b and abs(math.log2(b[k] / a[k])) >= CHANGED) + tuple(
        k for k in TITLES if (k in a) != (k in b) and k not in _COUNTED.values()
    )
    comparable = [k for k in changes if k in own and k in a and k in b]
    votes = [abs(math.log2(own[k] / b[k])) < abs(math.log2(own[k] / a[k])) for k in comparable]
    gone = None if not votes else sum(votes) * 2 > len(votes)
    if here is not None and not any(key in here and abs(math.log2(own[key] / here[key])) >= CHANGED for key in comparable):
        gone = True
    head = after.head
    idea = (head.idea if head is not None else "") or after.name
    gain, case, card = _gain(before.name, after.name, records)
    return Ahead(after.name, idea, changes, gone, gain, case, card)


def _gain(before: str, after: str, records: Sequence[Record]) -> tuple[float | None, str, str]:
    """Of the records of both at the same case on the same card: the one of the longest time; the newest record counts."""
    times: dict[str, dict[tuple[str, str], tuple[str, float]]] = {before: {}, after: {}}
    for r in records:
        if r.kind == "bench" and r.subject in times and "kernel" in r.clocks:
            key, new = (r.case, r.card), (r.at, r.clocks["kernel"].median)
            times[r.subject][key] = max(times[r.subject].get(key, ("", 0.0)), new)
    both = [k for k in times[before] if k in times[after]]
    if not both:
        return None, "", ""
    key = max(both, key=lambda k: times[before][k][1])
    return times[before][key][1] / times[after][key][1], *key


def screen(p: Placed) -> str:
    from rooftop.lab.counters.diagnose.show import plain

    lines = [
        f"{plain(p.subject)} on {p.ladder}",
        f"  you are at  {' or '.join(p.nearest)}" + (f" (distance {p.distance:.1f})" if p.distance >= 0.05 else "")
    ]
    lines.append("  traits      " + ", ".join(f"{k} {v:.3g}" for k, v in p.traits.items()))
    for gone, title in ((False, "missing"), (None, "cannot be told by these traits")):
        some = [s for s in p.steps if s.gone is gone and (s.gain is None or s.gain > NO_GAIN)]
        if some:
            lines.append(f"  {title}")
        for s in some:
            gain = "not recorded" if s.gain is None else f"{s.gain:.2f}x from the rung before it ({s.case}, {s.card})"
            lines.append(f"    {s.rung}: {gain}{'; ' + ', '.join(s.changes) if s.changes else ''}")
            lines.append(f"      {plain(s.idea, 100)}")
    if p.counted:
        lines.append(f"  accesses not counted: {plain(p.counted)}")
    return "\n".join(lines)
