"""How slices.cuh shares rows out over the blocks of clusters, as numbers: what its kernels are compiled and launched with.

A row is packs of 16 bytes. A block of a cluster has a slice of them, a thread `pieces` of the slice. Rows that start anywhere have up to two packs at
either end that are not whole; those four have places of their own, and a lane of the first warp each."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from rooftop.core.spec import Device, Meta

SHARED = 233472  # bytes of shared memory of a multiprocessor, of which each block takes SYSTEM beside its own
SHARED_OF_BLOCK = 232448
SYSTEM = 1024
EDGE = 4  # packs at the ends of a row that starts anywhere


@dataclass(frozen=True)
class Slices:
    """Rows of `columns` elements, `stride` apart. `aligned`: they start on 16 bytes and are whole packs."""

    columns: int
    itemsize: int
    stride: int
    aligned: bool

    @property
    def row_bytes(self) -> int:
        return self.columns * self.itemsize

    def threads(self, cluster: int, pieces: int) -> int:
        """Of a block: as many warps as its slice needs at `pieces` packs a thread. Where blocks divide an aligned row, lines of 128 bytes stay together."""
        line = 1 if cluster == 1 else 8 if self.aligned else 2
        packs = _ceil(self.row_bytes, 16) + (0 if self.aligned else 2)
        of_block = _ceil(packs, line * cluster) * line
        return 32 * _ceil(max(1, of_block - (0 if self.aligned else EDGE)), 32 * pieces)

    def slots(self, cluster: int, pieces: int) -> int:
        """Packs of shared memory that a block's slice takes."""
        return pieces * self.threads(cluster, pieces) + (0 if self.aligned else EDGE)

    def fit(self, cluster: int, pieces: int) -> int:
        """FIT of slices.cuh: 0 for rows that start anywhere, 2 where every thread has all of its packs, else 1."""
        if not self.aligned:
            return 0
        return 2 if self.row_bytes == 16 * cluster * pieces * self.threads(cluster, pieces) else 1

    def clusters(self, rows: int, room: int, group: int = 1) -> int:
        """Of a persistent kernel's grid, where `room` of them run at once: each takes as many rows as the others, in groups of `group`. Rows that start
        anywhere repeat their distance from 32 bytes with a period, and a cluster keeps to one distance: whole periods then."""
        if self.aligned:
            each = _ceil(max(rows, 1), room)
            return group * max(1, _ceil(_ceil(rows, each), group))
        sector = 32 // self.itemsize
        period = sector // gcd(self.stride, sector)
        period = period if period <= room else max(1, period // 2)
        return max(1, room // period) * period


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def starts_alike(*tensors: Meta | None) -> bool:
    """Whether row k starts equally far from 16 bytes in each of these tensors, for every k."""
    present = [m for m in tensors if m is not None]
    first = present[0]
    return all(m.align % 16 == 0 and (m.strides[0] - first.strides[0]) * first.itemsize % 16 == 0 for m in present)


def rows_aligned(m: Meta | None) -> bool:
    """Whether each row starts on 16 bytes; of a tensor of one dimension: whether it does."""
    if m is None:
        return True
    return m.align % 16 == 0 and (len(m.shape) < 2 or m.shape[0] <= 1 or m.strides[0] * m.itemsize % 16 == 0)


def fits(blocks: int, threads: int, shared: int, static: int) -> bool:
    """Whether so many blocks run on a multiprocessor at once."""
    return threads <= 1024 and 256 <= blocks * threads <= 2048 and blocks * (shared + SYSTEM + static) <= SHARED and shared + static <= SHARED_OF_BLOCK


def resident(card: Device, cluster: int, blocks: int) -> int:
    """Clusters that run at once, `blocks` blocks on a multiprocessor."""
    return card.resident(cluster) * blocks
