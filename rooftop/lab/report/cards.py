"""What a card can do, as its page shows it."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.devices import slug
from rooftop.lab.report.joined import operations_of
from rooftop.lab.report.model import DeviceView
from rooftop.lab.timing.roofline import Ceilings


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


def card(view: DeviceView, measured: Ceilings | None, sheet: Ceilings | None) -> Card:
    """What was measured of a card, and what its datasheet says; None where there is no such thing."""
    curves = measured.curves if measured else {}
    sizes = sorted({n for c in curves.values() for n in c.bytes})
    memory = tuple((n, tuple(n / c.time(n) if (c := curves.get(k)) else None for k in ("copy", "read", "write"))) for n in sizes)
    found = measured.rates if measured else {}
    known = sheet.datasheet.rates if sheet and sheet.datasheet else {}
    rates = tuple(
        (unit, (*(operations_of(unit) * r if (r := found.get(unit, {}).get(duty)) else None for duty in ("burst", "sustained")),
                operations_of(unit) * sheet.datasheet.per_second(unit) if sheet and sheet.datasheet and unit in known else None))
        for unit in dict.fromkeys((*found, *known))
    )
    bandwidth = sheet.datasheet.bandwidth_gbs * 1e9 if sheet and sheet.datasheet else None
    return Card(
        view, measured.at if measured else "", memory, rates, bandwidth, measured.graph_node_s if measured else None  # type: ignore[arg-type]
    )
