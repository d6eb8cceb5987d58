"""What the pages show, worked out from records, the tree and the facts of binaries: no number has another source.

A record counts while its digest is that of the tree. One that does not is *stale*: shown as stale, in no score. What no record says is
None here and "not measured" on the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from rooftop.core import registry, settings
from rooftop.core.call import ranked
from rooftop.core.contract import Contract
from rooftop.core.devices import lookup
from rooftop.core.implementation import Implementation
from rooftop.core.spec import TARGETS, Case, Device, Work
from rooftop.lab.candidates import Asked, Subject
from rooftop.lab.counters import traffic
from rooftop.lab.records.store import Record
from rooftop.lab.report import checks, derivation, language_page, predictions, sweep_page
from rooftop.lab.report.facts import target_facts
from rooftop.lab.report.known import Digests as Digests
from rooftop.lab.report.ladder_cases import cases_of, headline_of
from rooftop.lab.report.model import (
    Card,
    CaseView,
    Checked,
    Clock,
    DeviceScore,
    DeviceView,
    ImplementationView,
    LadderPage,
    Measured,
    OpScore,
    Roofs,
    RungRow,
    Sanitized,
    ScoreRow,
    SiteData,
    Summary,
    SweepView,
    Versus,
)  # fmt: skip
from rooftop.lab.report.rung_counts import RungCounts
from rooftop.lab.sanitize import digest_of
from rooftop.lab.timing import first_calls, roofline
from rooftop.lab.timing.roofline import Ceilings

CHANGED = "kernel, contract or config changed since"


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
    gatherer = Gatherer(list(records), dict(facts or {}), list(checks), house, dict(counts or {}), {} if digests is None else digests)
    return gatherer.site(now or datetime.now(UTC))


@dataclass
class Gatherer:
    """Records joined to the tree of one house."""

    records: list[Record]
    facts: Mapping[tuple[str, int], Mapping[str, Any]]
    checks: list[Mapping[str, Any]]
    house: registry.House
    counts: Mapping[str, RungCounts] = field(default_factory=dict)
    digests: Digests = field(default_factory=dict)
    _asked: Asked = field(default_factory=Asked)
    _why: dict[Any, tuple[str | None, str]] = field(default_factory=dict)  # of `digests`, what was asked of this one
    _cases: dict[str, Mapping[str, Case]] = field(default_factory=dict)  # op -> its cases by id
    _ceilings: dict[str, tuple[Ceilings | None, Ceilings | None]] = field(default_factory=dict)

    def site(self, now: datetime) -> SiteData:
        ladders = tuple(self.ladder_page(registry.ladder(name, self.house)) for name in registry.ladder_names(self.house))
        ops = tuple(self.op_score(name) for name in self._op_names())
        bench = self._of_kind("bench")
        stale = sum(self.stale(r) is not None for r in bench)
        languages = language_page.rows(self.records, self.measured, self.stale, self.house)
        return SiteData(ops, ladders, tuple(map(self.card, self.devices(bench))), len(bench), stale, now, self._sweeps(), languages)

    def _sweeps(self) -> dict[str, tuple[SweepView, ...]]:
        """The newest sweep of each op of the tree on each card."""
        found = sweep_page.newest(self.records)
        return {
            op: tuple(sweep_page.view(r, {i.name: self._digest(i) for i in registry.implementations(op, self.house)}) for r in found[op])
            for op in self._op_names() if op in found
        }  # fmt: skip

    def _once(self, key: tuple[Any, ...], work: Callable[[], str | None]) -> str | None:
        """What was worked out before of the tree, or is now."""
        if key not in self.digests:
            self.digests[key] = work(), ""
        return self.digests[key][0]

    def _digest(self, implementation: Implementation) -> str:
        return self._once(("digest", implementation.name), lambda: implementation.digest) or ""

    def _op_names(self) -> list[str]:
        """Ops, and those backwards that have a contract of their own, next to their forward."""
        names: list[str] = []
        for name in registry.op_names(self.house):
            names.append(name)
            if registry.op(name, self.house).bwd is not None:
                names.append(f"{name}_bwd")
        return names

    # -- the tree ---------------------------------------------------------------------------------------------------

    @cached_property
    def subjects(self) -> dict[tuple[str, str], Subject]:
        """(op, name) -> subject, of all that the tree holds."""
        found: list[Subject] = []
        for name in self._op_names():
            op = registry.op(name, self.house)
            found += [Subject(i.name, op, i) for i in registry.implementations(name, self.house)]
            found += [Subject(f"peer:{peer}", op, peer=peer) for peer in {**op.peers, **op.ranks_peers}]
        for name in registry.ladder_names(self.house):
            ladder = registry.ladder(name, self.house)
            op = registry.op(ladder.op, self.house)
            found += [Subject(r.name, op, r.implementation, r) for r in ladder.rungs]
        return {(s.op.name, s.name): s for s in found}

    def stale(self, record: Record) -> str | None:
        """None for a record of the tree as it is, else why it is not."""
        op_name, name = str(record.get("op")), str(record.get("subject"))
        subject = self.subjects.get((op_name, name))
        if subject is None:
            return f"{name} is no longer in the tree"
        cases = self._cases_of(subject.op)
        ids = tuple(map(str, record["cases"])) if record["kind"] == "sanitize" else (str(record.get("case")),)
        if any(i not in cases for i in ids):
            return f"{op_name} no longer has this case"
        device, sanitized = device_of(record), record["kind"] == "sanitize"
        key = (op_name, name, ids, device, sanitized)
        if key not in self._why:
            if key not in self.digests:
                self.digests[key] = self._of_the_tree(subject, [cases[i] for i in ids], device, sanitized, record.get("digest"))
            self._why[key] = self.digests[key]
        why, digest = self._why[key]
        if why:
            return f"it no longer takes this case: {why}"
        return None if digest == record.get("digest") else CHANGED

    def _of_the_tree(self, subject: Subject, cases: Sequence[Case], device: Device, sanitized: bool, recorded: object) -> tuple[str | None, str]:
        """Why the subject does not take these cases, and its digest at them. One that is as it was when it ran takes them, and is not asked."""

        def digest() -> str:
            return digest_of(subject, [c.id for c in cases], device, self._asked) if sanitized else subject.digest(cases[0], device, self._asked)

        try:
            found = digest()
        except Exception:  # a kernel may fail in any way to choose for what it does not take; the question below says so, or it fails again
            found = ""
        if found and found == recorded:
            return None, found
        why = next((why for c in cases if (why := subject.supports(c, device, self._asked))), None)
        return why, "" if why else found or digest()

    def _cases_of(self, op: Contract) -> Mapping[str, Case]:
        if op.name not in self._cases:
            self._cases[op.name] = {c.id: c for c in op.cases}
        return self._cases[op.name]

    # -- records ----------------------------------------------------------------------------------------------------

    @cached_property
    def _placed(self) -> dict[tuple[str, str], list[Record]]:
        """(kind, op) -> its records, in their order."""
        found: dict[tuple[str, str], list[Record]] = {}
        for r in self.records:
            found.setdefault((str(r["kind"]), str(r.get("op"))), []).append(r)
        return found

    def _of_kind(self, kind: str) -> list[Record]:
        return [r for r in self.records if r["kind"] == kind]

    def _of(self, kind: str, op: str, *names: str | None) -> list[Record]:
        found = (r for r in self._placed.get((kind, op), ()) if r.get("subject") in names)
        return sorted(found, key=lambda r: str(r.get("at", "")))

    @cached_property
    def _peers(self) -> dict[tuple[str, str, str], list[Measured]]:
        """(device, op, case) -> what was measured of its peers there."""
        found: dict[tuple[str, str, str], list[Measured]] = {}
        for (device, op, subject, case), m in self.measured.items():
            if subject.startswith("peer:"):
                found.setdefault((device, op, case), []).append(m)
        return found

    @cached_property
    def measured(self) -> dict[tuple[str, str, str, str], Measured]:
        """(device, op, subject, case id) -> the newest record that is not stale; where all are, the newest of those."""
        found: dict[tuple[str, str, str, str], Measured] = {}
        for record in sorted(self._of_kind("bench"), key=lambda r: str(r.get("at", ""))):
            item = self._measured(record)
            key = (item.device, item.op, item.subject, item.case)
            if key not in found or item.stale is None or found[key].stale is not None:
                found[key] = item
        peers: dict[tuple[str, str, str, str], list[Measured]] = {}  # of one run at one case
        for m in found.values():
            if m.subject.startswith("peer:") and m.kernel and not m.stale:
                peers.setdefault((m.device, m.op, m.case, m.run), []).append(m)
        return {key: self._beside_peers(item, peers.get((item.device, item.op, item.case, item.run), ())) for key, item in found.items()}

    @staticmethod
    def _beside_peers(item: Measured, peers: Iterable[Measured]) -> Measured:
        """A rung too slow to be timed side by side with the peers, beside those of the same run."""
        if item.subject.startswith("peer:") or item.best_peer or item.stale or not item.kernel:
            return item
        return replace(item, versus=(*item.versus, *(Versus(m.subject, m.seconds / item.seconds, None, "not paired") for m in peers)))

    def _measured(self, record: Record) -> Measured:
        work = record["work"]
        device = str(record["device"]["name"])
        error = record.get("error") or {}
        shares = [float(error[k]) for k in ("share", "max_share", "rms_share") if k in error]
        return Measured(
            subject=str(record["subject"]), op=str(record["op"]), case=str(record["case"]), device=device, at=str(record.get("at", "")),
            run=str(record.get("run", "")), stale=self.stale(record),
            clocks={k: Clock(float(c["median"]), float(c["low"]), float(c["high"]), str(c.get("duty", "normal"))) for k, c in record["clocks"].items() if c},
            roofs=self.roofs(device, Work(int(work["read"]), int(work["write"]), dict(work.get("ops", {})))),
            versus=_all_versus(record.get("versus", {})), sustained_versus=_all_versus(record.get("sustained_versus", {})), memory=record.get("memory"),
            error=max(shares) if shares else None, wrong=not error.get("ok", True),
            predict={str(k): float(v) for k, v in record.get("predict", {}).items()},
            counters={str(k): float(v) for k, v in record.get("counters", {}).items()}, moved=int(work["read"]) + int(work["write"]),
            operations=sum(float(n) * operations_of(unit) for unit, n in dict(work.get("ops", {})).items()),
        )  # fmt: skip

    def ceilings(self, device: str) -> tuple[Ceilings | None, Ceilings | None]:
        """As measured (the datasheet filling gaps), and of the datasheet alone; None where there is no such thing."""
        if device not in self._ceilings:
            sheet = lookup(device)
            found = Ceilings.from_records(self.records, device, sheet)
            self._ceilings[device] = (found if found.curves else None, Ceilings(device, datasheet=sheet) if sheet else None)
        return self._ceilings[device]

    def roofs(self, device: str, work: Work) -> Roofs:
        """The roofs of a work on a card. What bounds it says in which unit its throughput is given."""
        measured, sheet = self.ceilings(device)
        roof = measured.roof(work.read, work.write, work.ops) if measured else None
        on_sheet = sheet.roof(work.read, work.write, work.ops) if sheet else None
        if roof and measured and roof.bound not in ("memory", "launch") and not measured.rates.get(roof.bound):
            roof = None  # what bounds it was not measured: that is the datasheet's roof, shown as such
        lasting = measured.roof(work.read, work.write, work.ops, duty="sustained") if measured and roof else None
        if lasting and measured and lasting.bound not in ("memory", "launch") and not measured.rates.get(lasting.bound, {}).get("sustained"):
            lasting = None
        kind = roof or on_sheet or Ceilings("", datasheet=lookup(TARGETS[90].name)).roof(work.read, work.write, work.ops)
        count = work.ops.get(kind.bound, 0.0)
        flops = operations_of(kind.bound) == 2
        return Roofs(
            amount=count * operations_of(kind.bound) if count else float(work.bytes),
            unit=("TFLOP/s" if flops else "Top/s") if count else "GB/s",
            bound=kind.bound, measured=roof.seconds if roof else None, datasheet=on_sheet.seconds if on_sheet else None,
            assumed=roof.assumed if roof else (), at=measured.at if measured else "", sustained=lasting.seconds if lasting else None,
        )  # fmt: skip

    def devices(self, records: Iterable[Record]) -> tuple[DeviceView, ...]:
        """The cards of these records, the one with the most that are not stale first."""
        fresh: dict[str, int] = {}
        views: dict[str, DeviceView] = {}
        for r in records:
            name = str(r["device"]["name"])
            fresh[name] = fresh.get(name, 0) + (self.stale(r) is None)
            views[name] = DeviceView(name, device_of(r), self.ceilings(name)[0] is not None, self.ceilings(name)[1] is not None)
        return tuple(views[name] for name in sorted(views, key=lambda n: (-fresh[n], n)))

    def card(self, view: DeviceView) -> Card:
        """What was measured of a card, and what its datasheet says."""
        measured, sheet = self.ceilings(view.name)
        curves = measured.curves if measured else {}
        sizes = sorted({n for c in curves.values() for n in c.bytes})
        memory = tuple((n, tuple(n / c.time(n) if (c := curves.get(k)) else None for k in ("copy", "read", "write"))) for n in sizes)
        found = measured.rates if measured else {}
        known = sheet.datasheet.rates if sheet and sheet.datasheet else {}
        rates = tuple(
            (unit, (*(operations_of(unit) * r if (r := found.get(unit, {}).get(duty)) else None for duty in ("burst", "sustained")),
                    operations_of(unit) * sheet.datasheet.per_second(unit) if sheet and sheet.datasheet and unit in known else None))
            for unit in dict.fromkeys((*found, *known))
        )  # fmt: skip
        bandwidth = sheet.datasheet.bandwidth_gbs * 1e9 if sheet and sheet.datasheet else None
        return Card(view, measured.at if measured else "", memory, rates, bandwidth, measured.graph_node_s if measured else None)  # type: ignore[arg-type]

    @cached_property
    def traffic(self) -> dict[str, tuple[traffic.Comparison, ...]]:
        """Subject -> the model of the caches beside the hardware's counters, while the records show that the model holds for enough kernels."""
        found = traffic.compared(self.records)
        return {s: tuple(c for c in found if c.subject == s) for s in {c.subject for c in found}} if traffic.proven(found) else {}

    # -- ladders ----------------------------------------------------------------------------------------------------

    def ladder_page(self, ladder: registry.Ladder) -> LadderPage:
        op = registry.op(ladder.op, self.house)
        cases = cases_of(ladder, op)
        names = {r.name for r in ladder.rungs} | {r.implementation.name for r in ladder.rungs if r.head and r.head.implementation}
        mine = [r for r in self._placed.get(("bench", op.name), ()) if str(r.get("subject")) in names]
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
        }  # fmt: skip
        views = tuple(CaseView(c.id, c.name, c.dtype, c.why, c.id == headline) for c in cases)
        return LadderPage(
            ladder.name, ladder.title, ladder.intro.strip(), op.name, headline, views, ladder.targets, devices, tuple(rungs), peers,
            derivation.steps(ladder, self.house),
        )  # fmt: skip

    def _rung(
        self, rung: registry.Rung, op: str, cases: Sequence[Case], headline: str, targets: Sequence[int], devices: Sequence[DeviceView],
        before: RungRow | None,
    ) -> RungRow:  # fmt: skip
        subject = self.subjects[(op, rung.name)]
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
            return self._once(("takes", op, rung.name, case.id, at), lambda: subject.supports(case, at, self._asked))

        unsupported = {case.id: why for case in cases if (why := refused(case))}
        facts = tuple(target_facts(arch, self.facts.get((rung.name, arch))) for arch in targets)
        path = rung.implementation.path
        text = path.read_text(encoding="utf-8")
        idea, limit = (rung.head.idea, rung.head.limit) if rung.head else (_docstring(text), "")
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
            traffic=self.traffic.get(rung.name, ()),
        )  # fmt: skip

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
        mine = [r for r in self._placed.get(("bench", name), ()) if r.get("subject") in names]
        scores = []
        for device in self.devices(mine):
            rows: list[ScoreRow] = []
            for case in cases:
                measured = [m for i in implementations if (m := self.measured.get((device.name, name, i.name, case.id))) and m.kernel]
                taken = self._once(("choice", name, case.id, device.device), partial(first_choice, op, found, case, device.device, self._asked))
                measured.sort(key=lambda m: (m.stale is not None, m.subject != taken, m.seconds))
                peers = [(m.subject.removeprefix("peer:"), m) for m in self._peers.get((device.name, name, case.id), ()) if not m.stale]
                hosts = sorted(((s, m.clocks["host"].median) for s, m in peers if "host" in m.clocks), key=lambda host: host[1])
                weights = sorted(((s, m.memory) for s, m in peers if m.memory is not None), key=lambda weight: weight[1])
                rows.append(ScoreRow(CaseView(case.id, case.name, case.dtype, case.why, False), tuple(measured), tuple(hosts), tuple(weights)))
            scores.append(DeviceScore(device, tuple(rows), summarise(rows)))
        views = tuple(CaseView(c.id, c.name, c.dtype, c.why, False) for c in cases)
        ladders = tuple(n for n in registry.ladder_names(self.house) if registry.ladder(n, self.house).op == name)
        base = self.house.ops / f"{name.removesuffix('_bwd') if op.forward else name}.py"
        about = _docstring(base.read_text(encoding="utf-8")) if op.twin_of is None else f"{op.twin_of.name} in place."
        family = next((i.path.parent.name for i in found), "")
        return OpScore(name, family, f"The gradient of {op.forward.name}." if op.forward else about, implementations, ladders, views, tuple(scores))


