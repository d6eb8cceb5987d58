"""A small matrix by the kinds of its elements: which are zero, which are kept, who has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.lab.report.drawings.canvas import COLOURS, Canvas, Picture

CELL = 16.0


def draw(panels: Sequence[Mapping[str, Any]], legend: Mapping[str, str], cell: float = CELL) -> Picture:
    """`panels`: name and rows, each a text with a character an element: those of `legend` are filled, "." is empty, " " is nothing.
    `groups`: a line after every so many columns."""
    canvas = Canvas()
    keys = list(legend)
    about = []
    x, bottom = 0.0, 0.0
    for panel in panels:
        rows = [str(r) for r in panel["rows"]]
        canvas.text(x, 12, str(panel["name"]), kind="label")
        for r, row in enumerate(rows):
            for c, letter in enumerate(row):
                if letter != " ":
                    kind = COLOURS[keys.index(letter) % len(COLOURS)] if letter in legend else "cell"
                    canvas.box(x + c * cell, 20 + r * cell, cell - 1, cell - 1, kind, about=legend.get(letter, "not kept"))
        wide = max(map(len, rows), default=0)
        every = int(panel.get("groups", 0)) or wide
        for c in range(every, wide, every or 1):
            canvas.line(x + c * cell - 0.5, 18, x + c * cell - 0.5, 20 + len(rows) * cell, "thick")
        found = "".join(rows)
        counted = ", ".join(f"{found.count(k)} {text}" for k, text in legend.items() if k in found)
        about.append(f"{panel['name']}: {counted} of {sum(ch != ' ' for ch in found)}")
        bottom = max(bottom, 20 + len(rows) * cell)
        x += max(wide * cell, len(str(panel["name"])) * 6.4) + 36
    at = 0.0
    for k, text in enumerate(legend.values()):
        canvas.box(at, bottom + 12, 12, 12, COLOURS[k % len(COLOURS)])
        canvas.text(at + 18, bottom + 22, text)
        at += 18 + len(text) * 6.4 + 26
    return canvas.picture("; ".join(about))
