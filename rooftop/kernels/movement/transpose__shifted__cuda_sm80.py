"""How transpose__shifted__cuda_sm80.cu divides a matrix into tiles: `wide` bytes of each row, so that the last tile of a row is nearly whole,
`tall` rows, and `flat`, whether a tile holds all rows."""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem

WIDTHS = (256, 224, 192, 160, 128)
MORE = 48  # bytes of a tile's row that cost time besides its own: the pack shared with the next tile, and what a block starts with
HELD = 56 * 1024  # bytes of a flat tile, at most: four blocks of a multiprocessor
TALL = 128


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The widest tiles, unless narrower ones waste less of the last one. A flat tile is as wide as fits."""
    x, widths = p["x"], _flat(p)
    wide = min(widths or WIDTHS, key=lambda w: -(-x.shape[4] * x.itemsize // w) * (w + MORE))
    return {"wide": wide, "tall": TALL, "flat": int(bool(widths)), "threads": 256}


def _flat(p: Problem) -> list[int]:
    """The widths of flat tiles: of one matrix, whose transposed rows follow each other and have at least a pack."""
    x, out = p["x"], p["out"]
    rows = x.shape[3]
    alone = x.shape[0] * x.shape[1] * x.shape[2] == 1 and out.strides[4] == rows and rows * x.itemsize >= 16
    return [w for w in WIDTHS if rows * (w + 32) <= HELD] if alone else []


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    tiles = [(w, TALL, 256) for w in WIDTHS] + [(256, 192, 256), (256, 256, 256), (256, 256, 512), (192, 256, 512), (128, 256, 256), (128, 512, 512)]
    return [{"wide": w, "tall": t, "flat": 0, "threads": n} for w, t, n in tiles if t * p["x"].itemsize % 128 == 0] + [
        {"wide": w, "tall": TALL, "flat": 1, "threads": n} for w in _flat(p) for n in (256, 512)]
