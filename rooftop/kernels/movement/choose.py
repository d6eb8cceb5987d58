"""Which kernels move and add: cumsum, gemv, reduce, transpose. Measured on an H200 where a figure is given; configs are those of the
kernels' files."""

from __future__ import annotations

from math import gcd

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Meta, Problem
from rooftop.kernels.movement import _cumsum_rows

PIECE, FILLED = 128, 128 * 1024  # bytes of a row in a tile of Triton's; of the tiles that a multiprocessor holds at once


def cumsum(p: Problem, named: str = "") -> Chosen | str:
    x = p["x"]
    packs = 1 if named else _cumsum_rows.packs(p)
    tiles = -(-packs // _cumsum_rows.TILE)
    order = []
    if p.device.arch >= 90 and x.shape[0] <= _cumsum_rows.FEW and tiles > 1 and x.shape[0] * tiles >= 2 * p.device.sms:
        order.append(("cumsum__look_back__cuda_sm90", "few long rows: tiles are loaded while others wait for the sum before them"))
    order.append(("cumsum__columns__cuda_sm80", "columns"))
    one_tile = ("cumsum__triton", "16-bit rows of one tile: as fast as a copy")
    rows = ("cumsum__rows__cuda_sm80", "rows in tiles: float32 sums in pairs and reverse sums cost little")
    whole = packs <= _cumsum_rows.THREADS * _cumsum_rows.WHOLE.get(x.itemsize, 0)
    order += [rows, one_tile] if x.itemsize == 4 or p.option("reverse") or not whole else [one_tile, rows]
    return in_order(p, named, (*order, ("cumsum__look_back__cuda_sm90", "the only kernel that takes it")))


def gemv(p: Problem, named: str = "") -> Chosen | str:
    """CUDA C++ for one 16-bit vector with aligned packs (7 to 23 % faster than Triton), and for several without; Triton's tensor cores for
    several aligned vectors, and its masked loads for one vector of rows that begin anywhere."""
    a, vectors = p["a"], p["x"].shape[1]
    _, down, along = a.strides
    if a.dtype == "f32":
        cuda = vectors > 1
    elif along == 1 and not (down == 1 and a.shape[2] == 1):  # rows of a are contiguous along K
        cuda = _whole_packs(p) == (vectors == 1)
    else:
        cuda = vectors == 1 or (_columns_of_a_thread(p) * a.itemsize < 16 and vectors <= 8)
    kernels = ("gemv__cuda_sm80", "loads of 16 bytes by every thread"), ("gemv__triton", "tensor cores, or masked loads")
    return in_order(p, named, kernels if cuda else kernels[::-1])


def _whole_packs(p: Problem) -> bool:
    """Whether packs of 16 bytes along K are aligned in both operands."""
    n = 16 // p["a"].itemsize
    if p["a"].shape[2] % n:
        return False
    for m in (p["a"], p["x"]):
        if m.align % 16 or (m.shape[0] > 1 and m.strides[0] % n) or (m.shape[1] > 1 and m.strides[1] % n):
            return False
    return True


def _columns_of_a_thread(p: Problem) -> int:
    """Neighbouring rows of y of a thread if columns are contiguous: at most 16 bytes of a, and 64 accumulators."""
    a = p["a"]
    wide = gcd(16 // a.itemsize, a.shape[1])
    while a.align % (wide * a.itemsize) or any([a.strides[i] % wide for i in (0, 2) if a.shape[i] > 1]) or wide * p["x"].shape[1] > 64:
        wide //= 2
    return wide


def reduce(p: Problem, named: str = "") -> Chosen | str:
    return in_order(p, named, (("reduce__cuda_sm80", "one pass, split where results are few"), ("reduce__triton", "any layout")))


def transpose(p: Problem, named: str = "") -> Chosen | str:
    """Triton's tile for an exchange whose rows all begin on 16 bytes (1.01 to 1.56 times as fast), unless one column of its tiles fills the device, so that
    pieces of 128 bytes of rows are read (461736 x 448 bfloat16 291 us, by the shifted tiles 227); CUDA C++ there, where rows begin anywhere,
    where the contiguous dimension stays contiguous, and for matrices narrower than a tile."""
    x, out = p["x"], p["out"]
    rows, columns = x.shape[3:]
    size = x.itemsize
    order = []
    whole = _whole_rows(x) and _whole_rows(out)
    pieces = columns * size > PIECE and rows * PIECE >= FILLED * p.device.sms
    if whole and not pieces and min(rows, columns) >= 24 and x.strides[4] == 1 and out.strides[3] == 1:
        order.append(("transpose__triton", "all rows begin on 16 bytes"))
    if max(rows, columns) * size >= 2048:
        order.append(("transpose__planes__cuda_sm80", "two to eight planes: packs are interleaved in registers"))
    alone = x.shape[0] * x.shape[1] * x.shape[2] == 1  # tiles of others hold several small matrices
    if rows >= (32 if alone else 256) and columns * size >= 96:  # a quarter of a tile's height and a third of its width, at least
        order.append(("transpose__shifted__cuda_sm80", "rows begin anywhere: tiles keep their offset in shared memory"))
    if columns * size % 16 or rows * size % 16:
        order.append(("transpose__spans__cuda_sm80", "small matrices one after another: whole spans of them"))
    order += [
        ("transpose__cuda_sm80", "any layout, by words"), ("transpose__planes__cuda_sm80", "planes"),
        ("transpose__shifted__cuda_sm80", "shifted rows"), ("transpose__spans__cuda_sm80", "small matrices"), ("transpose__triton", "any layout"),
    ]
    return in_order(p, named, order)


def _whole_rows(m: Meta) -> bool:
    """Whether each row begins on 16 bytes."""
    if m.align % 16:
        return False
    per = 16 // m.itemsize
    return not any([step % per for n, step in zip(m.shape, m.strides, strict=True) if n > 1 and step > 1])
