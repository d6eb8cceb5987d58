"""Points on two axes as an SVG element for a page: the roofline of all ops, and an op's share of the roof against its size.

Drawn twice, for wide and for narrow screens: text that is scaled down to a phone's width cannot be read. Colours are the page's (report.css)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from rooftop.lab.report.charts import number

WIDE, NARROW = 900, 340  # pixels
HEIGHT = 330
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 14, 44  # margins, pixels
LETTER = 6.4  # pixels of a letter of a label


@dataclass(frozen=True)
class Point:
    """`share` of the roof, 0 to 1 and a little more, at `x`; `text` is what a pointer reads, `label` what is written beside it where there is room."""

    x: float
    share: float
    text: str
    kind: str = ""
    label: str = ""
    href: str = ""


@dataclass(frozen=True)
class Line:
    """A thin line behind the points: (x, share), x rising."""

    name: str
    points: tuple[tuple[float, float], ...]


def drawing(
    points: Sequence[Point], axis: str, *, mark: tuple[float, str] | None = None, unit: float = 1.0, lines: Sequence[Line] = ()
) -> Markup:
    """The points over a logarithmic x axis.

    axis   what x is
    mark   a place on the x axis with its name: a line from top to bottom
    unit   what one step of the ticks' numbers is in x
    lines  others than what the points show: peers"""
    if not points:
        return Markup("")
    wide, narrow = _one(points, axis, mark, unit, WIDE, True, lines), _one(points, axis, mark, unit, NARROW, False, lines)
    return Markup(f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>')


def _one(
    points: Sequence[Point], axis: str, mark: tuple[float, str] | None, unit: float, width: int, labelled: bool, lines: Sequence[Line] = ()
) -> str:
    xs = [p.x for p in points if p.x > 0] + ([mark[0]] if mark else [])
    zero = any(p.x <= 0 for p in points)
    low, high = math.log10(min(xs, default=1.0)) - 0.15, math.log10(max(xs, default=1.0)) + 0.15
    left = LEFT + (34 if zero else 0)
    shares = [p.share for p in points] + [share for line in lines for _, share in line.points]
    top = max(1.05, max(shares) * 1.03)
    bottom = max(0, math.floor((min(shares) - 0.1) * 5)) / 5

    def x(value: float) -> float:
        return left + (width - left - RIGHT) * (math.log10(value) - low) / (high - low) if value > 0 else LEFT + 14

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (share - bottom) / (top - bottom))

    floor = HEIGHT - BOTTOM
    body = []
    for k in range(round(bottom * 5), int(top * 5) + 1):
        body.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y(k / 5):.1f}" y2="{y(k / 5):.1f}"/>')
        body.append(f'<text x="{LEFT - 7}" y="{y(k / 5) + 4:.1f}" text-anchor="end">{20 * k}</text>')
    body.append(f'<line class="top" x1="{LEFT}" x2="{width - RIGHT}" y1="{y(1):.1f}" y2="{y(1):.1f}"/>')
    for tick in _ticks(low - math.log10(unit), high - math.log10(unit), 9 if labelled else 4):
        at = x(tick * unit)
        body.append(f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{floor}" y2="{floor + 4}"/>')
        body.append(f'<text x="{at:.1f}" y="{floor + 17}" text-anchor="middle">{number(tick, 1)}</text>')
    if zero:
        body.append(f'<text x="{LEFT + 14}" y="{floor + 17}" text-anchor="middle">0</text>')
    if mark:
        body.append(f'<line class="mark" x1="{x(mark[0]):.1f}" x2="{x(mark[0]):.1f}" y1="{TOP}" y2="{floor}"/>')
        body.append(f'<text x="{x(mark[0]) - 5:.1f}" y="{floor - 7}" text-anchor="end">{escape(mark[1])}</text>')
    body.append(f'<text x="{(LEFT + width - RIGHT) / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(axis)}</text>')
    for n, line in enumerate(lines):
        path = " ".join(f"{x(at):.1f},{y(share):.1f}" for at, share in line.points)
        body.append(f'<polyline class="peer{n % 3}" points="{path}"><title>{escape(line.name)}</title></polyline>')
    taken: list[tuple[float, float, float, float]] = [(x(p.x) - 5, y(p.share) - 5, x(p.x) + 5, y(p.share) + 5) for p in points]
    for p in sorted(points, key=lambda p: p.share):
        dot = f'<circle class="dot {escape(p.kind)}" cx="{x(p.x):.1f}" cy="{y(p.share):.1f}" r="4.5"><title>{escape(p.text)}</title></circle>'
        body.append(f'<a href="{escape(p.href)}">{dot}</a>' if p.href else dot)
    for p in points if labelled else ():
        if p.label and (place := _room(x(p.x), y(p.share), len(p.label) * LETTER, width, taken)):
            body.append(f'<text class="label" x="{place[0]:.1f}" y="{place[1]:.1f}">{escape(p.label)}</text>')
    about = f"share of the roof in percent against {escape(axis)}"
    return f'<svg viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" role="img" aria-label="{about}">{"".join(body)}</svg>'


def _room(x: float, y: float, length: float, width: int, taken: list[tuple[float, float, float, float]]) -> tuple[float, float] | None:
    """Where a label fits beside its point without touching another or a point; it is then taken. None: it is left out."""
    for dx, dy in ((8, 4), (-8 - length, 4), (-length / 2, -9), (-length / 2, 18), (8, -8), (8, 16), (-8 - length, -8), (-8 - length, 16)):
        box = (x + dx, y + dy - 10, x + dx + length, y + dy + 3)
        if box[0] < LEFT or box[2] > width - RIGHT or box[1] < TOP or box[3] > HEIGHT - BOTTOM:
            continue
        if all(box[2] < t[0] or box[0] > t[2] or box[3] < t[1] or box[1] > t[3] for t in taken):
            taken.append(box)
            return x + dx, y + dy
    return None


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten between two logarithms; with 2 and 5 where these are few, every second or third where they are many."""
    tens = [10.0**e for e in range(math.ceil(low), math.floor(high) + 1)]
    if len(tens) * 3 <= most:
        return [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5) if low <= math.log10(m * 10.0**e) <= high]
    return tens[:: -(-len(tens) // most)]
