"""A row shared out: over blocks, warps, threads, down to what one instruction moves."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.lab.report.drawings.canvas import WIDTH, Canvas, Picture, length, plural

BAR = 20.0


def draw(levels: Sequence[Sequence], of: str = "element", most: int = 32) -> Picture:
    """`levels`: name and how many each holds; a level is the first part of the one above, enlarged. At most `most` parts are drawn, the
    rest as one."""
    canvas = Canvas()
    about = []
    labels = [f"{name}: {plural(count, of)}" for name, count in levels]
    width = WIDTH + 60.0 - max(length(text, "label") for text in labels)
    y = 0.0
    for i, (name, count) in enumerate(levels):
        inside = levels[i + 1][1] if i + 1 < len(levels) else None
        parts = -(-count // inside) if inside else 1
        canvas.text(width + 12, y + 14, labels[i], kind="label")
        shown = min(parts, most)
        for p in range(shown):
            canvas.box(p * width / shown, y, width / shown, BAR, "c" if p == 0 and inside else "cell")
        if parts > most:
            canvas.box((shown - 1) * width / shown, y, width / shown, BAR, "paper", "…")
        if inside:
            canvas.line(0, y + BAR, 0, y + BAR + 26, "thin")
            canvas.line(width / shown, y + BAR, width, y + BAR + 26, "thin")
            canvas.text(8, y + BAR + 17, f"{plural(parts, 'part')}")
            about.append(f"{name} of {plural(count, of)}: {plural(parts, 'part')}")
        else:
            about.append(f"{name}: {plural(count, of)}")
        y += BAR + 26
    return canvas.picture("; ".join(about))
