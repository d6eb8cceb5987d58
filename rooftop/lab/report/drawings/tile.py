"""Tiles within tiles: what a block, a warp, a thread makes of a product, and how often each number that it reads is used."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.lab.report.drawings.canvas import Canvas, Picture

SIDE = 190.0  # pixels of the longest side of a panel
GAP = 74.0
MOST = 600  # cells of a panel; with more it is left empty but for the first


def draw(levels: Sequence[Sequence], depth: int = 0, operands: Sequence[str] = ("a", "b"), made: str = "results") -> Picture:
    """`levels`: (name, rows, columns), each within the one before: the first cell of each panel is the next panel. `depth`: of the operands beside the
    first panel, as far as one step goes; 0: they are not drawn. `operands`: their names, left and top; `made`: what the tile holds."""
    canvas = Canvas()
    about: list[str] = []
    x, top = 0.0, 46.0
    for i, (name, rows, columns) in enumerate(levels):
        scale = SIDE / max(rows, columns)
        width, height = columns * scale, rows * scale
        if i == 0 and depth:
            strip = max(10.0, min(26.0, depth * scale))
            canvas.text(x, top - 26, f"{operands[0]}: {rows} × {depth}")
            canvas.box(x, top + strip + 4, strip, height, "a", about=f"{operands[0]}, {rows} × {depth}")
            x += strip + 4
            canvas.box(x, top, width, strip, "b", about=f"{operands[1]}, {depth} × {columns}")
            canvas.text(x + width, top - 6, f"{operands[1]}: {depth} × {columns}", "end")
            y = top + strip + 4
        else:
            y = top
        canvas.box(x, y, width, height, "paper")
        inside = levels[i + 1] if i + 1 < len(levels) else None
        down, across = (-(-rows // inside[1]), -(-columns // inside[2])) if inside else (rows, columns)
        if down * across <= MOST:
            for r in range(down):
                for c in range(across):
                    first = inside is not None and r == c == 0
                    canvas.box(x + c * width / across, y + r * height / down, width / across, height / down, "c" if first else "cell")
        elif inside:
            canvas.box(x, y, width / across, height / down, "c")
        uses = rows * columns / (rows + columns)
        canvas.text(x, y + height + 18, f"{name}: {rows} × {columns}", kind="label")
        canvas.text(x, y + height + 34, f"{rows + columns} numbers, {rows * columns} products")
        canvas.text(x, y + height + 50, f"a step of k: {uses:.3g} for each")
        about.append(f"{name} of {rows} × {columns} {made}: {rows} + {columns} numbers for {rows * columns} products, {uses:.3g} for each number read")
        if inside:
            canvas.line(x + width / across, y, x + width + GAP, top, "thin")
            canvas.line(x + width / across, y + height / down, x + width + GAP, top + inside[1] * SIDE / max(inside[1], inside[2]), "thin")
        x += max(width, 130.0 if inside is None else width) + GAP
    return canvas.picture("; ".join(about))
