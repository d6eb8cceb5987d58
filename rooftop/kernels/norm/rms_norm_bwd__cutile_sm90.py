"""Gradients of rms_norm over the rows of [R, C] in cuTile. Contract: rooftop/ops/rms_norm.py

With n = s · scale and g = dy · weight: dx = scale · (g - n · mean(g n)) + ds, dweight = sum of dy n, dbias = sum of dy.

A persistent block loops over rows and keeps its sums over rows in registers. At its end it writes one partial row to scratch memory; a
second launch adds the partial rows in order. So dy and s are read once, and the result is deterministic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem, View, pow2
from rooftop.kernels._device.cutile import ct

MOST = 8192  # columns: rows and their sums are in registers


def _scale(squares, s, eps):
    """1 / sqrt(mean + eps), with one Newton step. For 0 and infinity the step would give NaN."""
    v = squares / ct.astype(s.shape[1], ct.float32) + eps
    near = ct.rsqrt(v)
    found = near + 0.5 * near * (1.0 - v * near * near)
    return ct.where(found == found, found, near)


def _load(x, r, ROWS, COLUMNS):
    return ct.load(x, (r, 0), (ROWS, COLUMNS), padding_mode=ct.PaddingMode.ZERO, allow_tma=False).astype(ct.float32)


def rows(
    dy, ds, s, weight, dx, weights, biases, eps, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], DS: ct.Constant[bool],
    WEIGHT: ct.Constant[bool], BIAS: ct.Constant[bool],
):
    dweight = ct.zeros((1, COLUMNS), ct.float32)
    dbias = ct.zeros((1, COLUMNS), ct.float32)
    for r in range(ct.bid(0), ct.num_tiles(s, axis=0, shape=(ROWS, COLUMNS)), ct.num_blocks(0)):
        v, d = _load(s, r, ROWS, COLUMNS), _load(dy, r, ROWS, COLUMNS)
        scale = _scale(ct.sum(v * v, axis=1, keepdims=True), s, eps)
        n = v * scale
        if ROWS > 1:  # rows past the last are zeros: with an eps of 0 they would add NaN to the sums
            n = ct.where(r * ROWS + ct.arange(ROWS, dtype=ct.int32).reshape((ROWS, 1)) < s.shape[0], n, 0.0)
        g = d
        if WEIGHT:
            g = d * _load(weight, 0, 1, COLUMNS)
            dweight = dweight + ct.sum(d * n, axis=0, keepdims=True)
        if BIAS:
            dbias = dbias + ct.sum(d, axis=0, keepdims=True)
        mean = ct.sum(g * n, axis=1, keepdims=True) / ct.astype(s.shape[1], ct.float32)
        found = scale * (g - n * mean)
        if DS:
            found = found + _load(ds, r, ROWS, COLUMNS)
        ct.store(dx, (r, 0), found.astype(dx.dtype), allow_tma=False)
    if WEIGHT:
        ct.store(weights, (ct.bid(0), 0), dweight, allow_tma=False)
    if BIAS:
        ct.store(biases, (ct.bid(0), 0), dbias, allow_tma=False)


def columns(parts, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """out = the sum of the rows of `parts`."""
    j = ct.bid(0)
    sums = ct.zeros((ROWS, COLUMNS), ct.float32)
    for i in range(ct.num_tiles(parts, axis=0, shape=(ROWS, COLUMNS))):
        sums = sums + ct.load(parts, (i, j), (ROWS, COLUMNS), padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
    ct.store(out, (0, j), ct.sum(sums, axis=0, keepdims=True).astype(out.dtype), allow_tma=False)


@dataclass(frozen=True)
class Config:
    """`rows` × `columns` elements at a time, `warps` warps, `blocks` blocks a multiprocessor."""

    rows: int
    columns: int
    warps: int
    blocks: int


def supports(p: Problem) -> str | None:
    s = p["s"]
    if s.dtype not in ("f32", "f16", "bf16"):
        return f"takes f32, f16 or bf16; given {s.dtype}"
    if s.numel == 0:
        return "there is nothing to compute"
    if s.shape[1] > MOST:
        return f"takes rows of up to {MOST} columns; given {s.shape[1]}"
    if s.shape[0] >= 2**31:
        return f"takes fewer than 2**31 rows; given {s.shape[0]}"
    return None


def choose(p: Problem) -> Config:
    count, wide = p["s"].shape[0], max(16, pow2(p["s"].shape[1]))
    lanes = max(1, min(2048 // wide, pow2(count)))
    return Config(lanes, wide, 8 if wide * lanes >= 2048 else 4, 1 if wide * lanes > 4096 else 2)


def configs(p: Problem) -> list[Config]:
    lanes, wide = choose(p).rows, choose(p).columns
    return [Config(n, wide, w, b) for n in dict.fromkeys((lanes, 2 * lanes)) for w in (4, 8) for b in (1, 2, 4)]


def _blocks(p: Problem, config: Config) -> int:
    return min(-(-p["s"].shape[0] // config.rows), config.blocks * p.device.sms)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    part = Meta((_blocks(p, config), p["s"].shape[1]), "f32")
    return {name: part for name, of in (("weights", "weight"), ("biases", "bias")) if p.get(of) is not None}


def launches(p: Problem, config: Config) -> list[Launch]:
    wide = p["s"].shape[1]
    weight, bias = p.get("weight") is not None, p.get("bias") is not None

    def row(name: str) -> Any:
        return View(name, (1, wide), (wide, 1))

    args: dict[str, Any] = {
        "dy": "dy", "s": "s", "dx": "dx", "ds": "ds" if p.get("ds") is not None else "s", "weight": row("weight") if weight else "s"
    }
    args |= {"weights": "weights" if weight else "dx", "biases": "biases" if bias else "dx", "eps": float(p.option("eps"))}
    args |= {"ROWS": config.rows, "COLUMNS": config.columns, "DS": p.get("ds") is not None, "WEIGHT": weight, "BIAS": bias}
    found = [Launch(rows, (_blocks(p, config),), args, options={"num_worker_warps": config.warps, "occupancy": config.blocks})]
    for parts, out, there in (("weights", "dweight", weight), ("biases", "dbias", bias)):
        if there:
            found.append(
                Launch(
                    columns, (-(-wide // 64),), {"parts": parts, "out": row(out), "ROWS": 32, "COLUMNS": 64},
                    options={"num_worker_warps": 4}
                )
            )
    return found
