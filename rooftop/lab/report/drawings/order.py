"""The tiles of a product that are in flight at once, in the order that blocks take them, and what they read between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.lab.report.drawings.canvas import Canvas, Picture, binary

SIDE = 260.0


def places(down: int, across: int, group: int, count: int) -> list[tuple[int, int]]:
    """The first `count` tiles (row, column) where groups of `group` rows are walked column by column; 1: row by row."""
    found = []
    for t in range(min(count, down * across)):
        first = t // (group * across) * group
        rows = min(group, down - first)
        inside = t - first * across
        found.append((first + inside % rows, inside // rows))
    return found


def draw(down: int, across: int, count: int, variants: Sequence[Mapping[str, Any]], row_bytes: float, column_bytes: float) -> Picture:
    """A grid of `down` x `across` tiles of which `count` are in flight. `variants`: name and group. `row_bytes`, `column_bytes`: of the
    operand that a row of tiles shares, and of that which a column shares."""
    canvas = Canvas()
    about = []
    x = 0.0
    scale = SIDE / max(down, across)
    for variant in variants:
        found = places(down, across, int(variant["group"]), count)
        rows, columns = len({m for m, _ in found}), len({n for _, n in found})
        total = rows * row_bytes + columns * column_bytes
        canvas.text(x, 12, str(variant["name"]), kind="label")
        canvas.box(x, 20, across * scale, down * scale, "paper")
        for m in sorted({m for m, _ in found}):  # neighbours in a row of tiles are one box
            taken = sorted(n for r, n in found if r == m)
            for n in taken:
                if n - 1 not in taken:
                    wide = next(k for k in range(1, across + 1) if n + k not in taken)
                    canvas.box(
                        x + n * scale, 20 + m * scale, wide * scale, scale, "a", about=f"row {m} of tiles, columns {n} to {n + wide - 1}"
                    )
        canvas.text(x, 38 + down * scale, f"{len(found)} tiles in flight: {rows} rows, {columns} columns")
        canvas.text(x, 54 + down * scale, f"they read {binary(total)}")
        about.append(f"{variant['name']}: {len(found)} tiles in flight read {rows} rows and {columns} columns of tiles, {binary(total)}")
        x += max(across * scale, 250) + 36
    return canvas.picture("; ".join(about))
