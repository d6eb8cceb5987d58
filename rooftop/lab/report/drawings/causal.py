"""The tiles of attention scores: hidden by the causal order, masked at its edge, or seen by all."""

from __future__ import annotations

from rooftop.lab.report.drawings.canvas import Canvas, Picture

SIDE = 300.0


def counts(queries: int, keys: int, BM: int, BN: int, causal: bool = True) -> tuple[int, int, int]:
    """Tiles that no query sees, that some of their queries see in part, and that all see in full. The last query sees the last key."""
    hidden = edge = full = 0
    for m in range(-(-queries // BM)):
        for n in range(-(-keys // BN)):
            kind = _kind(m, n, BM, BN, keys - queries) if causal else 2
            hidden, edge, full = hidden + (kind == 0), edge + (kind == 1), full + (kind == 2)
    return hidden, edge, full


def _kind(m: int, n: int, BM: int, BN: int, shift: int) -> int:
    if n * BN > m * BM + BM - 1 + shift:
        return 0
    return 2 if n * BN + BN - 1 <= m * BM + shift else 1


def draw(queries: int, keys: int, BM: int, BN: int, shown: int = 16, walk: str = "") -> Picture:
    """The counts are of all tiles; drawn are the first `shown` rows of them. `walk`: what is said of the marked row: it is walked from left
    to right."""
    hidden, edge, full = counts(queries, keys, BM, BN)
    rows = min(shown, -(-queries // BM))
    columns = min(-(-keys // BN), -(-rows * BM // BN))
    canvas = Canvas()
    size = SIDE / max(rows * BM, columns * BN)
    for m in range(rows):
        for n in range(columns):
            kind = _kind(m, n, BM, BN, 0)
            canvas.box(n * BN * size, 18 + m * BM * size, BN * size, BM * size, ("cell", "c", "a")[kind])
    canvas.text(0, 12, f"keys, tiles of {BN} →")
    x = SIDE + 24
    all_tiles = hidden + edge + full
    legend = (
        ("a", full, "seen by all their queries: no mask"), ("c", edge, "at the edge: masked"), ("cell", hidden, "hidden: not visited")
    )
    for k, (colour, count, text) in enumerate(legend):
        canvas.box(x, 24 + k * 24, 14, 14, colour)
        canvas.text(
            x + 22, 36 + k * 24, f"{count:,} tiles ({100 * count / all_tiles:.0f} %) {text}".replace(",", "\N{NARROW NO-BREAK SPACE}")
        )
    canvas.text(x, 112, f"a row of tiles: {BM} queries")
    if walk:
        m = rows * 2 // 3
        y = 18 + (m + 0.5) * BM * size
        canvas.arrow(0, y, min(SIDE, (m + 1) * BM * size), y)
        canvas.text(x, 130, walk)
    return canvas.picture(
        f"of {all_tiles} tiles of {BM} × {BN}, {full} are seen in full, {edge} at the edge are masked, {hidden} are hidden and not visited"
    )
