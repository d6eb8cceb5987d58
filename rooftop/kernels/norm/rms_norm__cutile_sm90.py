"""y = rms_norm(x + residual) · weight + bias over the rows of [R, C] in cuTile. Contract: rooftop/ops/rms_norm.py

Rows that fit a tile are read once. Longer rows are read twice, the second time from the end backwards: the data read last are then still in
the L2."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, View
from rooftop.kernels._device.cutile import ct
from rooftop.kernels.norm._tile_rows import Tiles as Config
from rooftop.kernels.norm._tile_rows import all_tiles, launched, tiles


def _taken(x, residual, r, k, ROWS, COLUMNS, RESIDUAL, TMA):
    """Elements of x, or of its sum with the residual, rounded as it is returned."""
    v = ct.load(x, (r, k), (ROWS, COLUMNS), padding_mode=ct.PaddingMode.ZERO, allow_tma=TMA).astype(ct.float32)
    if RESIDUAL:
        v = v + ct.load(residual, (r, k), (ROWS, COLUMNS), padding_mode=ct.PaddingMode.ZERO, allow_tma=TMA).astype(ct.float32)
        v = v.astype(x.dtype).astype(ct.float32)
    return v


def _scale(squares, x, eps):
    """1 / sqrt(mean + eps), with one Newton step. For 0 and infinity the step would give NaN."""
    v = squares / ct.astype(x.shape[1], ct.float32) + eps
    near = ct.rsqrt(v)
    found = near + 0.5 * near * (1.0 - v * near * near)
    return ct.where(found == found, found, near)


def _affine(v, weight, bias, k, COLUMNS, WEIGHT, BIAS):
    if WEIGHT:
        v = v * ct.load(weight, (0, k), (1, COLUMNS), padding_mode=ct.PaddingMode.ZERO, allow_tma=False).astype(ct.float32)
    if BIAS:
        v = v + ct.load(bias, (0, k), (1, COLUMNS), padding_mode=ct.PaddingMode.ZERO, allow_tma=False).astype(ct.float32)
    return v


def _rows(x, residual, weight, bias, y, s, eps, r, ROWS, COLUMNS, RESIDUAL, WEIGHT, BIAS, TMA):
    v = _taken(x, residual, r, 0, ROWS, COLUMNS, RESIDUAL, TMA)
    if RESIDUAL:
        ct.store(s, (r, 0), v.astype(s.dtype), allow_tma=False)
    v = v * _scale(ct.sum(v * v, axis=1, keepdims=True), x, eps)
    ct.store(y, (r, 0), _affine(v, weight, bias, 0, COLUMNS, WEIGHT, BIAS).astype(y.dtype), allow_tma=False)


def once(
    x, residual, weight, bias, y, s, eps, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], RESIDUAL: ct.Constant[bool],
    WEIGHT: ct.Constant[bool], BIAS: ct.Constant[bool], TMA: ct.Constant[bool],
):
    """Whole rows, ROWS of them a block."""
    _rows(x, residual, weight, bias, y, s, eps, ct.bid(0), ROWS, COLUMNS, RESIDUAL, WEIGHT, BIAS, TMA)


def tile(
    x, residual, weight, bias, y, s, eps, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], RESIDUAL: ct.Constant[bool],
    WEIGHT: ct.Constant[bool], BIAS: ct.Constant[bool], TMA: ct.Constant[bool],
):
    """Whole rows, ROWS at a time; a persistent block loops over them."""
    for r in range(ct.bid(0), ct.num_tiles(x, axis=0, shape=(ROWS, COLUMNS)), ct.num_blocks(0)):
        _rows(x, residual, weight, bias, y, s, eps, r, ROWS, COLUMNS, RESIDUAL, WEIGHT, BIAS, TMA)


def loop(
    x, residual, weight, bias, y, s, eps, COLUMNS: ct.Constant[int], RESIDUAL: ct.Constant[bool], WEIGHT: ct.Constant[bool],
    BIAS: ct.Constant[bool], TMA: ct.Constant[bool],
):
    """One row, COLUMNS at a time, twice."""
    r = ct.bid(0)
    rounds = ct.num_tiles(x, axis=1, shape=(1, COLUMNS))
    squares = ct.zeros((1, COLUMNS), ct.float32)
    for k in range(rounds):
        v = _taken(x, residual, r, k, 1, COLUMNS, RESIDUAL, TMA)
        squares = squares + v * v
    scale = _scale(ct.sum(squares, axis=1, keepdims=True), x, eps)
    for k in range(rounds):
        at = rounds - 1 - k
        v = _taken(x, residual, r, at, 1, COLUMNS, RESIDUAL, TMA)
        if RESIDUAL:
            ct.store(s, (r, at), v.astype(s.dtype), allow_tma=False)
        ct.store(y, (r, at), _affine(v * scale, weight, bias, at, COLUMNS, WEIGHT, BIAS).astype(y.dtype), allow_tma=False)


def supports(p: Problem) -> str | None:
    x = p["x"]
    if p.extra:
        return "takes no addend"
    if x.dtype not in ("f32", "f16", "bf16"):
        return f"takes f32, f16 or bf16; given {x.dtype}"
    if x.numel == 0:
        return "there is nothing to compute"
    if max(x.shape) >= 2**31:
        return f"takes fewer than 2**31 rows and columns; given {x.shape[0]} and {x.shape[1]}"
    return None


def _copied(p: Problem) -> bool:
    """Whether TMA loads the rows: they start on 16 bytes."""
    wide = 16 // p["x"].itemsize
    return all(m.align >= 16 and m.strides[0] % wide == 0 for n in ("x", "residual") if (m := p.get(n)) is not None)


def choose(p: Problem) -> Config:
    return tiles(p, _copied(p))


def configs(p: Problem) -> list[Config]:
    return all_tiles(p, choose(p).rows)


def launches(p: Problem, config: Config) -> list[Launch]:
    columns = p["x"].shape[1]
    args: dict[str, Any] = {n: n if p.get(n) is not None else "x" for n in ("x", "residual", "y", "s")}
    args |= {n: View(n, (1, columns), (columns, 1)) if p.get(n) is not None else "x" for n in ("weight", "bias")}
    args |= {"eps": float(p.option("eps")), "COLUMNS": config.columns, "TMA": config.tma}
    args |= {n.upper(): p.get(n) is not None for n in ("residual", "weight", "bias")}
    return launched(p, config, args, {"once": once, "tile": tile, "loop": loop})
