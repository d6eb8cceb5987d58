"""Rows, and groups of contiguous elements, to symmetric 8-bit integer codes. Contract: rooftop/ops/quantize.py

A program holds some segments in registers while it computes their maxima and codes: read once, written once. The portable kernel: it runs
in Triton's interpreter, and uses the random bits of stochastic rounding from the Triton twin of the generator. On a GPU quantize__segments
and quantize__groups are preferred."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device.random import random_halves

LARGEST = tl.constexpr(3.4028234663852886e38)
WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2^23: added and subtracted again, it rounds to the nearest integer
WHOLE_64 = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: the same for float64
ROUNDINGS = ("nearest", "stochastic", "zero")
ELEMENTS = 4096  # of x in a program, at least


@triton.jit(do_not_specialize=["seed"])
def _quantize(  # type: ignore[no-untyped-def]
    x, codes, scale, N, L, xs, seed, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROUND: tl.constexpr, MIDDLE: tl.constexpr,
    PDL: tl.constexpr
):
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < N) & (column < L)
    v = tl.load(x + row * xs + column, inside, other=0.0).to(tl.float32)
    size = tl.abs(v)
    most = tl.max(tl.where(size <= LARGEST, size, 0.0), 1, keep_dims=True)  # NaN and infinities do not influence a scale
    s = tl.maximum(tl.div_rn(most, tl.full(most.shape, 127.0, tl.float32)), 1.1754943508222875e-38)
    q = tl.where(v == v, tl.div_rn(v, tl.broadcast_to(s, v.shape)), 0.0)
    q = tl.minimum(tl.maximum(q, -512.0), 512.0)
    if ROUND == 1:
        random = random_halves(seed, row * L + column)
        steps = ((q * 65536.0).to(tl.float64) + WHOLE_64) - WHOLE_64  # up to 2^25: too large for the trick in float32
        k = (steps.to(tl.int32) + random.to(tl.int32)) >> 16
    elif ROUND == 2:
        k = q.to(tl.int32)
    else:
        k = ((q + WHOLE) - WHOLE).to(tl.int32)
    k = tl.minimum(tl.maximum(k, -127), 127) + MIDDLE
    tl.store(codes + row * L + column, (k & 255).to(tl.uint8), inside)
    tl.store(scale + row, s, row < N)


@dataclass(frozen=True)
class Config:
    """Segments and columns of a program, a power of two each, and its warps."""

    rows: int
    columns: int
    warps: int


def supports(p: Problem) -> str | None:
    x, o = p["x"], p.option
    if (
        len(x.shape) != 2 or o("format") not in ("int8", "uint8") or not o("symmetric") or o("scales") != "f32"
        or o("rounding") not in ROUNDINGS
    ):
        return "takes segments, to symmetric int8 and uint8 with float32 scales, rounded to nearest, stochastically or toward zero"
    return None if x.shape[1] <= 32768 else "takes segments of at most 32768 elements"


def configs(p: Problem) -> list[Config]:
    length = p["x"].shape[1]
    columns = max(16, 1 << (length - 1).bit_length())
    rows = max(1, ELEMENTS // columns)
    return [Config(rows, columns, 4 if rows * columns <= 8192 else 8), Config(rows, columns, 8)]


def choose(p: Problem) -> Config:
    return configs(p)[0]


def launches(p: Problem, config: Config) -> list[Launch]:
    n, length = p["x"].shape
    args = {
        "x": "x", "codes": "codes", "scale": "scale", "N": n, "L": length, "xs": p["x"].strides[0], "seed": "seed",
        "ROWS": config.rows, "COLUMNS": config.columns, "ROUND": ROUNDINGS.index(str(p.option("rounding"))),
        "MIDDLE": 128 if p.option("format") == "uint8" else 0, "PDL": p.device.pdl,
    }
    return [Launch(kernel=_quantize, grid=(-(-n // config.rows),), args=args, warps=config.warps, pdl=p.device.pdl)]
