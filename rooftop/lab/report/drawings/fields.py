"""The bits of a word, or the bytes of a record, by what they hold."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.lab.report.drawings.canvas import COLOURS, WIDTH, Canvas, Picture

ROW = 24.0


def draw(rows: Sequence[Sequence], unit: str = "bit") -> Picture:
    """`rows`: name, then (text, width in units) from the lowest bit or first byte on. All rows have one scale; an empty text is unused."""
    canvas = Canvas()
    most = max(sum(width for _, width in parts) for _, parts in rows)
    left = 210.0
    scale = (WIDTH - left) / most
    texts = list(dict.fromkeys(str(text).rstrip("0123456789 ") for _, parts in rows for text, _ in parts if text))
    about = []
    for k, (name, parts) in enumerate(rows):
        y, at = k * (ROW + 12), 0
        canvas.text(0, y + 16, str(name), kind="label")
        for text, width in parts:
            kind = COLOURS[texts.index(str(text).rstrip("0123456789 ")) % len(COLOURS)] if text else "paper"
            canvas.box(left + at * scale, y, width * scale, ROW, kind, str(text), f"{text}: {width} {unit}s from {at}")
            at += width
        about.append(f"{name}: {', '.join(f'{text} {width}' for text, width in parts if text)} {unit}s")
    return canvas.picture("; ".join(about))
