"""Heat maps for docs/sparse.md: how fast products with sparse matrices are beside the dense product, over density, block and columns, with
the line where dense wins. From the records of the bench cases of `spmm_bsr` and `spmm_csr`, which cuBLAS is timed beside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from math import log2

from rooftop.lab.records.store import Record
from rooftop.lab.report.data import SiteData
from rooftop.lab.report.picture import STYLE

DENSE = "cublas"  # the peer
BLOCKS = re.compile(r"^(?P<size>\d+x\d+) blocks of (?P<row>\d+), density (?P<density>[\d.]+) x (?P<n>\d+)\b")
ELEMENTS = re.compile(r"^(?P<size>\d+x\d+) density (?P<density>[\d.]+) x (?P<row>\d+)\b")
NOTHING = "Nothing has been measured yet with the kernels as they stand."
CELL, HIGH, LEFT, TOP, UNDER = 62, 30, 112, 66, 54  # pixels: a cell, its height, left of a map, above the first, below each


@dataclass(frozen=True)
class Grid:
    """One map: rows by densities. `speeds`: over the dense product, by row and density."""

    title: str
    rows: tuple[str, ...]
    densities: tuple[float, ...]
    speeds: Mapping[tuple[str, float], float]


def grids(site: SiteData) -> list[Grid]:
    """What is measured on the first card that has anything."""
    for card in site.cards:
        found = [*_blocks(site, card.device.name, card.device.short), *_elements(site, card.device.name, card.device.short)]
        if found:
            return found
    return []


def _speeds(site: SiteData, op: str, card: str) -> Iterator[tuple[str, str, float]]:
    """Case, dtype and the best kernel's speed over cuBLAS."""
    for score in (s for o in site.ops if o.name == op for s in o.scores if s.device.name == card):
        for row in score.rows:
            best = row.best
            versus = next((v for v in best.versus if v.label == DENSE), None) if best and best.kernel else None
            if best and versus:
                yield best.case, best.case.rpartition(" ")[2], versus.speed


def _blocks(site: SiteData, card: str, short: str) -> list[Grid]:
    found: dict[int, dict[tuple[str, float], float]] = {}
    for case, dtype, speed in _speeds(site, "spmm_bsr", card):
        if (m := BLOCKS.match(case)) and dtype == "bf16":
            found.setdefault(int(m["n"]), {})[f"blocks of {m['row']}", float(m["density"])] = speed
    return [_grid(f"bfloat16, {n} columns, {short}", found[n], lambda name: int(name.rpartition(" ")[2])) for n in sorted(found)]


def _elements(site: SiteData, card: str, short: str) -> list[Grid]:
    found = {
        (f"{m['row']} columns", float(m["density"])): speed
        for case, dtype, speed in _speeds(site, "spmm_csr", card) if (m := ELEMENTS.match(case)) and dtype == "f32"
    }
    return [_grid(f"elements at random, float32, {short}", found, lambda name: int(name.partition(" ")[0]))] if found else []


def _grid(title: str, speeds: Mapping[tuple[str, float], float], order: Callable[[str], int]) -> Grid:
    return Grid(title, tuple(sorted({r for r, _ in speeds}, key=order)), tuple(sorted({d for _, d in speeds})), speeds)


def table(_found: list[Record], site: SiteData) -> str:
    """The maps in numbers."""
    made = grids(site)
    lines = []
    for g in made:
        lines += ["", f"| {g.title}: density | " + " | ".join(f"{d:g}" for d in g.densities) + " |", "|---|" + "---:|" * len(g.densities)]
        for r in g.rows:
            cells = [f"{g.speeds[r, d]:.2f}" if (r, d) in g.speeds else "" for d in g.densities]
            lines.append(f"| {r} | " + " | ".join(cells) + " |")
    return "\n".join(lines[1:]) if made else NOTHING


def drawing(site: SiteData) -> str:
    """The maps one below the other, blue where sparse is faster, orange where dense is; a line between."""
    made = grids(site)
    width = max((LEFT + CELL * len(g.densities) + 24 for g in made), default=480)
    width, height = max(width, 420), TOP + sum(HIGH * len(g.rows) + UNDER for g in made) - 16
    style = f"{STYLE}.line {{ stroke: var(--ink); stroke-width: 3; }}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        f"<style>{style}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}"/>',
        '<text class="title" x="16" y="26">Speed over dense, 8192 x 8192</text>',
    ]
    if not made:
        parts.append(f'<text x="16" y="44">{escape(NOTHING)}</text>')
    top = TOP
    for g in made:
        parts += _map(g, top)
        top += HIGH * len(g.rows) + UNDER
    return "\n".join([*parts, "</svg>"]) + "\n"


def _map(g: Grid, top: int) -> list[str]:
    parts = [f'<text x="{LEFT}" y="{top - 8}">{escape(g.title)}</text>']
    for i, r in enumerate(g.rows):
        y = top + i * HIGH
        parts.append(f'<text x="{LEFT - 6}" y="{y + HIGH / 2 + 4}" text-anchor="end">{escape(r)}</text>')
        for j, d in enumerate(g.densities):
            speed = g.speeds.get((r, d))
            if speed is None:
                continue
            tone = "--bar" if speed >= 1 else "--peer"
            depth = min(1.0, 0.12 + abs(log2(speed)) / 6)
            parts.append(
                f'<rect x="{LEFT + j * CELL}" y="{y}" width="{CELL}" height="{HIGH}" style="fill: var({tone}); fill-opacity: {depth:.2f}"/>'
            )
            shown = f"{speed:.1f}" if speed >= 10 else f"{speed:.2f}"
            parts.append(f'<text class="value" x="{LEFT + j * CELL + CELL / 2}" y="{y + HIGH / 2 + 5}" text-anchor="middle">{shown}</text>')
    below = top + len(g.rows) * HIGH + 17
    parts += [
        f'<text x="{LEFT + j * CELL + CELL / 2}" y="{below}" text-anchor="middle">{d:g}</text>' for j, d in enumerate(g.densities)
    ]
    parts.append(f'<text x="{LEFT - 6}" y="{below}" text-anchor="end">density</text>')
    for x1, y1, x2, y2 in border(g):
        parts.append(f'<line class="line" x1="{LEFT + x1 * CELL}" y1="{top + y1 * HIGH}" x2="{LEFT + x2 * CELL}" y2="{top + y2 * HIGH}"/>')
    return parts


def border(g: Grid) -> list[tuple[int, int, int, int]]:
    """Where a cell that is faster than dense touches one that is not: from (column, row) to (column, row), in cells."""

    def wins(i: int, j: int) -> bool | None:
        if not (0 <= i < len(g.rows) and 0 <= j < len(g.densities)):
            return None
        speed = g.speeds.get((g.rows[i], g.densities[j]))
        return None if speed is None else speed >= 1

    found = []
    for i in range(len(g.rows)):
        for j in range(len(g.densities)):
            here, right, below = wins(i, j), wins(i, j + 1), wins(i + 1, j)
            if here is not None and right is not None and here != right:
                found.append((j + 1, i, j + 1, i + 1))
            if here is not None and below is not None and here != below:
                found.append((j, i + 1, j + 1, i + 1))
    return found
