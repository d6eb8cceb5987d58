"""The picture of a climb for README and docs: one SVG file, drawn from the data of the ladder's page.

The same data give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from rooftop.lab.report.charts import number
from rooftop.lab.report.model import LadderPage

WIDTH, PLOT = 960, 300  # pixels: the picture, and the height of the plot alone
LEFT, RIGHT, TOP = 46, 112, 58  # margins, pixels
LINE = 15  # pixels from one line of text to the next
TICKS = 5  # at most so many steps on the axis
# A paper of its own in both schemes, so that it is legible wherever it is laid: a page may be dark where the reader's system is not.
STYLE = """
svg { --paper: #ffffff; --ink: #1c2733; --soft: #51606f; --grid: #e6eaef; --bar: #1f5fa8; --peer: #b45309; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #12181f; --ink: #e6ebf0; --soft: #a3b0bd; --grid: #2a343f; --bar: #6aa9ee; --peer: #f0a04b; }
}
text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 12px; fill: var(--soft); }
.paper { fill: var(--paper); stroke: var(--grid); }
.title { font-size: 16px; font-weight: 600; fill: var(--ink); }
.name { font-size: 11px; }
.value { font-size: 13px; font-weight: 600; fill: var(--ink); }
.grid { stroke: var(--grid); }
.bar { fill: var(--bar); }
.roof { stroke: var(--ink); stroke-width: 2; }
.peer { stroke: var(--peer); stroke-width: 2; stroke-dasharray: 7 4; }
text.roof { fill: var(--ink); stroke: none; }
text.peer { fill: var(--peer); stroke: none; }
"""


def climb(page: LadderPage, names: Mapping[str, str] | None = None) -> str:
    """The rungs' throughput at the headline case on the first card, with the roof and the fastest peer as lines.

    names   what to call a peer in the picture, where its own name says too little

    A rung without a record that holds has a dash for a bar, and the picture says so; a roof or a peer without one has no line."""
    key = (page.devices[0].name, page.headline) if page.devices else None
    cells = [r.cells.get(key) if key else None for r in page.rungs]
    found = [m if m and m.kernel and not m.stale else None for m in cells]
    first = next((m for m in found if m), None)
    unit = first.roofs.unit if first else ""
    lines: list[tuple[float, str, str]] = []  # throughput, name, class
    if first and first.roofs.measured:
        lines.append((first.roofs.throughput(first.roofs.measured), "roof, measured", "roof"))
    elif first and first.roofs.datasheet:
        lines.append((first.roofs.throughput(first.roofs.datasheet), "roof, datasheet", "roof"))
    if key and (peer := next((p for p in page.peers.get(key, ()) if not p.stale), None)):
        name = peer.subject.removeprefix("peer:")
        lines.append((peer.roofs.throughput(peer.seconds), (names or {}).get(name, name), "peer"))
    values = [m.throughput if m else None for m in found]
    words = [f"{r.number:02d} {r.slug}".replace("_", " ").split() for r in page.rungs]
    missing = first is not None and None in values
    height = TOP + PLOT + LINE * (3 + max(map(len, words), default=0) + missing)
    where = f"{page.headline}, {page.devices[0].short}" if first else "not measured yet"
    title = f"The climb of {page.name}{f', {unit}' if unit else ''}"
    body = [
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="20" y="30">{escape(title)}</text>',
        f'<text x="{WIDTH - 20}" y="30" text-anchor="end">{escape(where)}</text>',
    ]
    top = max((v for v in (*values, *(v for v, *_ in lines)) if v), default=1.0) * 1.02
    step = (WIDTH - LEFT - RIGHT) / max(1, len(page.rungs))

    def y(value: float) -> float:
        return TOP + PLOT * (1 - value / top)

    for tick in _ticks(top) if first else ():
        body.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        body.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{number(tick, 2 if tick % 1 else 1)}</text>')
    for i, (value, said) in enumerate(zip(values, words, strict=True)):
        middle = LEFT + step * (i + 0.5)
        if value:
            body.append(
                f'<rect class="bar" x="{middle - step * 0.32:.1f}" y="{y(value):.1f}" width="{step * 0.64:.1f}" '
                f'height="{PLOT * value / top:.1f}"/>'
            )
        body.append(
            f'<text class="value" x="{middle:.1f}" y="{TOP + PLOT + 18}" text-anchor="middle">{number(value, 3) if value else "–"}</text>'
        )
        for k, word in enumerate(said, 1):
            body.append(f'<text class="name" x="{middle:.1f}" y="{TOP + PLOT + 20 + k * LINE}" text-anchor="middle">{escape(word)}</text>')
    if missing:
        body.append(f'<text x="20" y="{height - 14}">–: not measured as it stands now</text>')
    labels = spread([1 - (y(v) - TOP) / PLOT for v, *_ in lines], 2 * LINE / PLOT)
    for (value, name, kind), place in zip(lines, labels, strict=True):
        at = TOP + PLOT * (1 - place)
        body.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        body.append(f'<text class="{kind}" x="{WIDTH - RIGHT + 8}" y="{at - 2:.1f}">{escape(name)}</text>')
        body.append(f'<text class="{kind}" x="{WIDTH - RIGHT + 8}" y="{at + LINE - 3:.1f}">{number(value, 3)}</text>')
    told = "; ".join(f"{' '.join(w)}: {number(v, 3) if v else 'not measured'}" for w, v in zip(words, values, strict=True))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(f'{title} ({where})')}</title>",
        f"<desc>{escape('; '.join([told, *(f'{name}: {number(value, 3)}' for value, name, _ in lines)]))}</desc>",
        f"<style>{STYLE}</style>", *body, "</svg>", "",
    ])


def _ticks(top: float) -> list[float]:
    """From 0 to `top` in steps of 1, 2 or 5 times a power of ten."""
    sizes = (m * 10.0**e for e in range(-9, 16) for m in (1, 2, 5))
    size = next(s for s in sizes if top / s <= TICKS)
    return [size * k for k in range(int(top / size) + 1)]


def spread(heights: Sequence[float], step: float) -> list[float]:
    """The heights (0 to 1), moved as little as needed so that any two are `step` apart, in the same order and none above 1.

    Groups that would touch are merged and centred on the mean of what they stand for (pool of adjacent violators)."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    groups: list[list[int]] = []

    def centre(group: Sequence[int]) -> float:
        wanted = sum(heights[i] for i in group) / len(group)
        return min(max(wanted, (len(group) - 1) * step / 2), 1 - (len(group) - 1) * step / 2)

    for i in order:
        groups.append([i])
        while len(groups) > 1:
            below, above = groups[-2], groups[-1]
            if centre(above) - centre(below) >= (len(above) + len(below)) * step / 2 - 1e-12:
                break
            groups[-2:] = [below + above]
    placed = [0.0] * len(heights)
    for group in groups:
        for k, i in enumerate(group):
            placed[i] = centre(group) + (k - (len(group) - 1) / 2) * step
    return placed
