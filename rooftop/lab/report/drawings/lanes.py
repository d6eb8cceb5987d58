"""Which 32-byte sectors of memory the lanes of a warp touch by one load or store, and how much of them is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.core.expressions import evaluate
from rooftop.lab.report.drawings.canvas import Canvas, Picture, plural

SECTOR, LANES = 32, 32  # bytes; threads of a warp
CELL = 26.0


def touched(byte: str, size: int) -> dict[int, set[int]]:
    """Sector -> the bytes of it that are asked for. `byte`: an expression of `lane`, where its `size` bytes begin."""
    found: dict[int, set[int]] = {}
    for lane in range(LANES):
        start = int(evaluate(byte, {"lane": lane}))
        for b in range(start, start + size):
            found.setdefault(b // SECTOR, set()).add(b)
    return found


def draw(variants: Sequence[Mapping[str, Any]]) -> Picture:
    """`variants`: name, byte and size as `touched` takes them. A box is a sector; its filled part is what the warp asked for."""
    canvas = Canvas()
    about = []
    y = 0.0
    for variant in variants:
        sectors = touched(str(variant["byte"]), int(variant["size"]))
        used = sum(len(b) for b in sectors.values())
        share = used / (SECTOR * len(sectors))
        said = f"{plural(len(sectors), 'sector')} for {plural(used, 'byte')}: {100 * share:.0f} % of what moves is used"
        canvas.text(0, y + 12, str(variant["name"]), kind="label")
        canvas.text(0, y + 28, f"{variant['size']} bytes a lane, {said}")
        before: int | None = None
        x = 0.0
        for sector in sorted(sectors):
            if before is not None and sector != before + 1:
                x += 4.0  # bytes between that nobody asked for
            width = CELL if len(sectors) <= 32 else CELL * 32 / len(sectors)
            canvas.box(x, y + 34, width - 1, 16, "paper")
            part = (width - 1) / SECTOR
            for run in _runs(sectors[sector]):
                canvas.box(x + (run[0] - sector * SECTOR) * part, y + 34, (run[1] - run[0]) * part, 16, "a" if share > 0.5 else "hot")
            x += width
            before = sector
        about.append(f"{variant['name']}: {said}")
        y += 66
    return canvas.picture("; ".join(about))


def _runs(places: set[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers as (first, one past the last)."""
    found: list[tuple[int, int]] = []
    for p in sorted(places):
        if found and found[-1][1] == p:
            found[-1] = (found[-1][0], p + 1)
        else:
            found.append((p, p + 1))
    return found
