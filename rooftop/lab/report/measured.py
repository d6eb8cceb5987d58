"""What was measured of a kernel at a case on a card, beside its roofs and its peers. Built by `rooftop.lab.report.joined`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rooftop.lab.records.record import Clock, Record, Versus

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
