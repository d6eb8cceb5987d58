"""Launches and what passes through memory between them."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.lab.report.drawings.canvas import Canvas, Picture, length

ROW = 26.0


def draw(rows: Sequence[Sequence]) -> Picture:
    """`rows`: name, then texts: those in brackets are what lies in memory, the others launches, or what else makes it. A long row goes on
    in the next line."""
    canvas = Canvas()
    about = []
    y = 0.0
    for name, items in rows:
        canvas.text(0, y + 12, str(name), kind="label")
        y += 20
        x = 0.0
        for k, item in enumerate(items):
            text = str(item)
            memory = text.startswith("(")
            shown = text.strip("()") if memory else text
            width = length(shown) + 16
            if k and x + 20 + width > 860:
                x, y = 20.0, y + ROW + 8
            if k:
                canvas.arrow(x, y + ROW / 2, x + 18, y + ROW / 2)
                x += 20
            canvas.box(x, y, width, ROW, "b" if memory else "a", shown, "in memory" if memory else "a launch")
            x += width + 2
        y += ROW + 16
        launches = sum(not str(i).startswith("(") for i in items)
        about.append(f"{name}: {' → '.join(str(i) for i in items)} ({launches} launches)")
    return canvas.picture("; ".join(about))
