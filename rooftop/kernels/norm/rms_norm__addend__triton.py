"""y = rms_norm(x + residual) · weight + bias + addend over the rows of [R, C]. Contract: rooftop/ops/rms_norm.py

Bytes: x, residual and addend read once, y and the sum written once. The two first ways of norms__triton.py, with its functions: `tile`
holds whole rows in registers, up to 32768 columns; `loop` processes a longer row in pieces, twice. With `early` the addend is loaded
together with the row:
its latency is hidden, for one more register an element of 32 bits."""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.norm import norms__triton
from rooftop.kernels.norm.norms__triton import Config, _folded, _statistics, _take, affine, load, reason, scale_of


@triton.jit
def _added(pointer, row, stride, column, inside, EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(pointer + row * stride + column, inside, other=0) if EARLY else 0.0


@triton.jit
def _give(y, row, ys, v, w, b, a, az, column, C, inside, early, EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Stores the result of elements v. EARLY: `early` is the addend, already loaded."""
    v = affine(v, w, b, column, column < C)
    if EARLY:
        v += early.to(tl.float32)
    else:
        v += load(a, row * az + column, inside)
    tl.store(y + row * ys + column, v.to(y.dtype.element_ty), inside)


@triton.jit
def _tile(x, r, w, b, a, y, s, R, C, xs, rs, az, ys, ss, eps,
          COLUMNS: tl.constexpr, MORE: tl.constexpr, LANES: tl.constexpr, EARLY: tl.constexpr,
          PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """LANES whole rows, each as a piece of COLUMNS and one of MORE columns. Row strides of x, r, y, s in elements, and `az` of a."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)[:, None]
    first = tl.arange(0, COLUMNS)[None, :]
    last = COLUMNS + tl.arange(0, MORE if MORE > 0 else 1)[None, :]
    within = (row < R) & (first < C)
    beyond = (row < R) & (last < C)
    v = _take(x, r, s, row, xs, rs, ss, first, within)
    u = _take(x, r, s, row, xs, rs, ss, last, beyond) if MORE > 0 else v
    early = _added(a, row, az, first, within, EARLY)
    more = _added(a, row, az, last, beyond, EARLY and MORE > 0)
    squares = tl.sum(_folded(v * v, u * u, COLUMNS, MORE, LANES), 1, keep_dims=True)
    scale = scale_of(squares, C, eps)
    _give(y, row, ys, v * scale, w, b, a, az, first, C, within, early, EARLY)
    if MORE > 0:
        _give(y, row, ys, u * scale, w, b, a, az, last, C, beyond, more, EARLY)


@triton.jit
def _loop(x, r, w, b, a, y, s, C, xs, rs, az, ys, ss, eps, rounds,
          COLUMNS: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row, COLUMNS columns at a time, in `rounds` iterations, twice; the second time the last piece first."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    x += row * xs
    if r is not None:
        r += row * rs
        s += row * ss
    _, squares = _statistics(x, r, s, 0, rounds, C, False, COLUMNS)
    scale = scale_of(squares, C, eps)
    if r is not None:
        tl.debug_barrier()  # s is read back
    for k in range(rounds):
        column = (rounds - 1 - k) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < C
        v = load(x, column, inside) if r is None else load(s, column, inside)
        _give(y, row, ys, v * scale, w, b, a, az, column, C, inside, 0.0, False)


def supports(p: Problem) -> str | None:
    return reason(p, "x") if p.extra else "is for calls with an addend"


def choose(p: Problem) -> Config:
    found = norms__triton.choose(p)
    if found.way != "tile":
        return Config("loop", 8192, 1, 16)
    return replace(found, early=p["x"].shape[1] <= 16384)


def configs(p: Problem) -> list[Config]:
    return [c for c in norms__triton.configs(p) if c.way != "split"]


def launches(p: Problem, config: Config) -> list[Launch]:
    rows, columns = p["x"].shape
    names = {"x": "x", "r": "residual", "w": "weight", "b": "bias", "a": "addend", "y": "y", "s": "s"}
    strides = {"xs": "x", "rs": "residual", "az": "addend", "ys": "y", "ss": "s"}
    steps = {short: m.strides[0] if (m := p.get(name)) is not None else 0 for short, name in strides.items()}
    args = {**names, "C": columns, **steps, "eps": float(p.option("eps")), "COLUMNS": config.columns, "PDL": p.device.pdl}
    if config.way == "tile":
        args |= {"R": rows, "MORE": config.more, "LANES": config.lanes, "EARLY": config.early}
        return [Launch(_tile, (-(-rows // config.lanes),), args, config.warps, pdl=p.device.pdl)]
    return [Launch(_loop, (rows,), {**args, "rounds": -(-columns // config.columns)}, config.warps, pdl=p.device.pdl)]
