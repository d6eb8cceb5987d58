"""The picture of a climb for README and docs: one SVG file, with the bars of the chart on the ladder's page.

The same data give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from rooftop.lab.report.charts import Bar, climb
from rooftop.lab.report.data import LadderPage
from rooftop.lab.report.drawings.canvas import length
from rooftop.lab.report.markup import number

# pixels. Narrow, so that the words are legible where a phone shows the picture at half its size.
WIDTH, SIDE, RIGHT, TOP = 600, 16, 74, 76  # the picture; the margins of the words; of the bars
ROW, BAR = 24, 14  # from one bar to the next; the height of a rung's
LETTERS = 13 / 12  # the size of the words over that of a drawing on a page
PREDICTED = "predicted before it was measured"
# A paper of its own in both schemes, so that it is legible wherever it is laid: a page may be dark where the reader's system is not.
STYLE = """
svg { --paper: #ffffff; --ink: #1c2733; --soft: #51606f; --grid: #e6eaef; --bar: #1f5fa8; --peer: #b45309; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #12181f; --ink: #e6ebf0; --soft: #a3b0bd; --grid: #2a343f; --bar: #6aa9ee; --peer: #f0a04b; }
}
text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 13px; fill: var(--soft); }
.paper { fill: var(--paper); stroke: var(--grid); }
.title { font-size: 17px; font-weight: 600; fill: var(--ink); }
.value { font-size: 14px; font-weight: 600; fill: var(--ink); }
.grid { stroke: var(--grid); }
.bar { fill: var(--bar); }
rect.roof { fill: var(--ink); }
rect.peer { fill: var(--peer); }
line.roof { stroke: var(--ink); stroke-width: 2; }
line.peer { stroke: var(--peer); stroke-width: 2; stroke-dasharray: 6 4; }
.predicted { fill: var(--paper); stroke: var(--peer); stroke-width: 2; }
"""


def picture(page: LadderPage, names: Mapping[str, str] | None = None) -> str:
    """The rungs' throughput at the headline case on the first card, what was predicted of it, the roof that was measured (else the
    datasheet's), and the peers.

    names   what to call a peer in the picture, where its own name says too little

    A rung without a record that holds has a dash for a bar, and the picture says so; a roof or a peer without one has no row."""
    key = (page.devices[0].name, page.headline) if page.devices else None
    cells = [r.cells.get(key) if key else None for r in page.rungs]
    known = any(m and m.kernel and not m.stale for m in cells)
    chart = climb(page, page.devices[0], page.headline) if known else None
    rungs = [b for b in chart.bars if b.kind in ("rung", "stale", "missing")] if chart else [
        Bar("missing", f"{r.number:02d} {r.title}", "", None, "") for r in page.rungs
    ]
    others = [b for b in chart.bars if b not in rungs] if chart else []
    if any(b.kind == "roof" for b in others):
        others = [b for b in others if b.kind != "sheet"]
    values = [b.value if b.kind == "rung" else None for b in rungs]
    title = f"The climb of {page.name}{f', {chart.unit}' if chart else ''}"
    where = f"{page.headline}, {page.devices[0].short}" if chart else "not measured yet"
    called = [(names or {}).get(b.label, b.label) for b in others]
    left = SIDE + LETTERS * max(length(name) for name in (*(b.label for b in rungs), *called)) + 8
    top, plot = (chart.top if chart else 1.0), WIDTH - left - RIGHT
    predicted = bool(chart) and any(b.predicted for b in rungs)
    missing = bool(chart) and None in values
    height = TOP + ROW * (len(rungs) + len(others)) + (26 if missing else 10)
    floor = TOP + ROW * (len(rungs) + len(others)) - 4
    body = [
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="{SIDE}" y="28">{escape(title)}</text>', f'<text x="{SIDE}" y="50">{escape(where)}</text>',
    ]
    if predicted:
        body.append(_diamond(WIDTH - SIDE - LETTERS * length(PREDICTED) - 12, 46))
        body.append(f'<text x="{WIDTH - SIDE}" y="50" text-anchor="end">{PREDICTED}</text>')

    def row(i: int, name: str, kind: str, value: float | None, high: int) -> None:
        y = TOP + ROW * i + ROW / 2 - 4
        body.append(f'<text x="{SIDE}" y="{y + 4:g}">{escape(name)}</text>')
        if value:
            body.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{y - high / 2:g}" width="{plot * value / top:.1f}" height="{high}"/>'
            )
        mark = "value" if kind == "bar" else kind
        body.append(
            f'<text class="{mark}" x="{WIDTH - SIDE}" y="{y + 5:g}" text-anchor="end">{number(value, 3) if value else "–"}</text>'
        )

    for i, (b, value) in enumerate(zip(rungs, values, strict=True)):
        row(i, b.label, "bar", value, BAR)
    for i, (b, name) in enumerate(zip(others, called, strict=True), len(rungs)):
        row(i, name, "peer" if b.kind == "peer" else "roof", b.value, 4)
    for kind, value in chart.lines if chart else ():
        x = left + plot * value / top
        body.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{floor}"/>')
    for i, b in enumerate(rungs):
        if b.predicted:
            body.append(_diamond(left + plot * b.predicted / top, TOP + ROW * i + ROW / 2 - 4))
    if missing:
        body.append(f'<text x="{SIDE}" y="{height - 10}">–: not measured as it stands now</text>')
    told = [f"{b.label}: {number(v, 3) if v else 'not measured'}" for b, v in zip(rungs, values, strict=True)]
    told += [f"{name}: {number(b.value, 3)}" for b, name in zip(others, called, strict=True) if b.value]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(f'{title} ({where})')}</title>", f"<desc>{escape('; '.join(told))}</desc>", f"<style>{STYLE}</style>", *body, "</svg>", "",
    ])


def _diamond(x: float, y: float) -> str:
    return f'<path class="predicted" d="M{x:.1f} {y - 5:g}l5 5l-5 5l-5 -5z"/>'
