"""Which layout is the fastest for a product: a model of each kernel's time, with rates measured on one card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rooftop.sparse import two_four
from rooftop.sparse.indices import BLOCKS
from rooftop.sparse.tensor import SparseTensor

# Rates of an H200 at 4096 to 16384; another card is taken to have them in proportion of its multiprocessors and clock.
DENSE = {2: 375e12, 4: 25e12}  # products a second of the dense one, by bytes of an element
SEMI = 500e12  # products a second of 2:4, those with zeros counted
BLOCK = {8: 0.04, 16: 0.10, 32: 0.22, 64: 0.40, 128: 0.55}  # share of the dense rate, by the smaller side of a block
ROWS = 15e12  # bytes a second of rows of b that come from L2 and L1, of "csr"
ELEMENTS = 1.4e12  # bytes a second of the elements of "csr" themselves
MEMORY = 4.0e12  # bytes a second
START = 4e-6  # seconds of the launches of a product
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
        """The fastest that is not dense."""
        return next(w for w in self.ways if w.layout != "dense")

    def __str__(self) -> str:
        lines = (f"{w.layout:5} {f'{w.block[0]} x {w.block[1]}' if w.block else '':9} {w.stored:12} stored {w.seconds * 1e6:10.1f} µs" for w in self.ways)
        return "\n".join(lines)


def advise(x: SparseTensor | Tensor, n: int) -> Advice:
    """Predicted seconds of S b with `n` columns of b, for each layout that can hold `x` and for the dense product. The blocks of "bsr" are square.

    `x` is a SparseTensor or a dense [M, K]; it is read, so the device is waited for. Raises TypeError for another, ValueError for n below 1.

    A model, not a measurement: rates were measured on matrices whose elements lie at random. Elements that share columns, as those of a mesh, are faster in
    "csr"."""
    if not isinstance(x, (SparseTensor, torch.Tensor)):
        raise TypeError(f"advise: x is a {type(x).__name__}; it must be a SparseTensor or a tensor")
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"advise: n is {n!r}; it must be a whole number of at least 1")
    s = x.contiguous() if isinstance(x, SparseTensor) else SparseTensor.from_dense(x, "coo")
    rows, columns, _ = s._coordinates()
    (m, k), size, nnz = s.size, s.dtype.itemsize, int(rows.numel())
    pace = _pace(s.device)
    width = 2 if size <= 2 else 4
    beside = (k + m) * n * size  # bytes of b and of the result

    def way(layout: str, block: tuple[int, int] | None, stored: int, busy: float, bytes_: float) -> Predicted:
        return Predicted(layout, block, stored, START + max(busy, (bytes_ + beside) / MEMORY) / pace)

    found = [way("dense", None, m * k, m * k * n / DENSE[width], m * k * size)]
    vectors = max(n * size, 32)  # a row of b comes in sectors
    found.append(way("csr", None, nnz, nnz * vectors / ROWS + nnz * (4 + size) / ELEMENTS, nnz * (4 + size)))
    r, c = rows.long(), columns.long()
    for side in BLOCKS:
        across = max(1, -(-k // side))
        blocks = int(torch.unique(r // side * across + c // side).numel())
        stored = blocks * side * side
        found.append(way("bsr", (side, side), stored, stored * max(n, 64) / (DENSE[width] * BLOCK[side]), stored * size))
    if size == 2 and nnz and int(torch.bincount(r * (-(-k // 4)) + c // 4).amax()) <= 2:
        kept = m * 2 * -(-k // 4)
        found.append(way("2:4", None, kept, m * k * max(n, 128) / SEMI, kept * size + 4 * _words(m, k)))
    return Advice(tuple(sorted(found, key=lambda w: w.seconds)))


def _words(m: int, k: int) -> int:
    high, wide, lanes, words = two_four.meta_shape(m, k)
    return high * wide * lanes * words


def _pace(device: Any) -> float:
    """How many times as fast as the card that the rates are of."""
    if device.type != "cuda":
        return 1.0
    return torch.cuda.get_device_properties(device).multi_processor_count / MULTIPROCESSORS
