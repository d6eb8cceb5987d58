"""What the kernels of cumsum along rows in CUDA C++ have in common: rows as packs of 16 bytes, and which rows they take."""

from __future__ import annotations

from rooftop.core.spec import Problem

THREADS = 256  # of cumsum__rows__cuda_sm80.cu
# packs of a thread there if a row is one tile, by element size: packs of eight elements take more registers while they are added
WHOLE = {2: 6, 4: 8}
TILE = 2048  # packs of a tile of cumsum__look_back__cuda_sm90.cu
FEW = 64  # rows up to which tiles may wait for their predecessors: with more, those are complete before a tile is loaded


def packs(p: Problem) -> int:
    """Packs of 16 bytes that contain a row, wherever it starts."""
    x = p["x"]
    per = 16 // x.itemsize
    return -(-x.shape[1] // per) if x.shape[0] == 1 or x.strides[0] % per == 0 else -(-(x.shape[1] + per - 1) // per)


def even(p: Problem) -> bool:
    """Whether all rows begin and end on packs."""
    x = p["x"]
    return x.shape[1] * x.itemsize % 16 == 0 and (x.shape[0] == 1 or x.strides[0] * x.itemsize % 16 == 0)


def refuses(p: Problem) -> str | None:
    """Why these are no rows that lie so that both tensors can be read and written in packs, or None."""
    x, out = p["x"], p["out"]
    if x.numel == 0:
        return "there is nothing to add"
    if x.shape[2] != 1:
        return "takes rows, not columns"
    if x.shape[1] > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return "neighbours of a row must be neighbours in memory"
    if x.align % 16 or out.align % 16:
        return "both tensors must start on 16-byte boundaries"
    if x.shape[0] > 1 and (x.strides[0] - out.strides[0]) * x.itemsize % 16:
        return "each row of both tensors must start at the same distance from a 16-byte boundary"
    return None


def too_large(p: Problem, tiles: int) -> str | None:
    """Why rows of so many tiles are too many for 32-bit counters, or None."""
    x = p["x"]
    if x.shape[1] >= 2**31 - 2**17 or x.shape[0] * tiles >= 2**31:
        return "takes rows of fewer than 2**31 - 2**17 elements, and fewer than 2**31 tiles"
    return None
