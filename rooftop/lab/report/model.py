"""The data of the pages: plain, without torch, records or files. `rooftop.lab.report.data` fills it, templates read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from rooftop.core.devices import slug
from rooftop.core.spec import Device
from rooftop.lab.report.drawings.canvas import Picture
from rooftop.lab.report.facts import TargetFacts
from rooftop.lab.report.joined import Measured, units
from rooftop.lab.report.reference import Entry, sentence

if TYPE_CHECKING:
    from rooftop.lab.report.rung_counts import RungCounts


@dataclass(frozen=True)
class Prediction:
    name: str
    predicted: float
    measured: float | None
    verdict: str  # hit, too high, too low, not measured, not counted


@dataclass(frozen=True)
class Checked:
    """Checks of one subject in one place: how many cases were right, which were not, how many could not run there."""

    where: str
    ok: int
    failed: tuple[tuple[str, str], ...]  # case, message
    skipped: int
    why: str  # the commonest reason for skipping


@dataclass(frozen=True)
class ToolRun:
    """One tool of compute-sanitizer on one subject. `words`: the first finding, or why the run is stale."""

    tool: str
    state: str  # clean, wrong, stale, not run
    errors: int = 0  # 0 and wrong: the results were, or the kernels did not come to their end
    cases: int = 0
    edge: bool = True  # all of the cases are edge cases
    words: str = ""


@dataclass(frozen=True)
class Sanitized:
    """Every tool of compute-sanitizer on one subject, on one card."""

    device: str
    date: str
    tools: tuple[ToolRun, ...]

    @property
    def short(self) -> str:
        return self.device.removeprefix("NVIDIA ")

    @property
    def lines(self) -> tuple[tuple[str, ToolRun], ...]:
        """Tools that say the same, together: their names, and one of them."""
        alike: dict[ToolRun, list[str]] = {}
        for run in self.tools:
            alike.setdefault(replace(run, tool=""), []).append(run.tool)
        return tuple((", ".join(names), run) for run, names in alike.items())

    @property
    def state(self) -> str:
        """The worst of its tools: wrong, stale, not run, clean."""
        return min((run.state for run in self.tools), key=("wrong", "stale", "not run", "clean").index)


@dataclass(frozen=True)
class CaseView:
    id: str
    name: str
    dtype: str
    why: str
    headline: bool


@dataclass(frozen=True)
class DeviceView:
    """A card that records speak of. `calibrated`: its ceilings were measured. `outdated`: they were, with other calibration kernels.
    `known`: it has a datasheet here."""

    name: str
    device: Device
    calibrated: bool
    outdated: bool
    known: bool

    @property
    def short(self) -> str:
        return self.name.removeprefix("NVIDIA ")


@dataclass(frozen=True)
class RungRow:
    number: int
    slug: str
    name: str
    path: str
    shipped: str | None  # the shipped kernel that this rung is
    idea: str
    limit: str
    cells: Mapping[tuple[str, str], Measured]  # (device, case id)
    unsupported: Mapping[str, str]  # case id -> why
    facts: tuple[TargetFacts, ...]
    checks: tuple[Checked, ...]
    sanitized: tuple[Sanitized, ...]  # by card
    source: str
    predictions: tuple[Prediction, ...]
    measured_speedup: float | None  # over the rung before, at the headline case on the first card
    restated: bool  # the head now predicts otherwise than it did when this was measured
    counts: RungCounts | None  # of the simulator; None: not asked for, or no CUDA C++

    @property
    def title(self) -> str:
        return self.slug.replace("_", " ")

    @property
    def anchor(self) -> str:
        return f"rung-{self.number:02d}"

    @property
    def speedup(self) -> Prediction | None:
        return next((p for p in self.predictions if p.name == "speedup"), None)


@dataclass(frozen=True)
class Step:
    """Of a derivation. `paragraphs`: those that are formulas with True. `rung`: whose config and launch it is about, by its name; "" where
    of none."""

    paragraphs: tuple[tuple[str, bool], ...]
    picture: Picture | None = None
    rung: str = ""


@dataclass(frozen=True)
class LadderPage:
    name: str
    title: str
    intro: str
    op: str
    headline: str
    cases: tuple[CaseView, ...]
    targets: tuple[int, ...]
    devices: tuple[DeviceView, ...]  # the one with the most records first
    rungs: tuple[RungRow, ...]
    peers: Mapping[tuple[str, str], tuple[Measured, ...]]  # (device, case id) -> fastest first
    derivation: tuple[Step, ...] = ()
    beyond: tuple[str, ...] = ()  # where the shipped kernel differs from the last rung with a file of its own

    @property
    def file(self) -> str:
        return f"ladder-{self.name}.html"

    @property
    def line(self) -> str:
        return sentence(self.intro)

    @property
    def top(self) -> tuple[RungRow, Measured] | None:
        """The fastest rung at the headline case on the first card."""
        if not self.devices:
            return None
        key = (self.devices[0].name, self.headline)
        found = [(r, m) for r in self.rungs if (m := r.cells.get(key)) and not m.stale and m.kernel]
        return min(found, key=lambda pair: pair[1].seconds, default=None)

    @property
    def units(self) -> list[str]:
        """Of throughput, as the tables of this page need them."""
        return units(m for r in self.rungs for m in r.cells.values())

    @property
    def clocks(self) -> list[str]:
        """The clocks beside the kernel's that any record of this page has."""
        return [n for n in ("sustained", "cold", "hot", "host") if any(n in m.clocks for r in self.rungs for m in r.cells.values())]

    @property
    def copied(self) -> bool:
        """Whether throughput is bytes, so that a plain copy is a fair mark, and one was timed."""
        return self.units == ["GB/s"] and any(m.copy_share is not None for r in self.rungs for m in r.cells.values())

    @property
    def measured(self) -> int:
        """Rungs with a record that is not stale."""
        return sum(any(not m.stale for m in r.cells.values()) for r in self.rungs)