def staleness(found: Iterable[Record], digests: Digests | None = None) -> Callable[[Record], bool]:
    """Whether a record is not of the tree as it is. Those of kind `clock` measure no kernel of the tree and are never stale.

    digests   those worked out before; grows"""
    gatherer = Gatherer(list(found), {}, [], registry.HOUSE, digests={} if digests is None else digests)

    def stale(record: Record) -> bool:
        if record["kind"] == "ceiling":
            return not roofline.current(record)
        if record["kind"] == "first-calls":
            return not first_calls.current(record)
        if record["kind"] == "sweep":
            return not sweep_page.current(record)
        return record["kind"] != "clock" and gatherer.stale(record) is not None

    return stale


def operations_of(unit: str) -> int:
    """An FMA is two operations, whether of a core or of a tensor core; what other units do counts once."""
    return 2 if unit.startswith(("fma", "tensor")) else 1


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


def first_choice(op: Contract, found: Iterable[Implementation], case: Case, device: Device, asked: Asked | None = None) -> str | None:
    """The implementation that a call of this case takes on this card. `asked`: what was worked out for others; grows."""
    seen = (asked or Asked()).problem(op, case, device)
    return next((i.name for i, reason in ranked(found, seen) if reason is None), None)


def device_of(record: Record) -> Device:
    """The card of a record, as kernels were asked about it."""
    d = record["device"]
    arch = int(d.get("arch", 90))
    like = TARGETS.get(arch, TARGETS[90])
    shared, l2 = d.get("shared_per_block", like.shared_per_block), d.get("l2_bytes", like.l2_bytes)
    return Device(str(d["name"]), arch, int(d.get("sms", like.sms)), int(shared), int(l2))


def _all_versus(found: Mapping[str, Any]) -> tuple[Versus, ...]:
    return tuple(sorted((_versus(k, v) for k, v in found.items()), key=lambda v: v.speed))


def _versus(name: str, v: Mapping[str, Any]) -> Versus:
    """From a ratio of times, this subject's over the other's, to a ratio of speeds."""
    return Versus(name, 1 / float(v["ratio"]), (1 / float(v["high"]), 1 / float(v["low"])), str(v["verdict"]))


def _docstring(text: str) -> str:
    """The first paragraph of a Python file's docstring, on one line."""
    if plain := re.match(r'"""([^"\\]*)"""', text):  # as most begin: to read the whole file takes longer
        return " ".join(plain[1].strip().split("\n\n")[0].split())
    try:
        found = ast.get_docstring(ast.parse(text)) or ""
    except SyntaxError:
        return ""
    return " ".join(found.split("\n\n")[0].split())


def _shown(path: Path) -> str:
    """The path from the checkout's root where it lies inside, else its last three parts: a page that is sent on names no folder of this machine."""
    try:
        return path.resolve().relative_to(settings.CHECKOUT).as_posix()
    except ValueError:
        return "/".join(path.parts[-3:])
