"""Records joined to the tree: what of them is of the kernels, contracts and configs as they are, beside the roofs of each card."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from rooftop.core import registry
from rooftop.core.contract import Contract
from rooftop.core.devices import lookup
from rooftop.core.spec import TARGETS, Case, Device, Work
from rooftop.lab.candidates import Memo, Subject
from rooftop.lab.check.proofs import device_of
from rooftop.lab.records import identity
from rooftop.lab.records.identity import Identity
from rooftop.lab.records.record import Clock, Record, Versus, of_kind
from rooftop.lab.report.known import Digests
from rooftop.lab.timing import first_calls, roofline, swept
from rooftop.lab.timing.roofline import Ceilings

CHANGED = "kernel, contract or launch changed since"
RENEWED = ("check", "bench", "sanitize", "language")
SCALE: Mapping[str, float] = {"GB/s": 1e9, "TFLOP/s": 1e12, "Top/s": 1e12}
STREAMS = ("ceiling:copy", "ceiling:read")  # what records call a plain copy, or read, of as many bytes, timed beside the kernels
SUSPICIOUS = 1.02  # a share of the roof above this says that the calibration is bad


def operations_of(unit: str) -> int:
    """An FMA is two operations, whether of a core or of a tensor core; what other units do counts once."""
    return 2 if unit.startswith(("fma", "tensor")) else 1


@dataclass(frozen=True)
class Roofs:
    """Work as an amount (bytes, or operations with an FMA as two), and the seconds that it takes at the ceilings: in a burst, and
    sustained."""

    amount: float
    unit: str  # of throughput: one of SCALE
    bound: str
    measured: float | None
    datasheet: float | None
    assumed: tuple[str, ...]
    at: str  # when the ceilings were measured
    sustained: float | None = None

    def throughput(self, seconds: float) -> float:
        """In `unit`."""
        return self.amount / seconds / SCALE[self.unit]


@dataclass(frozen=True)
class Measured(Record):
    """A bench record joined to the tree. `stale`: None, or why it no longer counts. `unpaired`: peers of the same run that were not timed
    side by side with it."""

    stale: str | None
    roofs: Roofs
    unpaired: tuple[Versus, ...] = ()

    @property
    def moved(self) -> int:
        """Bytes read and written at least."""
        return self.work.bytes

    @property
    def operations(self) -> float:
        """An FMA is two."""
        return sum(float(n) * operations_of(unit) for unit, n in self.work.ops.items())

    @property
    def kernel(self) -> Clock | None:
        return self.clocks.get("kernel")

    @property
    def sustained(self) -> Measured | None:
        """The same of the kernel clock after seconds of work; None where it was not measured."""
        if "sustained" not in self.clocks:
            return None
        told = {"clocks": {"kernel": self["clocks"]["sustained"]}, "versus": self.get("sustained_versus", {}), "sustained_versus": {}}
        return Measured({**self.table, **told}, self.stale, replace(self.roofs, measured=self.roofs.sustained))

    @property
    def duties(self) -> tuple[Measured, ...]:
        """On the kernel clock, and sustained where that was measured."""
        return tuple(m for m in (self if self.kernel else None, self.sustained) if m)

    @property
    def duty(self) -> str:
        """Of the kernel clock; nothing to be said of where it is normal."""
        return self.kernel.duty if self.kernel and self.kernel.duty != "normal" else ""

    @property
    def seconds(self) -> float:
        """On the kernel clock. Only where there is one."""
        assert self.kernel is not None
        return self.kernel.median

    @property
    def throughput(self) -> float | None:
        return self.roofs.throughput(self.seconds) if self.kernel else None

    @property
    def share(self) -> float | None:
        """Of the measured roof."""
        return self.roofs.measured / self.seconds if self.kernel and self.roofs.measured else None

    @property
    def sheet_share(self) -> float | None:
        """Of the datasheet's roof."""
        return self.roofs.datasheet / self.seconds if self.kernel and self.roofs.datasheet else None

    @property
    def suspicious(self) -> bool:
        return self.share is not None and self.share > SUSPICIOUS

    @property
    def best_peer(self) -> Versus | None:
        """The peer that is fastest beside this one."""
        return min((v for v in (*self.versus, *self.unpaired) if v.name.startswith("peer:")), key=lambda v: v.speed, default=None)

    @property
    def copy_share(self) -> float | None:
        """Speed beside a plain copy of as many bytes, timed side by side."""
        return next((v.speed for v in self.versus if v.name in STREAMS), None)

    @property
    def date(self) -> str:
        return self.at[:10]


