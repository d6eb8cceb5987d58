"""The pages' data, each class with what fills it from records, the tree and the facts of binaries: no number has another source. Templates
read it.

A record counts while what made it is what the tree has (rooftop.lab.records.identity). One that does not is *stale*: shown as stale, in no
score. What no record says is None here and "not measured" on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from rooftop.core import registry, settings
from rooftop.core.call import first
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS, Case, Device
from rooftop.lab.candidates import Memo
from rooftop.lab.check.proofs import device_of
from rooftop.lab.records.record import Record, of_kind
from rooftop.lab.report import beyond, checks, derivation, language_page, predictions, reference, sweep_page
from rooftop.lab.report.cards import Card, card
from rooftop.lab.report.facts import TargetFacts, target_facts
from rooftop.lab.report.joined import Joined, Measured, units
from rooftop.lab.report.known import Digests as Digests
from rooftop.lab.report.ladder_cases import cases_of, headline_of
from rooftop.lab.report.language_page import LanguageRow
from rooftop.lab.report.model import CaseView, Checked, DeviceView, ImplementationView, Prediction, Sanitized, Step, SweepView
from rooftop.lab.report.reference import Entry, sentence
from rooftop.lab.report.rung_counts import RungCounts


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
    backward_of: str = ""

    @property
    def file(self) -> str:
        return f"op-{self.name}.html"

    @property
    def line(self) -> str:
        return sentence(self.about)

    def on(self, device: DeviceView) -> DeviceScore | None:
        return next((s for s in self.scores if s.device.name == device.name and s.summary.measured), None)


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


def gather(
    records: Iterable[Record],
    facts: Mapping[tuple[str, int], Mapping[str, Any]] | None = None,
    checks: Iterable[Mapping[str, Any]] = (),
    counts: Mapping[str, RungCounts] | None = None,
    *,
    house: registry.House = registry.HOUSE,
    now: datetime | None = None,
    digests: Digests | None = None,
) -> SiteData:
    """Everything the pages show.

    records   as `rooftop.lab.records.store.read` gives them
    facts     (subject, architecture) -> facts of its binary at the headline case (see `target_facts`)
    checks    results of checks made just now, each a `rooftop.lab.check.checker.Result.to_json()`
    counts    rung -> what the simulator counts of it (rooftop.lab.report.rung_counts)
    digests   those worked out before, of the same house; grows"""
    known = {} if digests is None else digests
    gatherer = Gatherer(list(records), house, known, facts=dict(facts or {}), checks=list(checks), counts=dict(counts or {}))
    return gatherer.site(now or datetime.now(UTC))


@dataclass
class Gatherer(Joined):
    """What the pages show of records joined to the tree."""

    facts: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    checks: list[Mapping[str, Any]] = field(default_factory=list)
    counts: Mapping[str, RungCounts] = field(default_factory=dict)

    def site(self, now: datetime) -> SiteData:
        ladders = tuple(self.ladder_page(registry.ladder(name, self.house)) for name in registry.ladder_names(self.house))
        ops = tuple(self.op_score(name) for name in self._op_names)
        bench = of_kind(self.records, "bench")
        stale = sum(self.stale(r) is not None for r in bench)
        languages = language_page.rows(self.records, self.measured, self.stale, self.house)
        tutorial = settings.CHECKOUT / "docs" / "tutorial.md"
        text = tutorial.read_text(encoding="utf-8") if self.house is registry.HOUSE and tutorial.is_file() else ""
        cards = tuple(card(view, *self.ceilings(view.name)) for view in self.devices(bench))
        return SiteData(ops, ladders, cards, len(bench), stale, now, self._sweeps(), languages, text)

    def _sweeps(self) -> dict[str, tuple[SweepView, ...]]:
        """The newest sweep of each op of the tree on each card."""
        found = sweep_page.newest(self.records)
        return {op: tuple(sweep_page.view(r, self.sweep_is_current(r)) for r in found[op]) for op in self._op_names if op in found}

    def devices(self, records: Iterable[Record]) -> tuple[DeviceView, ...]:
        """The cards of these records, the one with the most that are not stale first."""
        fresh: dict[str, int] = {}
        views: dict[str, DeviceView] = {}
        for r in records:
            name = r.card
            fresh[name] = fresh.get(name, 0) + (self.stale(r) is None)
            views[name] = DeviceView(
                name, device_of(r), self.ceilings(name)[0] is not None, self.outdated(name), self.ceilings(name)[1] is not None
            )
        return tuple(views[name] for name in sorted(views, key=lambda n: (-fresh[n], n)))

    # -- ladders ----------------------------------------------------------------------------------------------------

    def ladder_page(self, ladder: registry.Ladder) -> LadderPage:
        op = registry.op(ladder.op, self.house)
        cases = cases_of(ladder, op)
        names = {r.name for r in ladder.rungs} | {r.implementation.name for r in ladder.rungs if r.head and r.head.implementation}
        mine = [r for r in self._placed.get(("bench", op.name), ()) if r.subject in names]
        devices = self.devices(mine)
        headline = headline_of(ladder, op).id
        rungs: list[RungRow] = []
        for rung in ladder.rungs:
            rungs.append(self._rung(rung, op.name, cases, headline, ladder.targets, devices, rungs[-1] if rungs else None))
        peers = {
            (device.name, case.id): tuple(sorted(
                (m for m in self._peers.get((device.name, op.name, case.id), ()) if m.kernel), key=lambda m: m.seconds,
            ))
            for device in devices for case in cases
        }
        views = tuple(CaseView(c.id, c.name, c.dtype, c.why, c.id == headline) for c in cases)
        return LadderPage(
            ladder.name, ladder.title, ladder.intro.strip(), op.name, headline, views, ladder.targets, devices, tuple(rungs), peers,
            derivation.steps(ladder, self.house), self._beyond(ladder, op),
        )

    def _beyond(self, ladder: registry.Ladder, op: Contract) -> tuple[str, ...]:
        """Where the shipped kernel, that of the last rung or what a call of the headline takes, differs from the last rung."""
        def found() -> str:
            case, last = headline_of(ladder, op), ladder.rungs[-1]
            name = last.head.implementation if last.head else None
            name = name or self._once(("choice", op.name, case.id, beyond.CARD), lambda: first_choice(op, case, beyond.CARD, self.memo))
            shipped = next((i for i in registry.implementations(op.name, self.house) if i.name == name), None)
            return "\n".join(beyond.lines(ladder, op, shipped, case, self.memo))

        return tuple((self._once(("beyond", ladder.name), found) or "").splitlines())

    def _rung(
        self, rung: registry.Rung, op: str, cases: Sequence[Case], headline: str, targets: Sequence[int], devices: Sequence[DeviceView],
        before: RungRow | None,
    ) -> RungRow:
        subject = self.subject(op, rung.name)
        assert subject is not None
        shipped = rung.head.implementation if rung.head else None
        cells: dict[tuple[str, str], Measured] = {}
        for device in devices:
            for case in cases:
                own = self.measured.get((device.name, op, rung.name, case.id))
                other = self.measured.get((device.name, op, shipped, case.id)) if shipped else None
                found = [m for m in (own, other) if m is not None]  # the shipped kernel's record is the last rung's too
                if found:
                    cells[(device.name, case.id)] = min(found, key=lambda m: m.stale is not None)
        at = devices[0].device if devices else TARGETS[90]

        def refused(case: Case) -> str | None:
            return self._once(("takes", op, rung.name, case.id, at), lambda: subject.supports(case, at, self.memo))

        unsupported = {case.id: why for case in cases if (why := refused(case))}
        facts = tuple(target_facts(arch, self.facts.get((rung.name, arch))) for arch in targets)
        path = rung.implementation.path
        text = path.read_text(encoding="utf-8")
        idea, limit = (rung.head.idea, rung.head.limit) if rung.head else (reference.first_paragraph(text), "")
        predict = dict(rung.head.predict) if rung.head else {}
        counts = self.counts.get(rung.name)
        best = cells.get((devices[0].name, headline)) if devices else None
        previous = before.cells.get((devices[0].name, headline)) if devices and before else None
        return RungRow(
            number=rung.number, slug=rung.slug, name=rung.name, path=_shown(path), shipped=shipped, idea=idea, limit=limit, cells=cells,
            unsupported=unsupported, facts=facts, checks=self.checked(op, rung.name, shipped),
            sanitized=self.sanitized(op, rung.name, shipped), source=text,
            predictions=predictions.judge(predict, best, previous, facts, counts.values if counts else {}, before is None),
            measured_speedup=predictions.speedup(best, previous), restated=predictions.restated(predict, best), counts=counts,
        )

    def checked(self, op: str, *names: str | None) -> tuple[Checked, ...]:
        """Checks made just now, then those recorded on each card."""
        now = [c for c in self.checks if c["op"] == op and c["subject"] in names]
        return checks.checked(now, [r for r in self._of("check", op, *names) if self.stale(r) is None])

    def sanitized(self, op: str, *names: str | None) -> tuple[Sanitized, ...]:
        """Runs under compute-sanitizer on each card."""
        return checks.sanitized(registry.op(op, self.house), self._of("sanitize", op, *names), self.stale)

    # -- scores -----------------------------------------------------------------------------------------------------

    def op_score(self, name: str) -> OpScore:
        op = registry.op(name, self.house)
        found = registry.implementations((op.twin_of or op).name, self.house)
        cases = [c for c in op.cases if "bench" in c.tags]
        implementations = tuple(ImplementationView(i.name, i.backend, i.arch, _shown(i.path), self.sanitized(name, i.name)) for i in found)
        names = {i.name for i in found}
        mine = [r for r in self._placed.get(("bench", name), ()) if r.subject in names]
        scores = []
        for device in self.devices(mine):
            rows: list[ScoreRow] = []
            for case in cases:
                measured = [m for i in implementations if (m := self.measured.get((device.name, name, i.name, case.id))) and m.kernel]
                taken = self._once(("choice", name, case.id, device.device), partial(first_choice, op, case, device.device, self.memo))
                measured.sort(key=lambda m: (m.stale is not None, m.subject != taken, m.seconds))
                peers = [(m.subject.removeprefix("peer:"), m) for m in self._peers.get((device.name, name, case.id), ()) if not m.stale]
                hosts = sorted(((s, m.clocks["host"].median) for s, m in peers if "host" in m.clocks), key=lambda host: host[1])
                weights = sorted(((s, m.memory) for s, m in peers if m.memory is not None), key=lambda weight: weight[1])
                rows.append(
                    ScoreRow(
                        CaseView(case.id, case.name, case.dtype, case.why, False), tuple(measured), tuple(hosts), tuple(weights), taken
                    )
                )
            scores.append(DeviceScore(device, tuple(rows), summarise(rows)))
        views = tuple(CaseView(c.id, c.name, c.dtype, c.why, False) for c in cases)
        ladders = tuple(n for n in registry.ladder_names(self.house) if registry.ladder(n, self.house).op == name)
        base = self.house.ops / f"{name.removesuffix('_bwd') if op.forward else name}.py"
        about = reference.first_paragraph(base.read_text(encoding="utf-8")) if op.twin_of is None else f"{op.twin_of.name} in place."
        family = next((i.path.parent.name for i in found), "")
        entry = reference.functions().get(name) if self.house is registry.HOUSE else None
        about = f"The backward of {op.forward.name}: its gradient." if op.forward else about
        usage = reference.usage(op) if entry else ""
        return OpScore(name, family, about, implementations, ladders, views, tuple(scores), entry, usage, op.forward.name if op.forward else "")


def summarise(rows: Iterable[ScoreRow]) -> Summary:
    """The score of an op on a card: of each case the implementation that a call takes, stale records left out."""
    rows = list(rows)
    best = [row.best for row in rows if row.best]
    shares = [m.share for m in best if m.share is not None]
    verdicts: dict[str, int] = {}
    for m in best:
        if m.best_peer:
            verdicts[m.best_peer.verdict] = verdicts.get(m.best_peer.verdict, 0) + 1
    speeds = [m.best_peer.speed for m in best if m.best_peer]
    ratio = geometric_mean(speeds) if speeds else None
    return Summary(len(best), len(rows), min(shares, default=None), median(shares) if shares else None, verdicts, ratio, len(speeds))


def first_choice(op: Contract, case: Case, device: Device, memo: Memo | None = None) -> str | None:
    """The implementation that a call of this case takes on this card. `memo`: what was worked out for others; grows."""
    found, _ = first(op.twin_of or op, (memo or Memo()).problem(op, case, device))
    return None if found is None else found.name


def _shown(path: Path) -> str:
    """The path from the checkout's root where it lies inside, else its last three parts: a page that is sent on names no folder of this
    machine."""
    try:
        return path.resolve().relative_to(settings.CHECKOUT).as_posix()
    except ValueError:
        return "/".join(path.parts[-3:])
