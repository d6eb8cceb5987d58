"""Cross-entropy of logits [R, C]. Contract: rooftop/ops/cross_entropy.py

Bytes: each logit read once, nothing of their size written: the floor is a read. One program a row goes over it once: each position keeps a
maximum and a sum (Milakov & Gimelshein 2018), raised once for `deep` logits, so that a logit costs one exponential and no barrier; positions
are folded at the end. A last launch of one program adds the rows' losses in a fixed order where there is a reduction.
Prediction: 0.95 of a read from 256 MiB; below 4 MiB the second launch costs as much as the first."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from rooftop.kernels._device.logits import capped
from rooftop.lab.spec import Launch, Meta, Problem

# Stands for "nothing yet" among maxima: with -inf, -inf - -inf would be NaN where only a part of a row is -inf.
LOWEST = tl.constexpr(-3.4028234663852886e38)
INF = tl.constexpr(float("inf"))
ADDED = 4096  # rows that the last launch adds at a time


@triton.jit
def _rows(x, target, loss, lse, C, xs, rounds, ignore, smoothing, scale, cap,
          SMOOTH: tl.constexpr, CAP: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The loss and log-normaliser of one row, DEEP × COLUMNS logits at a time."""
    row = tl.program_id(0).to(tl.int64)
    x += row * xs
    at = tl.arange(0, DEEP)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    m = tl.full((COLUMNS,), LOWEST, tl.float32)
    s = tl.zeros((COLUMNS,), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    for k in range(rounds):
        column = k * (DEEP * COLUMNS) + at
        inside = column < C
        v = tl.load(x + column, inside, other=-INF).to(tl.float32)
        if CAP:
            v = tl.where(inside, capped(v, cap, x.dtype.element_ty == tl.float32), -INF)
        top = tl.maximum(m, tl.max(v, 0))
        s = s * tl.exp(m - top) + tl.sum(tl.exp(v - top[None, :]), 0)
        m = top
        if SMOOTH:
            total += tl.sum(tl.where(inside, v, 0), 0)
    most = tl.max(m, 0)
    sum_ = tl.sum(s * tl.exp(m - most), 0)
    z = tl.where(sum_ == 0, float("nan"), most + tl.log(sum_))  # nothing but -inf
    tl.store(lse + row, z)
    t = tl.load(target + row)
    known = (t >= 0) & (t < C)
    picked = tl.load(x + t, known, other=float("nan")).to(tl.float32)
    if CAP:
        picked = capped(picked, cap, x.dtype.element_ty == tl.float32)
    found = z - picked
    if SMOOTH:
        found = z - (1 - smoothing) * picked - smoothing * tl.div_rn(tl.sum(total, 0), tl.full((), C, tl.float32))
    found += scale * z * z
    tl.store(loss + row, tl.where(t == ignore, 0.0, tl.where(known, found, float("nan"))))


@triton.jit
def _reduce(found, target, loss, divisor, R, ignore, MEAN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of the rows' losses, over the number of rows that count where MEAN."""
    total = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for k in range(tl.cdiv(R, BLOCK)):
        row = k * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(found + row, row < R, other=0)
        count += ((row < R) & (tl.load(target + row, row < R, other=0) != ignore)).to(tl.float32)
    by = tl.sum(count, 0) if MEAN else 1.0
    tl.store(divisor, by)
    tl.store(loss, tl.div_rn(tl.sum(total, 0), tl.full((), by, tl.float32)))


@triton.jit
def _one(divisor):  # type: ignore[no-untyped-def]
    tl.store(divisor, 1.0)


@dataclass(frozen=True)
class Config:
    """A program takes `deep` × `columns` logits at a time by `warps` warps."""

    deep: int
    columns: int
    warps: int


def supports(p: Problem) -> str | None:
    x = p["input"]
    if x.numel == 0:
        return "there is nothing to compute"
    if x.shape[1] >= 2**31 - 2**20 or x.shape[0] >= 2**31:
        return f"takes fewer than 2**31 - 2**20 classes and 2**31 rows; given {x.shape[1]} and {x.shape[0]}"
    return None


def choose(p: Problem) -> Config:
    """16 bytes a thread side by side; eight of them under way where a row has so many. Sixteen warps for the longest rows."""
    rows, columns = p["input"].shape
    each = 16 // p["input"].itemsize
    warps = max(1, min(16 if columns >= 65536 or rows < 2 * p.device.sms else 8, columns // (8 * 32 * each)))
    warps = 1 << (warps.bit_length() - 1)
    deep = 8 if columns > 128 * each else 4 if columns > 64 * each else 2 if columns > 32 * each else 1
    return Config(deep, 32 * each * warps, warps)


def configs(p: Problem) -> list[Config]:
    each = 16 // p["input"].itemsize
    return [Config(deep, 32 * each * warps, warps) for deep in (1, 2, 4, 8) for warps in (1, 2, 4, 8, 16, 32)]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {} if p.option("reduction") == "none" else {"found": Meta((p["input"].shape[0],), "f32")}


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["input"].shape
    reduction, ignore = p.option("reduction"), int(p.option("ignore_index"))
    rounds = -(-columns // (config.deep * config.columns))
    args = {"x": "input", "target": "target", "loss": "loss" if reduction == "none" else "found", "lse": "lse", "C": columns}
    args |= {"xs": p["input"].strides[0], "rounds": rounds, "ignore": ignore, "smoothing": float(p.option("label_smoothing"))}
    args |= {"scale": float(p.option("lse_square_scale")), "cap": float(p.option("softcap")), "SMOOTH": p.option("label_smoothing") != 0}
    args |= {"CAP": p.option("softcap") != 0, "DEEP": config.deep, "COLUMNS": config.columns}
    found = [Launch(_rows, (rows,), args, config.warps)]
    if reduction == "none":
        return [*found, Launch(_one, (1,), {"divisor": "divisor"}, 1)]
    block = min(ADDED, max(128, 1 << (rows - 1).bit_length()))
    last = {"found": "found", "target": "target", "loss": "loss", "divisor": "divisor", "R": rows, "ignore": ignore}
    return [*found, Launch(_reduce, (1,), {**last, "MEAN": reduction == "mean", "BLOCK": block}, max(4, block // 256))]
