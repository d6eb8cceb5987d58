"""Predicts the fastest layout for a product, by a model of each kernel's time with rates measured on one card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rooftop.formats import two_four
from rooftop.ops.spmm_csr import counted
from rooftop.sparse.indices import BLOCKS
from rooftop.sparse.tensor import SparseTensor

# Rates of an H200 at 4096 to 16384; another card is taken to have them in proportion of its multiprocessors.
DENSE = {1: 680e12, 2: 400e12, 4: 25.5e12}  # products a second of the dense one, by bytes of an element
SEMI = {1: 920e12, 2: 500e12}  # products a second of 2:4, those with zeros counted
FEWEST = 320  # columns: 2:4 takes as long with fewer, but for
FEW, STREAMED = 64, 4.3e12  # up to 64, with which S is streamed: bytes of S a second
AS_MUCH, BY_TMA = 72, 1.15  # the columns that cost as much as S where threads load it; how much longer than S all of 64 take by TMA
FEWEST_32 = 52  # the same of the dense product in float32, from two columns on
BLOCK = {8: 0.06, 16: 0.11, 32: 0.29, 64: 0.65, 128: 0.82}  # share of the dense rate, by the side of a block
BLOCK_32 = {8: 0.3, 16: 0.45, 32: 0.5, 64: 0.49, 128: 0.4}  # the same of float32
SLICE = {8: 0.55e-6, 16: 0.65e-6, 32: 0.54e-6, 64: 0.27e-6, 128: 0.27e-6}  # seconds of 64 columns of a block row, one after another
SLICE_32, LONGEST = 0.43e-6, 2.5  # the same of float32; the longest row's blocks over the mean, in roots of the mean
ROWS, CLOSER = 10.5e12, 1.4  # bytes a second of rows of b that come from L2 and L1, of "csr"; times 1 + CLOSER · density
ELEMENTS = 8e12  # bytes a second of the elements of "csr" themselves
MEMORY = 4.0e12  # bytes a second
BESIDE = 6.0e12  # bytes a second of b and the result beside the products of blocks
START = {"dense": 4e-6, "2:4": 4e-6, "csr": 6e-6, "bsr": 5e-6}  # seconds of the launches of a product
MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Predicted:
    """One way to make a product: its layout ("dense" among them), the block of "bsr", the elements it stores, and seconds."""

    layout: str
    block: tuple[int, int] | None
    stored: int
    seconds: float


@dataclass(frozen=True)
class Advice:
    """All ways, the fastest first."""

    ways: tuple[Predicted, ...]

    @property
    def best(self) -> Predicted:
        return self.ways[0]

    @property
    def sparse(self) -> Predicted:
        """The fastest that is not dense. Raises ValueError where there is none."""
        found = next((w for w in self.ways if w.layout != "dense"), None)
        if found is None:
            raise ValueError("no sparse layout holds this matrix for a product: 8 bits are multiplied in 2:4 alone")
        return found

    def __str__(self) -> str:
        lines = (
            f"{w.layout:5} {f'{w.block[0]} x {w.block[1]}' if w.block else '':9} {w.stored:12} stored {w.seconds * 1e6:10.1f} µs"
            for w in self.ways
        )
        return "\n".join(lines)


def advise(x: SparseTensor | Tensor, n: int) -> Advice:
    """Predicted seconds of S b with `n` columns of b, for each layout that can hold `x` and for the dense product. The blocks of "bsr" are
    square.

    `x` is a SparseTensor or a dense [M, K]; it is read, so the call synchronises with the device. Raises TypeError for another, ValueError
    for n below 1.

    A model, not a measurement: rates were measured on matrices with random positions. Matrices whose rows share columns, like those of a
    mesh, are faster in "csr". Matrices of 8 bits are supported only in 2:4."""
    if not isinstance(x, (SparseTensor, torch.Tensor)):
        raise TypeError(f"advise: x is a {type(x).__name__}; it must be a SparseTensor or a tensor")
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"advise: n is {n!r}; it must be a whole number of at least 1")
    return predicted(facts(x), n)


@dataclass(frozen=True)
class Facts:
    """What the model reads of a matrix [m, k]: bytes of an element, elements that are not zero, blocks by their side, whether it is 2:4,
    and how many times as fast as the card of the rates its device is."""

    m: int
    k: int
    size: int
    nnz: int
    blocks: dict[int, int]
    semi: bool
    pace: float = 1.0


def facts(x: SparseTensor | Tensor) -> Facts:
    s = x.contiguous() if isinstance(x, SparseTensor) else SparseTensor.from_dense(x, "coo")
    rows, columns, _ = s._coordinates()
    (m, k), nnz = s.size, int(rows.numel())
    r, c = rows.long(), columns.long()
    blocks = {side: int(torch.unique(r // side * max(1, -(-k // side)) + c // side).numel()) for side in BLOCKS}
    semi = nnz > 0 and s.dtype.itemsize <= 2 and int(counted(r * -(-k // 4) + c // 4, m * -(-k // 4)).amax()) <= 2
    return Facts(m, k, s.dtype.itemsize, nnz, blocks, semi, _pace(s.device))


def predicted(f: Facts, n: int) -> Advice:
    """The model."""
    beside = (f.k + f.m) * n * max(f.size, 2)  # bytes of b and of the result

    def way(layout: str, block: tuple[int, int] | None, stored: int, seconds: float) -> Predicted:
        return Predicted(layout, block, stored, START[layout] + seconds / f.pace)

    dense = f.m * f.k
    columns = max(n, FEWEST_32) if f.size > 2 and n > 1 else n
    found = [way("dense", None, dense, max(dense * columns / DENSE[min(f.size, 4)], (dense * f.size + beside) / MEMORY))]
    if f.semi:
        kept = f.m * 2 * -(-f.k // 4)
        read = kept * f.size + 4 * _words(f.m, f.k)
        seconds = max(dense * max(n, FEWEST) / SEMI[f.size], (read + beside) / MEMORY)
        if n <= FEW and f.size == 2:
            seconds = min(seconds, read * min(1 + n / AS_MUCH, BY_TMA) / STREAMED)
        found.append(way("2:4", None, kept, seconds))
    if f.size > 1:
        density = f.nnz / max(1, dense)
        rows = f.nnz * max(n * f.size, 16) / (ROWS * (1 + CLOSER * density))
        found.append(way("csr", None, f.nnz, rows + f.nnz * (4 + f.size) / ELEMENTS + beside / MEMORY))
        for side, blocks in f.blocks.items():
            stored, share = blocks * side * side, (BLOCK_32 if f.size > 2 else BLOCK)[side]
            busy = stored * max(n, 64) / (DENSE[min(f.size, 4)] * share) + beside / BESIDE
            mean = blocks / max(1, -(-f.m // side))
            slice_ = SLICE_32 if f.size > 2 else SLICE[side]
            row = (mean + LONGEST * mean**0.5) * max(side, 16) / 64 * slice_  # the longest, which one multiprocessor makes
            rows_of_b = blocks * side * n * f.size if n <= FEW else 0  # which few columns read as they read the blocks: once for each
            found.append(way("bsr", (side, side), stored, max(busy, row, (stored * f.size + max(beside, rows_of_b)) / MEMORY)))
    return Advice(tuple(sorted(found, key=lambda w: w.seconds)))


def _words(m: int, k: int) -> int:
    high, wide, lanes, words = two_four.meta_shape(m, k)
    return high * wide * lanes * words


def _pace(device: Any) -> float:
    """How many times as fast as the card that the rates are of."""
    if device.type != "cuda":
        return 1.0
    return torch.cuda.get_device_properties(device).multi_processor_count / MULTIPROCESSORS
