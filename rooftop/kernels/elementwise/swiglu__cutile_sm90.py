"""y = silu(a) · b in cuTile, a and b two tensors or the halves of one. Contract: rooftop/ops/swiglu.py

Every tensor is [R, C] with contiguous rows, or one row if there are no gaps between rows. One block per tile."""

from __future__ import annotations

from dataclasses import dataclass

from rooftop.core.spec import Launch, Problem, pow2
from rooftop.kernels._device.cutile import ct


def swiglu(
    a, b, y, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], PACKED: ct.Constant[bool], EXACT: ct.Constant[bool], TMA: ct.Constant[bool]
):
    across = ct.num_tiles(y, axis=1, shape=(ROWS, COLUMNS))
    i, j = ct.bid(0) // across, ct.bid(0) % across
    if PACKED:  # y has half the columns of a
        half = y.shape[1]
        first, second = a.slice(axis=1, start=0, stop=half), a.slice(axis=1, start=half, stop=2 * half)
    else:
        first, second = a, b
    gate = ct.load(first, (i, j), (ROWS, COLUMNS), allow_tma=TMA).astype(ct.float32)
    value = ct.load(second, (i, j), (ROWS, COLUMNS), allow_tma=TMA).astype(ct.float32)
    if EXACT:
        found = gate / (1.0 + ct.exp(-gate)) * value
    else:
        found = gate * (1.0 / (1.0 + ct.exp2(-1.4426950408889634 * gate))) * value
    ct.store(y, (i, j), found.astype(y.dtype), allow_tma=TMA)


@dataclass(frozen=True)
class Config:
    """Tiles of `rows` × `columns`, `warps` warps."""

    rows: int
    columns: int
    warps: int
    tma: bool = False


def supports(p: Problem) -> str | None:
    y = p["y"]
    if p.extra:
        return f"takes no {' and no '.join(p.extra)}"
    if y.numel == 0:
        return "there is nothing to compute"
    if -(-y.shape[0] // choose(p).rows) * -(-y.shape[1] // choose(p).columns) >= 2**31:
        return "more blocks than one launch may have"
    return None


def choose(p: Problem) -> Config:
    """16 bytes a thread and tensor: the fastest on an H200."""
    rows, columns = p["y"].shape
    size = 2048 // p["y"].itemsize
    wide = min(size, pow2(columns))
    return Config(min(size // wide, pow2(rows)), wide, 4)


def configs(p: Problem) -> list[Config]:
    rows, columns = p["y"].shape
    return [
        Config(min(size // wide, pow2(rows)), wide, warps, tma)
        for size in (1024, 2048, 4096, 8192) for wide in (min(size, pow2(columns)),) for warps in (4, 8) for tma in (False, True)
    ]


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["y"].shape
    packed = p.get("b") is None
    args = {
        "a": "a", "b": "a" if packed else "b", "y": "y", "ROWS": config.rows, "COLUMNS": config.columns, "PACKED": packed,
        "EXACT": p["y"].dtype == "f32", "TMA": config.tma,
    }
    tiles = -(-rows // config.rows) * -(-columns // config.columns)
    return [Launch(swiglu, (tiles,), args, options={"num_worker_warps": config.warps})]
