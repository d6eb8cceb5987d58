"""Softmax of rows x[R, C] in cuTile. Contract: rooftop/ops/softmax.py

Rows that fit a tile are read once; blocks may be persistent, so that the next rows are loaded while these are computed. Longer rows are
read twice, as in
softmax__triton: once for maximum and sum together (Milakov & Gimelshein 2018), then from the end backwards."""

from __future__ import annotations

from rooftop.core.spec import Launch, Problem, View, pow2
from rooftop.kernels._device.cutile import ct
from rooftop.kernels.norm._tile_rows import Tiles as Config
from rooftop.kernels.norm._tile_rows import all_tiles, launched, tiles

LOWEST = -3.4028234663852886e38  # the identity of the maximum: -inf would give -inf - -inf = NaN
LOG2E = 1.4426950408889634


def _exp(v, EXACT):
    """exp(v): for float32 to its last digits, for 16 bits by the hardware's exp2."""
    if EXACT:
        return ct.exp(v)
    return ct.exp2(v * LOG2E)


def _quotient(e, s, EXACT):
    if EXACT:
        return e / s
    return e * (1.0 / s)


def _load(x, r, k, ROWS, COLUMNS, PADDED, TMA):
    """Elements as float32. TMA can only fill with zeros, so rows that end within a tile are loaded without it."""
    if PADDED:
        return ct.load(x, (r, k), (ROWS, COLUMNS), padding_mode=ct.PaddingMode.NEG_INF, allow_tma=False).astype(ct.float32)
    return ct.load(x, (r, k), (ROWS, COLUMNS), allow_tma=TMA).astype(ct.float32)


def _rows(x, y, r, ROWS, COLUMNS, EXACT, PADDED, TMA):
    v = _load(x, r, 0, ROWS, COLUMNS, PADDED, TMA)
    m = ct.maximum(ct.max(v, axis=1, keepdims=True), LOWEST)
    e = _exp(v - m, EXACT)
    s = ct.sum(e, axis=1, keepdims=True)
    ct.store(y, (r, 0), _quotient(e, s, EXACT).astype(y.dtype), allow_tma=False)


def once(
    x, y, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], EXACT: ct.Constant[bool], PADDED: ct.Constant[bool], TMA: ct.Constant[bool]
):
    """Whole rows, ROWS of them a block."""
    _rows(x, y, ct.bid(0), ROWS, COLUMNS, EXACT, PADDED, TMA)


def tile(
    x, y, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], EXACT: ct.Constant[bool], PADDED: ct.Constant[bool], TMA: ct.Constant[bool]
):
    """Whole rows, ROWS at a time; a persistent block loops over them."""
    for r in range(ct.bid(0), ct.num_tiles(x, axis=0, shape=(ROWS, COLUMNS)), ct.num_blocks(0)):
        _rows(x, y, r, ROWS, COLUMNS, EXACT, PADDED, TMA)


def loop(x, y, COLUMNS: ct.Constant[int], EXACT: ct.Constant[bool], PADDED: ct.Constant[bool], TMA: ct.Constant[bool]):
    """One row, COLUMNS at a time, twice. Each position of the tile keeps its own maximum and sum until the end (online softmax)."""
    r = ct.bid(0)
    rounds = ct.num_tiles(x, axis=1, shape=(1, COLUMNS))
    m = ct.full((1, COLUMNS), LOWEST, ct.float32)
    s = ct.zeros((1, COLUMNS), ct.float32)
    for k in range(rounds):
        v = _load(x, r, k, 1, COLUMNS, PADDED, TMA)
        e = _exp(-ct.abs(v - m), EXACT)  # one of exp(v - m') and exp(m - m') is 1, this is the other
        s = ct.where(v > m, s * e + 1.0, s + e)
        m = ct.maximum(m, v)
    most = ct.max(m, axis=1, keepdims=True)
    total = ct.sum(s * _exp(m - most, EXACT), axis=1, keepdims=True)
    for k in range(rounds):
        at = rounds - 1 - k
        v = _load(x, r, at, 1, COLUMNS, PADDED, TMA)
        ct.store(y, (r, at), _quotient(_exp(v - most, EXACT), total, EXACT).astype(y.dtype), allow_tma=False)


def supports(p: Problem) -> str | None:
    x, y = p["x"], p["y"]
    if x.dtype not in ("f32", "f16", "bf16") or y.dtype != x.dtype:
        return f"takes f32, f16 or bf16, the same for x and y; given {x.dtype} and {y.dtype}"
    if x.numel == 0:
        return "there is nothing to compute"
    if x.shape[2] != 1:
        return f"takes rows; given {x.shape[2]} inner positions"
    if x.shape[1] > 1 and (x.strides[1] != 1 or y.strides[1] != 1):
        return f"takes rows of neighbouring elements; given strides {x.strides[1]} and {y.strides[1]}"
    if max(x.shape) >= 2**31:
        return f"takes fewer than 2**31 rows and columns; given {x.shape[0]} and {x.shape[1]}"
    return None


def _copied(p: Problem) -> bool:
    """Whether TMA loads the rows: they start on 16 bytes and end with the tile."""
    x = p["x"]
    wide = 16 // x.itemsize
    return x.align >= 16 and x.strides[0] % wide == 0 and x.shape[1] == pow2(x.shape[1])


def choose(p: Problem) -> Config:
    return tiles(p, _copied(p))


def configs(p: Problem) -> list[Config]:
    return all_tiles(p, choose(p).rows)


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns, _ = p["x"].shape
    tensors = {n: View(n, (rows, columns), (p[n].strides[0], 1)) for n in ("x", "y")}
    args = {
        **tensors, "COLUMNS": config.columns, "EXACT": p["y"].dtype == "f32", "PADDED": columns % config.columns != 0, "TMA": config.tma
    }
    return launched(p, config, args, {"once": once, "tile": tile, "loop": loop})
