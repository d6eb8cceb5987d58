"""Heat maps for docs/sparse.md: how fast products with sparse matrices are beside the dense product, over density, block and columns, with
the line where dense wins. From the records of the bench cases of `spmm_bsr` and `spmm_csr`, which cuBLAS is timed beside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from math import log2

from rooftop.lab.records.store import Record
from rooftop.lab.report.model import SiteData
from rooftop.lab.report.picture import STYLE

DENSE = "cublas"  # the peer
BLOCKS = re.compile(r"^(?P<size>\d+x\d+) blocks of (?P<row>\d+), density (?P<density>[\d.]+) x (?P<n>\d+)\b")
ELEMENTS = re.compile(r"^(?P<size>\d+x\d+) density (?P<density>[\d.]+) x (?P<row>\d+)\b")
NOTHING = "Nothing has been measured yet with the kernels as they stand."
CELL, HIGH, LEFT, TOP, GAP = 62, 30, 92, 66, 34  # pixels: a cell, its height, the names of rows, above a map, between maps


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
    """The maps side by side, blue where sparse is faster, orange where dense is; a line between."""
    made = grids(site)
    width = sum(LEFT + CELL * len(g.densities) + GAP for g in made) or 480
    height = TOP + HIGH * max((len(g.rows) for g in made), default=0) + 40
    style = f"{STYLE}.line {{ stroke: var(--ink); stroke-width: 3; }}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<style>{style}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}"/>',
        '<text class="title" x="16" y="26">Speed over the dense product, 8192 x 8192</text>',
    ]
    if not made:
        parts.append(f'<text x="16" y="48">{escape(NOTHING)}</text>')
    x = 0
    for g in made:
        parts += _map(g, x + LEFT)
        x += LEFT + CELL * len(g.densities) + GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def _map(g: Grid, left: int) -> list[str]:
    parts = [f'<text class="name" x="{left}" y="48">{escape(g.title)}</text>']
    for i, r in enumerate(g.rows):
        y = TOP + i * HIGH
        parts.append(f'<text class="name" x="{left - 6}" y="{y + HIGH / 2 + 4}" text-anchor="end">{escape(r)}</text>')
        for j, d in enumerate(g.densities):
            speed = g.speeds.get((r, d))
            if speed is None:
                continue
            tone = "--bar" if speed >= 1 else "--peer"
            depth = min(1.0, 0.12 + abs(log2(speed)) / 6)
            parts.append(
                f'<rect x="{left + j * CELL}" y="{y}" width="{CELL}" height="{HIGH}" style="fill: var({tone}); fill-opacity: {depth:.2f}"/>'
            )
            shown = f"{speed:.1f}" if speed >= 10 else f"{speed:.2f}"
            parts.append(f'<text class="value" x="{left + j * CELL + CELL / 2}" y="{y + HIGH / 2 + 4}" text-anchor="middle">{shown}</text>')
    bottom = TOP + len(g.rows) * HIGH
    parts += [
        f'<text class="name" x="{left + j * CELL + CELL / 2}" y="{bottom + 16}" text-anchor="middle">{d:g}</text>' for j,
        d in enumerate(g.densities)
    ]
    parts.append(f'<text class="name" x="{left - 6}" y="{bottom + 16}" text-anchor="end">density</text>')
    for x1, y1, x2, y2 in border(g):
        parts.append(f'<line class="line" x1="{left + x1 * CELL}" y1="{TOP + y1 * HIGH}" x2="{left + x2 * CELL}" y2="{TOP + y2 * HIGH}"/>')
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