@dataclass(frozen=True)
class ImplementationView:
    name: str
    backend: str
    arch: int
    path: str
    sanitized: tuple[Sanitized, ...]  # by card


@dataclass(frozen=True)
class ScoreRow:
    """One case on one card: the implementation that a call takes, the others fastest first, stale ones last. `taken`: its name."""

    case: CaseView
    measured: tuple[Measured, ...]
    peer_hosts: tuple[tuple[str, float], ...]  # what one eager call of a peer costs the CPU, seconds, cheapest first
    peer_memory: tuple[tuple[str, int], ...] = ()  # what it allocates, bytes, least first
    taken: str | None = None

    @property
    def best(self) -> Measured | None:
        """What speaks for the op: what a call takes. None where that has not been timed as it now is: the time of another implementation is
        not the op's."""
        return next((m for m in self.measured if not m.stale and self.taken in (None, m.subject)), None)


@dataclass(frozen=True)
class Summary:
    measured: int
    cases: int
    lowest: float | None  # share of the roof
    median: float | None
    verdicts: Mapping[str, int]
    ratio: float | None = None  # geometric mean of the speeds over the best peer
    peers: int = 0  # cases with a peer


@dataclass(frozen=True)
class DeviceScore:
    device: DeviceView
    rows: tuple[ScoreRow, ...]
    summary: Summary

    @property
    def units(self) -> list[str]:
        """Of throughput, as the table needs them."""
        return units(m for row in self.rows for m in row.measured)

    @property
    def copied(self) -> bool:
        """Whether a plain copy was timed beside any of these, and throughput is bytes."""
        return self.units == ["GB/s"] and any(m.copy_share is not None for row in self.rows for m in row.measured)

    @property
    def weighed(self) -> bool:
        """Whether the memory of any of these was measured."""
        return any(m.memory is not None for row in self.rows for m in row.measured)


@dataclass(frozen=True)
class OpScore:
    name: str
    family: str  # the folder of its kernels; "" for an op that has none
    about: str
    implementations: tuple[ImplementationView, ...]
    ladders: tuple[str, ...]
    cases: tuple[CaseView, ...]
    scores: tuple[DeviceScore, ...]
    entry: Entry | None = None  # of the public function
    usage: str = ""  # lines of Python that call it

    @property
    def file(self) -> str:
        return f"op-{self.name}.html"

    @property
    def line(self) -> str:
        return sentence(self.about)

    def on(self, device: DeviceView) -> DeviceScore | None:
        return next((s for s in self.scores if s.device.name == device.name and s.summary.measured), None)


@dataclass(frozen=True)
class Card:
    """What a card can do. `memory`: (bytes, bytes/s of a copy, a read, a write), as measured. `rates`: (unit, in a burst, sustained, of the
    datasheet), in operations/s with an FMA as two; None where nobody measured or states it."""

    device: DeviceView
    at: str
    memory: tuple[tuple[int, tuple[float | None, float | None, float | None]], ...]
    rates: tuple[tuple[str, tuple[float | None, float | None, float | None]], ...]
    bandwidth: float | None  # bytes/s of the datasheet
    launch: float | None  # seconds of an empty kernel in a graph

    @property
    def file(self) -> str:
        return f"card-{slug(self.device.name)}.html"

    @property
    def ridge(self) -> float | None:
        """Operations a byte at which the bf16 tensor cores and the memory take the same time."""
        found = next((burst or sheet for unit, (burst, _, sheet) in self.rates if unit == "tensor-bf16"), None)
        copy = max((c for _, (c, _, _) in self.memory if c), default=self.bandwidth)
        return found / copy if found and copy else None


@dataclass(frozen=True)
class Behind:
    """A point that falls behind. `why`: its neighbours' share, or the peer that is faster."""

    title: str
    share: float
    seconds: float
    by: str
    why: str


@dataclass(frozen=True)
class SweepView:
    """A sweep on a card. `current`: made with the kernels as they are. `below`: (share, points under it)."""

    device: str
    seed: int
    current: bool
    count: int
    middle: float
    below: tuple[tuple[float, int], ...]
    picture: str  # SVG
    peers: tuple[str, ...]
    behind: tuple[Behind, ...]
    left: int  # that the table has no room for


@dataclass(frozen=True)
class InLanguage:
    """A kernel as one of several languages in which the op is written. `lines` of its own files, `shared` of the helpers that it takes
    in."""

    subject: str
    path: str
    source: str
    lines: int
    shared: int
    measured: Measured | None
    compile_s: float | None  # CPU time
    compiler: str
    first_s: float | None  # of the first call in a process, the binary on the disk
    registers: tuple[int, ...]  # of each kernel that is launched
    spills: tuple[int, ...]


@dataclass(frozen=True)
class LanguageRow:
    """An op at one case on one card; a cell a language, None where there is no kernel."""

    op: str
    case: str
    device: str
    cells: tuple[InLanguage | None, ...]


@dataclass(frozen=True)
class SiteData:
    ops: tuple[OpScore, ...]
    ladders: tuple[LadderPage, ...]
    cards: tuple[Card, ...]  # the one with the most records that are not stale first
    records: int
    stale: int
    now: datetime
    swept: Mapping[str, tuple[SweepView, ...]] = field(default_factory=dict)  # op -> its sweep on each card
    languages: tuple[LanguageRow, ...] = ()
    tutorial: str = ""  # docs/tutorial.md, where there is one
    course: bool = False  # whether there are pages to learn from, which rooftop.lab.learn writes
