"""Loads and products of a loop over time, for a number of buffers: who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.lab.report.drawings.canvas import Canvas, Picture

ROW = 18.0
NAME = 96.0  # pixels of the names at the left
PLOT = 760.0


def times(stages: int, load: float, compute: float, slices: int, apart: bool = True) -> list[tuple[float, float, float]]:
    """Of each slice when its load begins and ends and its product begins. A load begins when the product of the slice that lay in its stage
    has ended, and, where loads and products are `apart` from nobody (one thread does both), after the product before it; loads take turns
    only at the stages."""
    found: list[tuple[float, float, float]] = []
    for i in range(slices):
        free = found[i - stages][2] + compute if i >= stages else 0.0
        if not apart and i:
            free = max(free, found[i - 1][2] + compute)
        ready = free + load
        begins = max(ready, found[-1][2] + compute if found else 0.0)
        found.append((free, ready, begins))
    return found


def draw(variants: Sequence[Mapping[str, Any]], load: float, compute: float, slices: int = 8, product: str = "product") -> Picture:
    """`variants`: name and stages, and `apart = false` where nothing is loaded during a product. `load`, `compute`: how long a slice takes
    from request to arrival, and in the multiplying units, in any unit. All variants have one time axis."""
    canvas = Canvas()
    runs = [
        (str(v["name"]), int(v["stages"]), times(int(v["stages"]), load, compute, slices, bool(v.get("apart", True)))) for v in variants
    ]
    longest = max(t[-1][2] + compute for _, _, t in runs)
    scale = PLOT / longest
    about = []
    y = 0.0
    for name, stages, found in runs:
        busy = (slices - 1) * compute / max(found[-1][2] - found[0][2], compute)  # after the first slice
        canvas.text(0, y + 12, name, kind="label")
        canvas.text(NAME + PLOT, y + 12, f"{100 * min(busy, 1.0):.0f} % of the time multiplying once begun", "end")
        y += 20
        for s in range(stages):
            canvas.text(0, y + 13, f"buffer {s}" if stages > 1 else "buffer")
            for i in range(s, slices, stages):
                begin, ready, starts = found[i]
                canvas.box(NAME + begin * scale, y, (ready - begin) * scale, ROW - 4, "b", f"load {i}", f"slice {i} is loaded")
                if starts > ready:
                    canvas.box(NAME + ready * scale, y, (starts - ready) * scale, ROW - 4, "paper", about=f"slice {i} waits")
                canvas.box(NAME + starts * scale, y, compute * scale, ROW - 4, "a", str(i), f"slice {i} is multiplied")
            y += ROW
        canvas.text(0, y + 13, product)
        for i, (_, _, starts) in enumerate(found):
            canvas.box(NAME + starts * scale, y, compute * scale, ROW - 4, "c", str(i), f"slice {i} is multiplied")
        y += ROW + 12
        about.append(f"{name}: multiplying {100 * min(busy, 1.0):.0f} % of the time once begun")
    canvas.arrow(NAME, y, NAME + PLOT, y)
    canvas.text(NAME + PLOT, y + 16, "time", "end")
    return canvas.picture("; ".join(about))
