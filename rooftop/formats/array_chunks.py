"""Arrays cut into chunks and put together again, a part of bounded size at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from threading import local
from typing import TypeVar

import numpy as np

from rooftop.formats.container import Header

LIMIT = 1 << 18  # values at a time: what is worked out of them stays in a core's cache

THREADS = 16  # at most: each holds some hundred bytes a value

_thread = local()  # `pooled` in the threads of a pool

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Part:
    """Chunks `first` to `last` - 1: a box of the grid, in whole chunks but at its ends."""

    first: int
    last: int
    box: tuple[slice, slice, slice, slice]  # of [batch, Z, Y, X]
    tiles: tuple[int, int, int, int]
    tile: tuple[int, int, int]

    @property
    def extents(self) -> tuple[int, int, int, int]:
        return tuple(s.stop - s.start for s in self.box)

    @property
    def whole(self) -> bool:
        """Whether no chunk of it is cut short."""
        return all(n == a * t for n, a, t in zip(self.extents[1:], self.tiles[1:], self.tile, strict=True))

    def cut(self, grid: np.ndarray) -> np.ndarray:
        """[chunks, values of a chunk], filled up with zeros."""
        sub = grid[self.box]
        b, nz, ny, nx = self.tiles
        tz, ty, tx = self.tile
        if not self.whole:
            sub = np.pad(sub, [(0, 0), *((0, a * t - n) for n, a, t in zip(self.extents[1:], self.tiles[1:], self.tile, strict=True))])
        return np.ascontiguousarray(
            sub.reshape(b, nz, tz, ny, ty, nx, tx).transpose(0, 1, 3, 5, 2, 4, 6)
        ).reshape(self.last - self.first, tz * ty * tx)

    def join(self, values: np.ndarray, grid: np.ndarray) -> None:
        """The reverse of `cut`: into the grid."""
        b, nz, ny, nx = self.tiles
        tz, ty, tx = self.tile
        full = values.reshape(b, nz, ny, nx, tz, ty, tx).transpose(0, 1, 4, 2, 5, 3, 6).reshape(b, nz * tz, ny * ty, nx * tx)
        _, z, y, x = self.extents
        grid[self.box] = full[:, :z, :y, :x]

    def valid(self) -> np.ndarray | None:
        """bool [chunks, values of a chunk]: which are the array's. None: all."""
        if self.whole:
            return None
        inside = [(np.arange(a * t) < n).reshape(a, t) for n, a, t in zip(self.extents[1:], self.tiles[1:], self.tile, strict=True)]
        z, y, x = inside
        found = z[:, None, None, :, None, None] & y[None, :, None, None, :, None] & x[None, None, :, None, None, :]
        b = self.tiles[0]
        return np.broadcast_to(found, (b, *found.shape)).reshape(self.last - self.first, -1)

    def counts(self) -> np.ndarray:
        """i64 [chunks]: values of each."""
        z, y, x = (np.minimum(t, n - t * np.arange(a)) for n, a, t in zip(self.extents[1:], self.tiles[1:], self.tile, strict=True))
        one = z[:, None, None] * y[None, :, None] * x[None, None, :]
        return np.broadcast_to(one, (self.tiles[0], *one.shape)).reshape(-1).astype(np.int64)


def parts(h: Header, first: int = 0, last: int | None = None, limit: int = LIMIT) -> Iterator[Part]:
    """All chunks in order, about `limit` values at a time; with `first` and `last` those parts alone that hold one of them."""
    if not h.chunks:
        return
    _, z, y, x = h.grid
    nb, nz, ny, nx = h.tiles
    tz, ty, tx = h.tile
    last = h.chunks if last is None else last
    row = tz * ty * nx * tx  # values of a row of chunks
    steps_x = nx if row <= limit else max(1, limit // (tz * ty * tx))
    steps_y = 1 if steps_x < nx else max(1, min(ny, limit // row))
    steps_z = 1 if steps_y < ny else max(1, min(nz, limit // (row * ny)))
    steps_b = 1 if steps_z < nz else max(1, min(nb, limit // (row * ny * nz)))
    for b0 in range(0, nb, steps_b):
        b1 = min(b0 + steps_b, nb)
        for z0 in range(0, nz, steps_z):
            z1 = min(z0 + steps_z, nz)
            for y0 in range(0, ny, steps_y):
                y1 = min(y0 + steps_y, ny)
                for x0 in range(0, nx, steps_x):
                    x1 = min(x0 + steps_x, nx)
                    at = ((b0 * nz + z0) * ny + y0) * nx + x0
                    tiles = (b1 - b0, z1 - z0, y1 - y0, x1 - x0)
                    end = at + tiles[0] * tiles[1] * tiles[2] * tiles[3]
                    if at < last and end > first:
                        box = (
                            slice(b0, b1), slice(z0 * tz, min(z1 * tz, z)), slice(y0 * ty, min(y1 * ty, y)), slice(x0 * tx, min(x1 * tx, x))
                        )
                        yield Part(at, end, box, tiles, h.tile)


def mapped(do: Callable[[P], R], found: Iterable[P]) -> list[R]:
    """What `do` makes of each part, in order. A thread a core: NumPy's loops run side by side."""
    return list(each(do, list(found)))


def workers() -> int:
    """How many threads work side by side."""
    return min(cpu_count() or 1, THREADS)


def each(do: Callable[[P], R], found: Iterable[P]) -> Iterator[R]:
    """The same one after the other, as they are asked for: threads are at most two parts each ahead, so that few results are held. In a
    thread of such a pool it is all done by that thread: threads do not multiply."""
    count = min(workers(), len(found) if isinstance(found, Sized) else THREADS)
    if count < 2 or getattr(_thread, "pooled", False):
        yield from map(do, found)
        return
    with ThreadPoolExecutor(count, initializer=setattr, initargs=(_thread, "pooled", True)) as pool:
        ahead: deque[Future[R]] = deque()
        try:
            for part in found:
                ahead.append(pool.submit(do, part))
                if len(ahead) > 2 * count:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for one in ahead:  # after an error nothing more is begun
                one.cancel()
