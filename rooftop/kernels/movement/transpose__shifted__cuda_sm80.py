"""How transpose__shifted__cuda_sm80.cu divides a matrix into tiles: `wide` bytes of each row, so that the last tile of a row is nearly whole,
and `flat`, whether a tile holds all rows."""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem

WIDTHS = (256, 224, 192, 160, 128)
MORE = 48  # bytes of a tile's row that cost time besides its own: the pack shared with the next tile, and what a block starts with
FULL = 128  # rows of a tile; those of a flat one are as many as 32 bytes of a column more


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The widest tiles, unless narrower ones waste less of the last one."""
    x, out = p["x"], p["out"]
    rows, columns = x.shape[3:]
    size = x.itemsize
    wide = min(WIDTHS, key=lambda w: -(-columns * size // w) * (w + MORE))
    alone = x.shape[0] * x.shape[1] * x.shape[2] == 1 and out.strides[4] == rows
    return {"wide": wide, "flat": int(alone and rows * size % 16 != 0 and rows <= FULL + 32 // size)}


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    flat = choose(p, head)["flat"]
    return [{"wide": w, "flat": f} for w in WIDTHS for f in {0, flat}]
