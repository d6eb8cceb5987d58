"""Points on two axes as an SVG element for a page: the roofline of all ops, and an op's share of the roof against its size.

Drawn twice, for wide and for narrow screens: text that is scaled down to a phone's width cannot be read. Colours are the page's
(report.css)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from rooftop.lab.report.markup import number

WIDE, NARROW = 900, 340  # pixels
HEIGHT = 330
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 14, 44  # margins, pixels
Box = tuple[float, float, float, float]  # left, top, right, bottom, pixels
LETTER, BROAD = 7.2, 3.6  # pixels of a letter of a label, and what an m or a w takes more
GAP = 6  # pixels between the numbers of two ticks


@dataclass(frozen=True)
class Point:
    """`share` of the roof, 0 to 1 and a little more, at `x`; `text` is what a pointer reads, `label` what is written beside it where there
    is room."""

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


MOST = 25  # numbers beside the y axis, where a time in a record is odd


def drawing(
    points: Sequence[Point], axis: str, *, mark: tuple[float, str] | None = None, unit: float = 1.0, lines: Sequence[Line] = (),
    width: int = WIDE, height: int = HEIGHT,
) -> Markup:
    """The points over a logarithmic x axis.

    axis   what x is
    mark   a place on the x axis with its name: a line from top to bottom
    unit   what one step of the ticks' numbers is in x
    lines  others than what the points show: peers
    width, height   pixels, on a wide screen"""
    if not points:
        return Markup("")
    wide, narrow = _one(points, axis, mark, unit, (width, height), True, lines), _one(
        points, axis, mark, unit, (NARROW, HEIGHT), False, lines
    )
    return Markup(f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>')


def _one(
    points: Sequence[Point], axis: str, mark: tuple[float, str] | None, unit: float, size: tuple[int, int], labelled: bool,
    lines: Sequence[Line] = ()
) -> str:
    width, height = size
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
        return TOP + (height - TOP - BOTTOM) * (1 - (share - bottom) / (top - bottom))

    floor = height - BOTTOM
    body = []
    first, last = round(bottom * 5), int(min(top, 1e300) * 5)
    steps = range(first, last + 1, max(1, -(-(last - first) // MOST)))
    body.append(f'<path class="grid" d="{"".join(f"M{LEFT} {y(k / 5):.1f}H{width - RIGHT}" for k in steps)}"/>')
    body.append(f'<g text-anchor="end">{"".join(f"""<text x="{LEFT - 7}" y="{y(k / 5) + 4:.1f}">{20 * k}</text>""" for k in steps)}</g>')
    body.append(f'<line class="top" x1="{LEFT}" x2="{width - RIGHT}" y1="{y(1):.1f}" y2="{y(1):.1f}"/>')
    begun = -math.inf  # where the next tick's number may begin
    marks, below = [], []
    for tick in _ticks(low - math.log10(unit), high - math.log10(unit), 9 if labelled else 4):
        at, said = x(tick * unit), number(tick, 1)
        marks.append(f"M{at:.1f} {floor}v4")
        middle = min(at, width - _length(said) / 2)  # that of the last tick ends with the picture
        if middle - _length(said) / 2 >= begun:
            below.append(f'<text x="{middle:.1f}" y="{floor + 17}">{said}</text>')
            begun = middle + _length(said) / 2 + GAP
    if zero:
        below.append(f'<text x="{LEFT + 14}" y="{floor + 17}">0</text>')
    below.append(f'<text x="{(LEFT + width - RIGHT) / 2:.1f}" y="{height - 6}">{escape(axis)}</text>')
    body.append(f'<path class="tick" d="{"".join(marks)}"/><g text-anchor="middle">{"".join(below)}</g>')
    if mark:
        body.append(f'<line class="mark" x1="{x(mark[0]):.1f}" x2="{x(mark[0]):.1f}" y1="{TOP}" y2="{floor}"/>')
    for n, line in enumerate(lines):
        path = " ".join(f"{x(at):.1f},{y(share):.1f}" for at, share in line.points)
        body.append(f'<polyline class="peer{n % 3}" points="{path}"><title>{escape(line.name)}</title></polyline>')
    taken: list[Box] = [(x(p.x) - 5, y(p.share) - 5, x(p.x) + 5, y(p.share) + 5) for p in points]
    taken.append((LEFT, y(1) - 2, width - RIGHT, y(1) + 2))
    if mark:
        at, length = x(mark[0]), _length(mark[1])
        bottoms = [floor - 7 - 14 * n for n in range((floor - TOP) // 14)]
        free = (
            (left, float(bottom)) for bottom in bottoms for left in (at - 5 - length, at + 5)
            if _free(_box(left, bottom, length), size, taken)
        )
        if place := next(free, None):
            taken.append(_box(*place, length))
            body.append(f'<text x="{place[0]:.1f}" y="{place[1]:.0f}">{escape(mark[1])}</text>')
        taken.append((at - 2, TOP, at + 2, floor))
    for p in sorted(points, key=lambda p: p.share):
        kind = f' class="{escape(p.kind)}"' if p.kind else ""
        said = f"<title>{escape(p.text)}</title>" if labelled else ""  # a phone has no pointer that rests on a point
        dot = f'<circle{kind} cx="{x(p.x):.1f}" cy="{y(p.share):.1f}" r="4.5">{said}</circle>'
        body.append(f'<a href="{escape(p.href)}">{dot}</a>' if p.href else dot)
    for p in points if labelled else ():
        if p.label and (place := room(x(p.x), y(p.share), _length(p.label), size, taken)):
            body.append(f'<text class="label" x="{place[0]:.1f}" y="{place[1]:.1f}">{escape(p.label)}</text>')
    about = f"share of the roof in percent against {escape(axis)}"
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{about}">{"".join(body)}</svg>'


def _length(text: str) -> float:
    """About how many pixels a text takes."""
    return LETTER * len(text) + BROAD * sum(text.count(c) for c in "mw")


def room(x: float, y: float, length: float, size: tuple[int, int], taken: list[Box]) -> tuple[float, float] | None:
    """Where a label fits beside its point without touching another or a point; it is then taken. None: it is left out."""
    for dx, dy in ((8, 4), (-8 - length, 4), (-length / 2, -9), (-length / 2, 18), (8, -8), (8, 16), (-8 - length, -8), (-8 - length, 16)):
        box = _box(x + dx, y + dy, length)
        if _free(box, size, taken):
            taken.append(box)
            return x + dx, y + dy
    return None


def _box(x: float, y: float, length: float) -> Box:
    """What a text of this length takes whose first letter stands at x, y."""
    return x, y - 10, x + length, y + 3


def _free(box: Box, size: tuple[int, int], taken: Sequence[Box]) -> bool:
    """Whether it lies inside the drawing and touches nothing there."""
    inside = box[0] >= LEFT and box[2] <= size[0] - RIGHT and box[1] >= TOP and box[3] <= size[1] - BOTTOM
    return inside and all(box[2] < t[0] or box[0] > t[2] or box[3] < t[1] or box[1] > t[3] for t in taken)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten between two logarithms; with 2 and 5 where these are few, every second or third where they are many."""
    tens = [10.0**e for e in range(math.ceil(low), math.floor(high) + 1)]
    if len(tens) * 3 <= most:
        return [
            m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5) if low <= math.log10(m * 10.0**e) <= high
        ]
    return tens[:: -(-len(tens) // most)]
