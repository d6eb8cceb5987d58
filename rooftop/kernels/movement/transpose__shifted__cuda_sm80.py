"""How transpose__shifted__cuda_sm80.cu divides a matrix into tiles: `wide` bytes of each row, so that the last tile of a row is nearly whole,
`tall` rows, and `flat`, whether a tile holds all rows."""

from __future__ import annotations

from math import sqrt
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem

WIDTHS = (256, 224, 192, 160, 128)
MORE = 48  # bytes of a tile's row that cost time besides its own: the pack shared with the next tile, and what a block starts with
RESIDENT = 8  # blocks of a multiprocessor, at most, in the fit of widths; the 42 registers of flat tiles allow five on sm_90: to be fitted again with 32
RESERVED = 1024  # bytes of shared memory that the driver takes from each


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The widest tiles, unless narrower ones waste less of the last one; as tall as leaves three blocks to a multiprocessor, since neighbours overlap.
    Flat tiles if six blocks fit, less of each for less time (147 x 169574 bfloat16: 256 bytes 34.1 us, 128 bytes 33.0)."""
    x, flat = p["x"], _flat(p)
    size, room = x.itemsize, p.device.shared_per_block + RESERVED
    wide = min(flat or WIDTHS, key=lambda w: -(-x.shape[4] * size // w) * (w + MORE) * sqrt(RESIDENT / flat.get(w, RESIDENT)))
    pitch = wide + 16 + x.strides[3] * size % 16 + size
    fit = [t for t in (256, 192) if t * size % 128 == 0 and 3 * ((t + 32 // size) * pitch + RESERVED) <= room]
    return {"wide": wide, "tall": fit[0] if fit and not flat else 128, "flat": int(bool(flat)), "threads": 256, "group": 16}


def _flat(p: Problem) -> dict[int, int]:
    """The widths of flat tiles, and how many blocks of each a multiprocessor holds: of one matrix, whose transposed rows follow each other and have at least
    a pack."""
    x, out = p["x"], p["out"]
    rows = x.shape[3]
    if x.shape[0] * x.shape[1] * x.shape[2] > 1 or out.strides[4] != rows or rows * x.itemsize < 16:
        return {}
    blocks = {w: min(RESIDENT, p.device.shared_per_block // (rows * (w + 32) + RESERVED)) for w in WIDTHS}
    return {w: n for w, n in blocks.items() if n >= 6}


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    tiles = [(w, t, 0) for w in WIDTHS for t in (128, 256) if t * p["x"].itemsize % 128 == 0] + [(w, 128, 1) for w in _flat(p)]
    return [{"wide": w, "tall": t, "flat": f, "threads": 256, "group": g} for w, t, f in tiles for g in ((16,) if f else (4, 16, 64))]
