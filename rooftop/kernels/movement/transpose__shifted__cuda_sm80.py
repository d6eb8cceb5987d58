"""How transpose__shifted__cuda_sm80.cu divides a matrix into tiles: `wide` bytes of each row, so that the last tile of a row is nearly whole,
`tall` rows, and `flat`, whether a tile holds all rows."""

from __future__ import annotations

from math import ceil
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem

WIDTHS = (256, 224, 192, 160, 128)
TALL = 8  # steps of `tall`, at most; a step is 128 bytes of a column
MORE = 48  # bytes of a tile's row that cost time besides its own: the pack shared with the next tile, and what a block starts with
START = 24 << 10  # bytes that a block would read in the time that it takes besides: to start, and for the first to arrive
RESERVED = 1024  # bytes of shared memory that the driver takes from each block
THREADS, RESIDENT = 256, 6  # blocks of a multiprocessor that 40 registers allow; the 32 for eight take 2 to 14 % more time


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The widest tiles, unless narrower ones waste less of the last one; flat if six blocks fit. Else as tall as takes the least time: the waves of blocks,
    of the last one also half of what it leaves idle, each as long as a block reads. On an H200 1.2 % more, over five matrices of 19 to 54 MB, than the
    best of all heights and widths; 192 rows of any matrix 2.0."""
    x = p["x"]
    size, flat = x.itemsize, [w for w in WIDTHS if _flat(p) and _fit(p, w, x.shape[3]) == RESIDENT]
    wide = min(flat or WIDTHS, key=lambda w: -(-x.shape[4] * size // w) * (w + MORE))
    if flat:
        return _config(wide, 128 // size, True)

    def cost(tall: int) -> float:
        blocks = x.shape[0] * x.shape[1] * x.shape[2] * -(-(x.shape[3] + 32 // size - 1) // tall) * -(-x.shape[4] * size // wide)
        waves = blocks / (p.device.sms * _fit(p, wide, tall + 32 // size))
        return (waves + ceil(waves)) / 2 * ((tall + 32 // size) * min(x.shape[4] * size, wide) + START)

    return _config(wide, min(_heights(p, wide), key=cost), False)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    flat = [_config(w, 128 // p["x"].itemsize, True) for w in WIDTHS if _flat(p) and _fit(p, w, p["x"].shape[3])]
    return flat + [_config(w, tall, False) for w in WIDTHS for tall in _heights(p, w)]


def _config(wide: int, tall: int, flat: bool) -> dict[str, Any]:
    return {"wide": wide, "tall": tall, "flat": int(flat), "threads": THREADS, "group": 16}


def _heights(p: Problem, wide: int) -> list[int]:
    step = 128 // p["x"].itemsize
    return [t * step for t in range(1, TALL + 1) if _fit(p, wide, t * step + 32 // p["x"].itemsize)]


def _fit(p: Problem, wide: int, rows: int) -> int:
    """Blocks of a multiprocessor with tiles of so many rows: its shared memory holds them, and six of their threads."""
    step = p["x"].strides[3]
    tile = rows * (wide + 16 + step * p["x"].itemsize % 16 + (0 if step % 2 else p["x"].itemsize)) + 16
    return 0 if tile > p.device.shared_per_block else min(RESIDENT, (p.device.shared_per_block + RESERVED) // (tile + RESERVED))


def _flat(p: Problem) -> bool:
    """Whether a tile may hold all rows: of one matrix, whose transposed rows follow each other and have at least a pack."""
    x = p["x"]
    return x.shape[0] * x.shape[1] * x.shape[2] == 1 and p["out"].strides[4] == x.shape[3] and x.shape[3] * x.itemsize >= 16
