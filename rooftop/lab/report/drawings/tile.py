"""Tiles within tiles: what a block, a warp, a thread makes of a product, and how often each number that it reads is used."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.lab.report.drawings.canvas import Canvas, Picture, length

SIDE = 190.0  # pixels of the longest side of a panel
GAP = 60.0
TOP = 46.0
MOST = 600  # cells of a panel; with more it is left empty but for the first


def draw(levels: Sequence[Sequence], depth: int = 0, operands: Sequence[str] = ("a", "b"), made: str = "results") -> Picture:
    """`levels`: (name, rows, columns), each within the one before: the first cell of each panel is the next panel. `depth`: of the operands
    beside the first panel, as far as one step goes; 0: they are not drawn. `operands`: their names, left and top; `made`: what the tile
    holds."""
    canvas = Canvas()
    strip = max(10.0, min(26.0, depth * SIDE / max(levels[0][1:]))) if depth else 0.0
    top = TOP + strip + 4 if depth else 0.0
    below = top + max(rows * SIDE / max(rows, columns) for _, rows, columns in levels)
    about: list[str] = []
    x = strip + 4 if depth else 0.0
    for i, (name, rows, columns) in enumerate(levels):
        scale = SIDE / max(rows, columns)
        width, height = columns * scale, rows * scale
        if i == 0 and depth:
            canvas.text(0, TOP - 26, f"{operands[0]}: {rows} × {depth}")
            canvas.box(0, top, strip, height, "a", about=f"{operands[0]}, {rows} × {depth}")
            canvas.box(x, TOP, width, strip, "b", about=f"{operands[1]}, {depth} × {columns}")
            canvas.text(x, TOP - 6, f"{operands[1]}: {depth} × {columns}")
        inside = levels[i + 1] if i + 1 < len(levels) else None
        down, across = (-(-rows // inside[1]), -(-columns // inside[2])) if inside else (rows, columns)
        _panel(canvas, x, top, width, height, down, across, inside is not None)
        uses = rows * columns / (rows + columns)
        captions = (
            f"{name}: {rows} × {columns}", f"{rows + columns} numbers, {rows * columns} products",
            f"each is used {uses:.3g} times a step of k"
        )
        for k, caption in enumerate(captions):
            canvas.text(x, below + 18 + 16 * k, caption, kind="" if k else "label")
        about.append(
            f"{name} of {rows} × {columns} {made}: {rows} + {columns} numbers for {rows * columns} products, {uses:.3g} for each number "
            f"read"
        )
        step = max(width, max(map(length, captions))) + GAP
        if inside:
            high = inside[1] * SIDE / max(inside[1], inside[2])
            canvas.line(x + width / across, top, x + step, top, "thin")
            canvas.line(x + width / across, top + height / down, x + step, top + high, "thin")
        x += step
    return canvas.picture("; ".join(about))


def _panel(canvas: Canvas, x: float, y: float, width: float, height: float, down: int, across: int, divided: bool) -> None:
    """Its cells, the first marked where there is a panel of it."""
    canvas.box(x, y, width, height, "paper")
    if down * across <= MOST:
        for r in range(down):
            for c in range(across):
                kind = "c" if divided and r == c == 0 else "cell"
                canvas.box(x + c * width / across, y + r * height / down, width / across, height / down, kind)
    elif divided:
        canvas.box(x, y, width / across, height / down, "c")
