"""The configs of kernels in cuTile and CuTe DSL that process rows of [R, C, ...]: softmax and rms_norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooftop.core.spec import Launch, Problem, pow2

MOST, MOST_WARPS = 8, 16  # vectors a thread, warps, in CuTe: more of them have too few registers each


@dataclass(frozen=True)
class Tiles:
    """Of cuTile. `rows` × `columns` elements at a time by `warps` warps; `way`: "once", "tile" (persistent, `blocks` a multiprocessor) or "loop"."""

    way: str
    rows: int
    columns: int
    warps: int
    blocks: int = 0  # "tile": resident blocks a multiprocessor; else 0
    tma: bool = False
    occupancy: int = 0  # resident blocks a multiprocessor, for which the compiler limits the registers; 0: the compiler decides


def tiles(p: Problem, copied: bool) -> Tiles:
    """Measured on an H200: bytes in flight a multiprocessor decide, so blocks are limited to 64 registers a thread if TMA loads the rows
    (`copied`) with a warp of its own."""
    rows, columns = p["x"].shape[:2]
    wide = max(16, pow2(columns))
    if wide > 16384:
        return Tiles("loop", 1, 8192, 8)
    lanes = max(1, min(4096 // wide, pow2(rows)))
    while lanes > 1 and -(-rows // lanes) < 4 * p.device.sms:
        lanes //= 2
    if lanes * wide >= 4096 and copied:
        small = p["x"].itemsize * lanes * wide <= 16384
        return Tiles("once", lanes, wide, 4 if small else 8, tma=True, occupancy=4 if small else 2)
    return Tiles("once", lanes, wide, 8 if lanes * wide >= 4096 else 4)


def all_tiles(p: Problem, lanes: int) -> list[Tiles]:
    """More of them, for tuning, with so many rows."""
    wide = max(16, pow2(p["x"].shape[1]))
    if wide > 16384:
        return [Tiles("loop", 1, n, w, tma=tma) for n in (4096, 8192) for w in (4, 8) for tma in (False, True)]
    found = [Tiles("once", lanes, wide, w, tma=tma, occupancy=o) for w in (4, 8) for tma in (False, True) for o in (0, 2, 4)]
    return found + [Tiles("tile", lanes, wide, w, n, tma, n) for w in (4, 8) for tma in (False, True) for n in (1, 2, 3, 4)]


def launched(p: Problem, config: Tiles, args: Mapping[str, Any], ways: Mapping[str, Any]) -> list[Launch]:
    """`ways`: the kernel of each way."""
    rows, options = p["x"].shape[0], {"num_worker_warps": config.warps, **({"occupancy": config.occupancy} if config.occupancy else {})}
    if config.way == "loop":
        return [Launch(ways["loop"], (rows,), dict(args), options=options)]
    count = -(-rows // config.rows)
    blocks = count if config.way == "once" else min(count, config.blocks * p.device.sms)
    return [Launch(ways[config.way], (blocks,), {**args, "ROWS": config.rows}, options=options)]


@dataclass(frozen=True)
class Vectors:
    """Of CuTe. `warps` warps hold a row, each thread `vectors` times `width` elements."""

    width: int
    vectors: int
    warps: int


def too_wide(p: Problem, width: int) -> str | None:
    columns, most = p["x"].shape[1], MOST * 32 * MOST_WARPS * width
    return f"holds rows of up to {most} columns here; given {columns}" if columns > most else None


def vectors(p: Problem, width: int, each: int) -> Vectors:
    """About `each` vectors of `width` elements a thread."""
    count, warps = -(-p["x"].shape[1] // width), 1
    while warps < MOST_WARPS and 32 * warps * each < count:
        warps *= 2
    return Vectors(width, max(1, -(-count // (32 * warps))), warps)
