"""Error against time of the ways in which `rooftop.matmul` multiplies: the table and the picture of docs/matmul.md, from records of one
case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rooftop.lab.records.store import Record
from rooftop.lab.report.data import SiteData
from rooftop.lab.report.drawings.canvas import length
from rooftop.lab.report.picture import STYLE
from rooftop.lab.report.scatter import room

SIZE = 4096  # M, N and K: results of normal numbers have the standard deviation sqrt(K)
WAYS = (  # case, what it is called
    (f"{SIZE} cubed f32", "float32"), (f"tf32x3 {SIZE} cubed f32", "tf32x3"), (f"bf16x3 {SIZE} cubed f32", "bf16x3"),
    (f"tf32 {SIZE} cubed f32", "tf32"), (f"{SIZE} cubed f16", "float16 operands"), (f"{SIZE} cubed bf16", "bfloat16 operands"),
)
NOTHING = "Nothing has been measured yet."
WIDTH, HEIGHT = 600, 360  # pixels
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 40, 52  # margins
LETTERS = 14 / 12  # the size of the labels over that of a drawing on a page


@dataclass(frozen=True)
class Way:
    """`seconds`: kernel time; `error`: the largest root mean square over 128 rows against float64, over sqrt(K); `peer`: the speed over the
    best one."""

    name: str
    kernel: str
    device: str
    seconds: float
    error: float
    peer: str

    @property
    def speed(self) -> float:
        """Operations a second, of the product asked for."""
        return 2 * SIZE**3 / self.seconds


def ways(found: Sequence[Record], site: SiteData) -> list[Way]:
    """Of each way the newest fresh time on the card with the most of them, and the newest error of that kernel, case and card."""
    checks = {
        (r.card, r.subject, r.case): r["error"]
        for r in sorted((r for r in found if r.kind in ("check", "bench") and r.op == "matmul"), key=lambda r: r.at)
        if r.error.ok and "rms" in r.get("error", ())  # a bench record need not hold one
    }
    op = next((o for o in site.ops if o.name == "matmul"), None)
    made: dict[str, list[Way]] = {}
    for card in op.scores if op else ():
        for case, name in WAYS:
            best = next(
                (row.best for row in card.rows if row.best and row.best.case == case and not row.best.stale and row.best.kernel), None
            )
            error = checks.get((best.card, best.subject, case)) if best else None
            if best and error:
                peer = f"{best.best_peer.speed:.2f}x {best.best_peer.label}" if best.best_peer else ""
                made.setdefault(best.card, []).append(
                    Way(name, best.subject, best.card, best.seconds, error["rms"] / math.sqrt(SIZE), peer)
                )
    return max(made.values(), key=len, default=[])


def table(found: list[Record], site: SiteData) -> str:
    rows = ways(found, site)
    if not rows:
        return NOTHING
    lines = [
        f"{rows[0].device}, {SIZE} × {SIZE} × {SIZE}, normal numbers, kernel time. Error: root mean square against float64, over √K.", "",
        "| multiplied as | kernel | µs | TFLOP/s | error | against the best peer |", "|---|---|---:|---:|---:|---:|",
    ]
    lines += [f"| {w.name} | `{w.kernel}` | {w.seconds * 1e6:.1f} | {w.speed / 1e12:.0f} | {w.error:.1e} | {w.peer} |" for w in rows]
    return "\n".join(lines)


def picture(found: list[Record], site: SiteData) -> str:
    """One SVG: error against time, both logarithmic. The same records give the same bytes."""
    rows = ways(found, site)
    body = [f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>']
    if not rows:
        body.append(f'<text x="{LEFT}" y="{TOP}">{NOTHING}</text>')
    else:
        low, high = (f(math.log10(w.seconds) for w in rows) for f in (min, max))
        least, most = math.floor(min(math.log10(w.error) for w in rows)), math.ceil(max(math.log10(w.error) for w in rows))
        low, high = low - 0.08, high + 0.08

        def x(seconds: float) -> float:
            return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(seconds) - low) / (high - low)

        def y(error: float) -> float:
            return TOP + (HEIGHT - TOP - BOTTOM) * (most - math.log10(error)) / (most - least)

        body.append(f'<text class="title" x="{LEFT}" y="24">Error against time, {SIZE} cubed, {escape(rows[0].device)}</text>')
        for e in range(least, most + 1):
            body.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(10.0**e):.1f}" y2="{y(10.0**e):.1f}"/>')
            body.append(f'<text x="{LEFT - 8}" y="{y(10.0**e) + 4:.1f}" text-anchor="end">1e{e}</text>')
        for us in (100, 200, 500, 1000, 2000, 5000):
            if low <= math.log10(us * 1e-6) <= high:
                body.append(f'<text x="{x(us * 1e-6):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{us}</text>')
        body.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 10}" text-anchor="middle">µs</text>')
        taken = [(x(w.seconds) - 5, y(w.error) - 5, x(w.seconds) + 5, y(w.error) + 5) for w in rows]
        for w in rows:
            body.append(f'<circle cx="{x(w.seconds):.1f}" cy="{y(w.error):.1f}" r="5" style="fill: var(--bar)"/>')
            place = room(x(w.seconds), y(w.error), LETTERS * length(w.name, "label"), (WIDTH, HEIGHT), taken)
            if place:
                body.append(f'<text class="value" x="{place[0]:.1f}" y="{place[1]:.1f}">{escape(w.name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return f"{head}<style>{STYLE}</style>{''.join(body)}</svg>\n"
