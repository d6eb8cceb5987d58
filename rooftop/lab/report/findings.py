"""What a climb found, in five lines at the most."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from rooftop.lab.report.data import LadderPage, RungRow, SiteData
from rooftop.lab.report.joined import Measured
from rooftop.lab.report.model import DeviceView

LINES = 5
LIMIT = 130  # characters of what limits a rung


def found_out(pages: SiteData, ladders: Collection[str], card: str = "") -> list[str]:
    """Of each ladder that was climbed how far, to which share of the roof, and its largest steps; of two or fewer also what limits the last
    rung now, and how good the predictions were. `card`: whose times are told, where it has any; else those of the card with the most
    records."""
    found = [page for page in pages.ladders if page.name in ladders]
    if 2 * len(found) < LINES:
        return [line for page in found for line in (summary(page, card), _steps(page, card)) if line] + [_predictions(found)]
    said = [f"{summary(page, card)}; {_steps(page, card, 1)}".removesuffix("; ") for page in found]
    more = len(said) - LINES
    return said if more <= 0 else [*said[: LINES - 1], f"and {more + 1} more ladders: the report has them"]


def _cells(page: LadderPage, card: str) -> tuple[DeviceView | None, list[tuple[RungRow, Measured]]]:
    """The card, and its rungs that were measured at the headline."""
    for device in sorted(page.devices, key=lambda d: d.name != card):
        measured = [(r, m) for r in page.rungs if (m := r.cells.get((device.name, page.headline))) and m.kernel and not m.stale]
        if measured:
            return device, measured
    return None, []


def summary(page: LadderPage, card: str = "") -> str:
    device, measured = _cells(page, card)
    if device is None:
        return f"{page.name}: {len(page.rungs)} rungs, not measured on any GPU"
    first, begun = measured[0]
    rung, m = min(measured, key=lambda pair: pair[1].seconds)
    climbed = (
        f"{begun.seconds / m.seconds:.1f}x from {first.number:02d} to {rung.number:02d}" if first is not rung else f"{rung.number:02d}"
    )
    text = f"{page.name} on {device.short}, {page.headline}: {climbed}"
    text += f", {100 * m.share:.0f} % of the roof" if m.share is not None else ""
    return text + (f", {m.best_peer.speed:.2f}x {m.best_peer.label}" if m.best_peer else "")


def _steps(page: LadderPage, card: str, most: int = 3) -> str:
    _, measured = _cells(page, card)
    steps = sorted(((a[1].seconds / b[1].seconds, b[0]) for a, b in pairwise(measured)), key=lambda s: -s[0])[:most]
    if not steps:
        return ""
    said = ", ".join(f"{rung.number:02d}_{rung.slug} {gain:.1f}x" for gain, rung in steps)
    limit = min(measured, key=lambda pair: pair[1].seconds)[0].limit if most > 1 else ""
    return f"{'largest step' if len(steps) == 1 else 'largest steps'} {said}" + (f"; then: {_short(limit)}" if limit else "")


def _short(text: str) -> str:
    """The first sentence, cut at a word where it is long."""
    first = " ".join(text.split()).partition(". ")[0].removesuffix(".")
    return first if len(first) <= LIMIT else first[:LIMIT].rpartition(" ")[0] + " ..."


def _predictions(found: Collection[LadderPage]) -> str:
    judged = [(r, p) for page in found for r in page.rungs if (p := r.speedup) and p.measured is not None]
    if not judged:
        return "no predicted speedup has been measured"
    hits = sum(p.verdict == "hit" for _, p in judged)
    rung, worst = max(
        judged, key=lambda pair: max(pair[1].predicted / (pair[1].measured or 1), (pair[1].measured or 1) / pair[1].predicted)
    )
    text = f"{hits} of {len(judged)} predicted speedups were within 15 %"
    return (
        text if hits == len(judged)
        else f"{text}; furthest off: {rung.name}, {worst.predicted:.2g}x predicted, {worst.measured:.2g}x measured"
    )
