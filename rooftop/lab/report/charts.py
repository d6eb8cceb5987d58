"""The chart of a climb as plain rows: a bar a rung, then the roofs and the peers. The page draws them with HTML and CSS alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooftop.lab.report.data import LadderPage, RungRow
from rooftop.lab.report.joined import Measured
from rooftop.lab.report.markup import number
from rooftop.lab.report.model import DeviceView

BEYOND = 1.1  # times the highest bar: predictions above it stand there, marked as beyond


@dataclass(frozen=True)
class Bar:
    """A row. `kind`: rung, stale, missing, roof, sheet or peer. `predicted`: the throughput promised before it was measured; `beyond`: it
    lies above the chart. `low` and `high`: the 95 % interval. Places are of the axis, `lin` and `log`, in percent of its length."""

    kind: str
    label: str
    anchor: str
    value: float | None
    text: str
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    beyond: bool = False


@dataclass(frozen=True)
class Chart:
    """One case on one card. `unit`: of throughput. `lines`: kind -> throughput drawn across all bars. The axis is linear until a reader
    asks otherwise."""

    device: DeviceView
    case: str
    unit: str
    bars: tuple[Bar, ...]
    bottom: float
    top: float
    lines: tuple[tuple[str, float], ...]

    @property
    def label(self) -> str:
        return f"{self.case} · {self.device.short}"

    def style(self, value: float, name: str = "") -> str:
        """Where a value lies, as CSS variables for both axes."""
        linear = 100 * value / self.top
        log = 100 * (math.log(value) - math.log(self.bottom)) / (math.log(self.top) - math.log(self.bottom)) if value > 0 else 0.0
        return f"--lin{name}:{linear:.2f}%;--log{name}:{max(log, 0.0):.2f}%"


def charts(page: LadderPage) -> list[Chart]:
    """One chart for each card and case with a measured rung, the headline on the first card first."""
    found = []
    for device in page.devices:
        for case in sorted(page.cases, key=lambda c: not c.headline):
            if any((m := r.cells.get((device.name, case.id))) and m.kernel for r in page.rungs):
                found.append(climb(page, device, case.id))
    return found


def climb(page: LadderPage, device: DeviceView, case: str) -> Chart:
    """The rungs' throughput under the roof. Predictions stand where they were made: at the headline case on the first card."""
    cells = [r.cells.get((device.name, case)) for r in page.rungs]
    known = [m for m in cells if m and m.kernel]
    roofs = next((m.roofs for m in known if not m.stale), known[0].roofs)
    unit = roofs.unit
    predicted = _predicted(page, device, case) if case == page.headline and device == page.devices[0] else {}
    others: list[Bar] = []
    peers = [p for p in page.peers.get((device.name, case), ()) if not p.stale]
    for peer in peers:
        name, value = peer.subject.removeprefix("peer:"), peer.roofs.throughput(peer.seconds)
        others.append(Bar("peer", name, "", value, f"{name}: {number(value)} {unit}, {_micro(peer.seconds)}"))
    for kind, words, seconds in (("roof", "roof, measured", roofs.measured), ("sheet", "roof, datasheet", roofs.datasheet)):
        if seconds:
            value = roofs.throughput(seconds)
            others.append(Bar(kind, words, "", value, f"{words}: {number(value)} {unit}, bound by {roofs.bound}"))
    values = [m.roofs.throughput(m.seconds) for m in known] + [b.value for b in others if b.value]
    top = max(values) * 1.02
    most = BEYOND * max(values)
    if any(p <= most for p in predicted.values()):
        top = max(top, *(p for p in predicted.values() if p <= most))
    bars = [_bar(r, m, unit, predicted.get(i), top) for i, (r, m) in enumerate(zip(page.rungs, cells, strict=True))]
    low = min(v for v in values if v > 0)
    lines = [(b.kind, b.value) for b in others if b.kind == "roof" and b.value]
    if peers:
        lines.append(("peer", max(b.value for b in others if b.kind == "peer" and b.value)))
    return Chart(device, case, unit, (*bars, *others), low / 1.6, top, tuple(lines))


def _micro(seconds: float) -> str:
    return f"{number(seconds * 1e6)} µs"


def _bar(rung: RungRow, m: Measured | None, unit: str, predicted: float | None, top: float) -> Bar:
    label = f"{rung.number:02d} {rung.title}"
    promised = {"predicted": min(predicted, top), "beyond": predicted > top} if predicted else {}
    said = f"; predicted {number(predicted, 3)} {unit}" if predicted else ""
    if m is None or m.kernel is None:
        return Bar("missing", label, rung.anchor, None, f"{label}: not measured{said}", **promised)  # type: ignore[arg-type]
    value = m.roofs.throughput(m.seconds)
    words = [f"{number(value)} {unit}", f"{_micro(m.seconds)} ({number(m.kernel.low * 1e6)} to {number(m.kernel.high * 1e6)})"]
    if m.share is not None:
        words.append(f"{100 * m.share:.1f} % of the roof")
    if m.stale:
        words.append(f"stale: {m.stale}")
    low, high = m.roofs.throughput(m.kernel.high), m.roofs.throughput(m.kernel.low)
    return Bar(
        "stale" if m.stale else "rung", label, rung.anchor, value, f"{label}: {', '.join(words)}{said}", low, high, **promised  # type: ignore[arg-type]
    )


def _predicted(page: LadderPage, device: DeviceView, case: str) -> dict[int, float]:
    """Rung -> throughput, where the rung before was measured and a speed-up was predicted."""
    found = {}
    for i, (before, rung) in enumerate(zip(page.rungs, page.rungs[1:], strict=False), 1):
        base = before.cells.get((device.name, case))
        if rung.speedup and base and not base.stale and base.throughput:
            found[i] = base.throughput * rung.speedup.predicted
    return found
