"""Who does what when: a row a role, a bar a piece of work, in a pattern that repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.lab.report.drawings.canvas import COLOURS, Canvas, Picture

ROW, NAME, PLOT = 22.0, 150.0, 710.0


def draw(rows: Sequence[Mapping[str, Any]], repeat: int = 3) -> Picture:
    """`rows`: name, pattern (texts and lengths, one after the other; an empty text is waiting), and `start`, when it begins. The same text
    has the same colour in all rows. Lengths are in any unit, the same for all."""
    canvas = Canvas()
    texts = list(dict.fromkeys(str(t) for row in rows for t, _ in row["pattern"] if t))
    span = max(float(row.get("start", 0)) + repeat * sum(float(n) for _, n in row["pattern"]) for row in rows)
    scale = PLOT / span
    about = []
    for k, row in enumerate(rows):
        y = k * (ROW + 4)
        at = float(row.get("start", 0))
        canvas.text(0, y + 15, str(row["name"]), kind="label")
        for _ in range(repeat):
            for text, length in row["pattern"]:
                if text:
                    canvas.box(
                        NAME + at * scale, y, float(length) * scale, ROW, COLOURS[texts.index(str(text)) % len(COLOURS)], str(text),
                        str(text)
                    )
                at += float(length)
        period = sum(float(n) for _, n in row["pattern"])
        about.append(f"{row['name']}: {', '.join(f'{t} {float(n) / period:.0%}' for t, n in row['pattern'] if t)}")
    y = len(rows) * (ROW + 4) + 6
    canvas.arrow(NAME, y, NAME + PLOT, y)
    canvas.text(NAME + PLOT, y + 16, "time", "end")
    return canvas.picture("; ".join(about))
