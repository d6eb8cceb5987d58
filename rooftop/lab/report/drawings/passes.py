"""Bytes that cross the memory, step by step of the climb, beside the fewest that can."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.lab.report.drawings.canvas import Canvas, Picture, binary

ROW, NAME, PLOT = 20.0, 250.0, 520.0


def draw(rows: Sequence[Sequence], unit: float, bandwidth: float = 0.0) -> Picture:
    """`rows`: name, how often what is moved once is read, and written. `unit`: the bytes of that once. `bandwidth`, GB/s: the time that it
    takes is named. The last row is the fewest."""
    canvas = Canvas()
    most = max(float(reads) + float(writes) for _, reads, writes in rows)
    scale = PLOT / most
    about = []
    for k, (name, reads, writes) in enumerate(rows):
        y = k * (ROW + 4)
        moved = (float(reads) + float(writes)) * unit
        time = f", {moved / bandwidth / 1e3:.0f} µs" if bandwidth else ""
        canvas.text(0, y + 14, str(name), kind="label")
        canvas.box(NAME, y, float(reads) * scale, ROW, "b", "read", f"read {float(reads):g} times")
        canvas.box(NAME + float(reads) * scale, y, float(writes) * scale, ROW, "a", "written", f"written {float(writes):g} times")
        canvas.text(NAME + (float(reads) + float(writes)) * scale + 6, y + 14, f"{binary(moved)}{time}")
        about.append(f"{name}: read {float(reads):g} times, written {float(writes):g}: {binary(moved)}{time}")
    least = float(rows[-1][1]) + float(rows[-1][2])
    canvas.line(NAME + least * scale, 0, NAME + least * scale, len(rows) * (ROW + 4), "mark")
    return canvas.picture("; ".join(about))
