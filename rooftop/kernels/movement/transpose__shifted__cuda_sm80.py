"""How transpose__shifted__cuda_sm80.cu divides a matrix into tiles: `wide` bytes of each row, so that the last tile of a row is nearly whole,
`tall` rows, and `flat`, whether a tile holds all rows."""

from __future__ import annotations

from math import sqrt
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem

WIDTHS = (256, 224, 192, 160, 128)
TALL = 8  # steps of `tall`, at most; a step is 128 bytes of a column
MORE = 48  # bytes of a tile's row that cost time besides its own: the pack shared with the next tile, and what a block starts with
RESERVED = 1024  # bytes of shared memory that the driver takes from each block
THREADS = 256


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The widest tiles, unless narrower ones waste less of the last one; as tall as leaves three blocks to a multiprocessor, since neighbours overlap.
    Flat tiles if six blocks fit, less of each for less time (147 x 169574 bfloat16: 256 bytes 34.1 us, 128 bytes 33.0)."""
    x = p["x"]
    size, flat = x.itemsize, {w: n for w in WIDTHS if _flat(p) and (n := _fit(p, w, x.shape[3])) >= 6}
    wide = min(flat or WIDTHS, key=lambda w: -(-x.shape[4] * size // w) * (w + MORE) * sqrt(8 / flat.get(w, 8)))
    fit = [t for t in (256, 192) if t * size % 128 == 0 and _fit(p, wide, t + 32 // size) >= 3]
    return _config(p, wide, fit[0] if fit and not flat else 128, bool(flat))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    x = p["x"]
    step = 128 // x.itemsize
    flat = [_config(p, w, step, True) for w in WIDTHS if _flat(p) and _fit(p, w, x.shape[3])]
    return flat + [_config(p, w, t * step, False) for w in WIDTHS for t in range(1, TALL + 1) if _fit(p, w, t * step + 32 // x.itemsize)]


def _config(p: Problem, wide: int, tall: int, flat: bool) -> dict[str, Any]:
    """Registers for eight blocks where more than six fit."""
    rows = p["x"].shape[3] if flat else tall + 32 // p["x"].itemsize
    resident = 8 if _fit(p, wide, rows) > 6 and p.device.arch != 89 else 6
    return {"wide": wide, "tall": tall, "flat": int(flat), "threads": THREADS, "resident": resident, "group": 16}


def _fit(p: Problem, wide: int, rows: int) -> int:
    """Blocks of a multiprocessor with tiles of so many rows: its shared memory holds them, and eight of their threads."""
    step = p["x"].strides[3]
    tile = rows * (wide + 16 + step * p["x"].itemsize % 16 + (0 if step % 2 else p["x"].itemsize)) + 16
    return 0 if tile > p.device.shared_per_block else min(8, (p.device.shared_per_block + RESERVED) // (tile + RESERVED))


def _flat(p: Problem) -> bool:
    """Whether a tile may hold all rows: of one matrix, whose transposed rows follow each other and have at least a pack."""
    x = p["x"]
    return x.shape[0] * x.shape[1] * x.shape[2] == 1 and p["out"].strides[4] == x.shape[3] and x.shape[3] * x.itemsize >= 16
