"""Who adds in each step of a sum of lanes or threads, and which they add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rooftop.lab.report.drawings.canvas import Canvas, Picture, plural

CELL, ROW = 13.0, 16.0
# Of `count` threads, in the step over distance `step`: whether thread t works, and the two places that it adds.
ORDERS: Mapping[str, Callable[[int, int, int], tuple[bool, int, int]]] = {
    "interleaved": lambda t, step, count: (t % (2 * step) == 0, t, t + step),
    "whole warps": lambda t, step, count: (t * 2 * step < count, t * 2 * step, t * 2 * step + step),
    "halves": lambda t, step, count: (t < step, t, t + step),
    "shuffles": lambda t, step, count: (True, t, t ^ step),
}


def busy(order: str, count: int, warp: int) -> tuple[int, int]:
    """Additions, and warps times steps that they keep busy."""
    added = warps = 0
    for step in steps(order, count):
        at_work = [t for t in range(count) if ORDERS[order](t, step, count)[0]]
        added += len(at_work)
        warps += len({t // warp for t in at_work})
    return added, warps


def steps(order: str, count: int) -> list[int]:
    up = [1 << k for k in range((count - 1).bit_length())]
    return up if order in ("interleaved", "whole warps") else up[::-1]


def draw(orders: Sequence[str], count: int = 32, warp: int = 8) -> Picture:
    """`orders`: of ORDERS. `count` threads in warps of `warp`, which are drawn apart. Filled: threads that add in this step."""
    canvas = Canvas()
    about = []
    y = 0.0
    for order in orders:
        if order not in ORDERS:
            raise ValueError(f"drawing tree: order {order!r} is none of {', '.join(ORDERS)}")
        _, warps = busy(order, count, warp)
        between = "no barrier" if order == "shuffles" else "a barrier after each step"
        canvas.text(0, y + 12, f"{order}: {plural(warps, 'warp')} at work over all steps, {between}", kind="label")
        y += 20
        for step in steps(order, count):
            canvas.text(0, y + 11, f"distance {step}")
            for t in range(count):
                works, one, other = ORDERS[order](t, step, count)
                x = 90 + t * CELL + t // warp * 5
                canvas.box(
                    x, y, CELL - 1, ROW - 3, "a" if works else "cell",
                    about=f"thread {t} adds {one} and {other}" if works else f"thread {t} rests"
                )
            y += ROW
        y += 12
        over = f"{plural(len(steps(order, count)), 'step')} of {plural(count, 'thread')} in warps of {warp}"
        about.append(f"{order}: {plural(warps, 'warp')} at work over {over}")
    return canvas.picture("; ".join(about))