def units(measured: Iterable[Measured]) -> list[str]:
    return sorted({m.roofs.unit for m in measured})


@dataclass
class Joined:
    """Records joined to the tree of one house."""

    records: list[Record]
    house: registry.House = registry.HOUSE
    digests: Digests = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo)
    _why: dict[Any, tuple[str | None, str]] = field(default_factory=dict)  # of `digests`, what was asked of this one
    _subjects: dict[tuple[str, str], Subject | None] = field(default_factory=dict)
    _cases: dict[str, Mapping[str, Case]] = field(default_factory=dict)  # op -> its cases by id
    _ceilings: dict[str, tuple[Ceilings | None, Ceilings | None]] = field(default_factory=dict)
    _outdated: set[str] = field(default_factory=set)

    def _once(self, key: tuple[Any, ...], work: Callable[[], str | None]) -> str | None:
        """What was worked out before of the tree, or is now."""
        if key not in self.digests:
            self.digests[key] = work(), ""
        return self.digests[key][0]

    def sweep_is_current(self, record: Record) -> bool:
        """Whether a sweep is of the kernels as they are."""
        key = ("sweep", record.op, record.run, record.at, record.card)
        return self._once(key, lambda: None if swept.is_current(record, self.memo) else CHANGED) is None

    @cached_property
    def _op_names(self) -> list[str]:
        """Ops, and those backwards that have a contract of their own, next to their forward."""
        names: list[str] = []
        for name in registry.op_names(self.house):
            names.append(name)
            if registry.op(name, self.house).bwd is not None:
                names.append(f"{name}_bwd")
        return names

    # -- the tree ---------------------------------------------------------------------------------------------------

    def subject(self, op_name: str, name: str) -> Subject | None:
        """What the tree holds under these names; None where it holds nothing. Raises RegistryError for a file of it that does not read."""
        key = op_name, name
        if key not in self._subjects:
            self._subjects[key] = self._found(op_name, name)
        return self._subjects[key]

    def _found(self, op_name: str, name: str) -> Subject | None:
        base, (ladder, _, rung) = op_name.removesuffix("_bwd"), name.partition("/")
        names = registry.op_names(self.house)
        if op_name not in names and (base not in names or registry.op(base, self.house).bwd is None):
            return None
        op = registry.op(op_name, self.house)
        if name.startswith("peer:"):
            return Subject(name, op, peer=name[5:]) if name[5:] in {**op.peers, **op.ranks_peers} else None
        if not rung:
            return next((Subject(name, op, i) for i in registry.implementations((op.twin_of or op).name, self.house) if i.name == name), None)
        whole = registry.ladder(ladder, self.house) if ladder in registry.ladder_names(self.house) else None
        if whole is None or whole.op != op_name:
            return None
        return next((Subject(name, op, r.implementation, r) for r in whole.rungs if r.name == name), None)

    def stale(self, record: Record) -> str | None:
        """None for a record of the tree as it is, else why it is not."""
        op_name, name = record.op, record.subject
        subject = self.subject(op_name, name)
        if subject is None:
            return f"{name} is no longer in the tree"
        cases = self._cases_of(subject.op)
        ids = _cases(record)
        if any(i not in cases for i in ids):
            return f"{op_name} no longer has this case"
        device = device_of(record)
        key = (op_name, name, ids, device)
        if key not in self._why:
            if key not in self.digests:
                self.digests[key] = self._of_the_tree(subject, [cases[i] for i in ids], device, record)
            self._why[key] = self.digests[key]
        why, current = self._why[key]
        if why:
            return f"it no longer takes this case: {why}"
        now = Identity(*current.split(" "))
        if now.made(record):
            return None
        compiled = partial(self._machine, subject, [cases[i] for i in ids], device, key)
        return None if identity.is_same_code(record, now, compiled) else CHANGED

    def _machine(self, subject: Subject, cases: Sequence[Case], device: Device, key: tuple[Any, ...], whole: bool) -> str | None:
        return self._once(("machine", *key, whole), lambda: identity.machine(subject, cases, device, self.memo, whole))

    def _of_the_tree(self, subject: Subject, cases: Sequence[Case], device: Device, record: Record) -> tuple[str | None, str]:
        """Why the subject does not take these cases, and its identity at them. One that is as it was when it ran takes them, and is not
        asked."""
        try:
            identified = identity.of(subject, cases, device, self.memo)
        except Exception:  # a kernel may fail in any way to choose for what it does not take; the question below says so, or it fails again
            identified = Identity("")
        if identified.digest and identified.made(record):
            return None, identified.key
        why = next((why for c in cases if (why := subject.supports(c, device, self.memo))), None)
        return why, "" if why else (identified if identified.digest else identity.of(subject, cases, device, self.memo)).key

    def renew(self, record: Record) -> Record:
        """A record that has the hash of its machine code and another text, settled: proven, it gets the hash of the text as it is, else it
        loses that of the machine code, so that nobody compiles for it again. Any other as it is."""
        if record.kind not in RENEWED or not record.machine:
            return record
        why = self.stale(record)
        key = (record.op, record.subject, _cases(record), device_of(record))
        now = Identity(*self.digests[key][1].split(" ")) if key in self.digests else Identity("")
        if why is None and record.source != now.source:
            return record.but(source=now.source)
        if why == CHANGED and record.digest == now.digest and self.digests.get(("machine", *key, False), (None, ""))[0] is not None:
            return record.but(machine=None)
        return record

    def _cases_of(self, op: Contract) -> Mapping[str, Case]:
        if op.name not in self._cases:
            self._cases[op.name] = {c.id: c for c in op.cases}
        return self._cases[op.name]

    # -- records ----------------------------------------------------------------------------------------------------

    @cached_property
    def _placed(self) -> dict[tuple[str, str], list[Record]]:
        """(kind, op) -> its records, in their order."""
        placed: dict[tuple[str, str], list[Record]] = {}
        for r in self.records:
            placed.setdefault((r.kind, r.op), []).append(r)
        return placed

    def _of(self, kind: str, op: str, *names: str | None) -> list[Record]:
        return sorted((r for r in self._placed.get((kind, op), ()) if r.subject in names), key=lambda r: r.at)

    @cached_property
    def _peers(self) -> dict[tuple[str, str, str], list[Measured]]:
        """(device, op, case) -> what was measured of its peers there."""
        peers: dict[tuple[str, str, str], list[Measured]] = {}
        for (device, op, subject, case), m in self.measured.items():
            if subject.startswith("peer:"):
                peers.setdefault((device, op, case), []).append(m)
        return peers

    @cached_property
    def measured(self) -> dict[tuple[str, str, str, str], Measured]:
        """(device, op, subject, case id) -> the newest record that is not stale; where all are, the newest of those."""
        by_case: dict[tuple[str, str, str, str], Measured] = {}
        for record in of_kind(self.records, "bench"):
            item = Measured(record.table, self.stale(record), self.roofs(record.card, record.work))
            key = (item.card, item.op, item.subject, item.case)
            if key not in by_case or item.stale is None or by_case[key].stale is not None:
                by_case[key] = item
        peers: dict[tuple[str, str, str, str], list[Measured]] = {}  # of one run at one case
        for m in by_case.values():
            if m.subject.startswith("peer:") and m.kernel and not m.stale:
                peers.setdefault((m.card, m.op, m.case, m.run), []).append(m)
        return {key: self._beside_peers(item, peers.get((item.card, item.op, item.case, item.run), ())) for key, item in by_case.items()}

    @staticmethod
    def _beside_peers(item: Measured, peers: Iterable[Measured]) -> Measured:
        """A rung too slow to be timed side by side with the peers, beside those of the same run."""
        if item.subject.startswith("peer:") or item.best_peer or item.stale or not item.kernel:
            return item
        return replace(item, unpaired=tuple(Versus(m.subject, m.seconds / item.seconds, None, "not paired") for m in peers))

    def ceilings(self, device: str) -> tuple[Ceilings | None, Ceilings | None]:
        """As measured (the datasheet filling gaps), and of the datasheet alone; None where there is no such thing."""
        if device not in self._ceilings:
            sheet = lookup(device)
            measured_ceilings = Ceilings.from_records(self.records, device, sheet)
            if measured_ceilings.stale:
                self._outdated.add(device)
            self._ceilings[device] = (measured_ceilings if measured_ceilings.curves else None, Ceilings(device, datasheet=sheet) if sheet else None)
        return self._ceilings[device]

    def outdated(self, device: str) -> bool:
        """Whether the ceilings were measured only with other calibration kernels than the tree's."""
        self.ceilings(device)
        return device in self._outdated

    def roofs(self, device: str, work: Work) -> Roofs:
        """The roofs of a work on a card. What bounds it says in which unit its throughput is given."""
        measured, sheet = self.ceilings(device)
        roof = measured.roof(work.read, work.write, work.ops) if measured else None
        on_sheet = sheet.roof(work.read, work.write, work.ops) if sheet else None
        if roof and measured and roof.bound not in ("memory", "launch") and not measured.rates.get(roof.bound):
            roof = None  # what bounds it was not measured: that is the datasheet's roof, shown as such
        lasting = measured.roof(work.read, work.write, work.ops, duty="sustained") if measured and roof else None
        if (
            lasting and measured and lasting.bound not in ("memory", "launch")
            and not measured.rates.get(lasting.bound, {}).get("sustained")
        ):
            lasting = None
        kind = roof or on_sheet or Ceilings("", datasheet=lookup(TARGETS[90].name)).roof(work.read, work.write, work.ops)
        count = work.ops.get(kind.bound, 0.0)
        flops = operations_of(kind.bound) == 2
        return Roofs(
            amount=count * operations_of(kind.bound) if count else float(work.bytes),
            unit=("TFLOP/s" if flops else "Top/s") if count else "GB/s",
            bound=kind.bound, measured=roof.seconds if roof else None, datasheet=on_sheet.seconds if on_sheet else None,
            assumed=roof.assumed if roof else (), at=measured.at if measured else "", sustained=lasting.seconds if lasting else None,
        )


def _cases(record: Record) -> tuple[str, ...]:
    """The ids of the cases of a record."""
    return tuple(map(str, record["cases"])) if record.kind == "sanitize" else (record.case,)


def staleness(records: Iterable[Record], digests: Digests | None = None) -> Callable[[Record], bool]:
    """Whether a record is not of the tree as it is. Those of kind `clock` measure no kernel of the tree and are never stale.

    digests   those worked out before; grows"""
    joined = Joined(list(records), digests={} if digests is None else digests)

    def stale(record: Record) -> bool:
        if record.kind == "ceiling":
            return not roofline.current(record)
        if record.kind == "first-calls":
            return not first_calls.current(record)
        if record.kind == "sweep":
            return not joined.sweep_is_current(record)
        return record.kind != "clock" and joined.stale(record) is not None

    return stale


def renewal(records: Iterable[Record], digests: Digests | None = None) -> Callable[[Record], Record]:
    """`Joined.renew`. `digests`: those worked out before; grows."""
    return Joined(list(records), digests={} if digests is None else digests).renew
