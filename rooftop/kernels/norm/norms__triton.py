"""rms_norm and layer_norm over the rows of [R, C]: y, and the sum with the residual. CENTRE is true for layer_norm: the mean is subtracted.
Of rms_norm also y = norm(x + residual) · weight + bias + addend, which no other kernel computes.

Bytes: x (residual, addend) read once, y (and the sum) written once; the weight comes from the L2. Two kernels:
    tile  a program holds whole rows in registers: each byte is moved once.
    loop  a program processes one long row in pieces, twice: forwards for the statistics, then backwards for the result, so that the pieces
          that were read last and are still in the L2 are read first. Up to 1.5 times the bytes of `tile`.
Choice: tile up to 32768 columns, loop above. For rows longer than a block holds, a cluster that reads once is faster, and for few of them
several programs a row (norms__split__triton.py)."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait, libdevice

from rooftop.core.spec import Launch, Problem, pow2

OPS = ("rms_norm", "layer_norm")

# -- device code -----------------------------------------------------------------------------------------------------


@triton.jit
def load(pointer, at, inside):  # type: ignore[no-untyped-def]
    return tl.load(pointer + at, inside, other=0).to(tl.float32)


@triton.jit
def over(v, n):  # type: ignore[no-untyped-def]
    """v / n for an integer n (a plain number if Triton specialises a 1): by 1 / n, which is computed before v is known, and one correction
    step; correctly rounded but for rare last bits, and without the function call of div_rn. For an infinite v the step would give NaN."""
    n = tl.full((), n, tl.float32)
    part = 1.0 / n
    q = v * part
    found = tl.fma(tl.fma(-q, n, v), part, q)
    return tl.where(found == found, found, q)


@triton.jit
def seen(columns, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The number of elements that each of COLUMNS positions has processed after `columns` columns."""
    return tl.maximum((columns - tl.arange(0, COLUMNS) + COLUMNS - 1) // COLUMNS, 0).to(tl.float32)


@triton.jit
def scale_of(squares, count, eps):  # type: ignore[no-untyped-def]
    """1 / sqrt(squares / count + eps), accurate to about the last bit: rsqrt and one Newton step. For 0 and infinity the step would give
    NaN."""
    v = over(squares, count) + eps
    r = libdevice.rsqrt(v)
    found = tl.fma(0.5 * r, tl.fma(-v * r, r, 1.0), r)
    return tl.where(found == found, found, r)


@triton.jit
def affine(v, w, b, column, inside):  # type: ignore[no-untyped-def]
    if w is not None:
        v *= load(w, column, inside)
    if b is not None:
        v += load(b, column, inside)
    return v


@triton.jit
def both(a, b, c, d):  # type: ignore[no-untyped-def]
    return a + c, b + d


@triton.jit
def _folded(v, u, COLUMNS: tl.constexpr, MORE: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Reshapes [LANES, COLUMNS] into pieces of MORE columns, adds them, and adds u. If a thread has at most 8 MORE / (32 warps) columns, it
    adds only its own values."""
    if MORE > 0:
        v = tl.sum(tl.reshape(v, (LANES, COLUMNS // MORE, MORE)), 1) + u
    return v


@triton.jit
def _take(x, r, s, row, xs, rs, ss, column, inside):  # type: ignore[no-untyped-def]
    """Loads elements of x, or of s = x + r, and then stores s."""
    v = load(x, row * xs + column, inside)
    if r is not None:
        v = (v + load(r, row * rs + column, inside)).to(s.dtype.element_ty)  # the rounded sum, which is returned, is normalised
        tl.store(s + row * ss + column, v, inside)
        v = v.to(tl.float32)
    return v


@triton.jit
def _give(y, row, ys, v, w, b, a, az, column, C, inside, g, h, EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Stores the result of elements v. EARLY: weight and bias are already loaded as g and h; or the addend, if there is one, as g."""
    if EARLY and a is None:
        if w is not None:
            v *= g.to(tl.float32)
        if b is not None:
            v += h.to(tl.float32)
    else:
        v = affine(v, w, b, column, column < C)
    if a is not None:
        v += g.to(tl.float32) if EARLY else load(a, row * az + column, inside)
    tl.store(y + row * ys + column, v.to(y.dtype.element_ty), inside)


@triton.jit
def _before(pointer, column, C):  # type: ignore[no-untyped-def]
    """Loads elements of a weight or bias; 0 if there is none."""
    if pointer is None:
        return 0.0
    else:  # noqa: RET505  Triton compiles the rest of a function even where it has returned
        return tl.load(pointer + column, column < C, other=0)


@triton.jit
def _tile(x, r, w, b, y, s, R, C, xs, rs, ys, ss, eps,
          CENTRE: tl.constexpr, COLUMNS: tl.constexpr, MORE: tl.constexpr, LANES: tl.constexpr, EARLY: tl.constexpr,
          PDL: tl.constexpr, a=None, az=None):  # type: ignore[no-untyped-def]
    """LANES whole rows, each as a piece of COLUMNS and one of MORE columns. Row strides of x, r, y, s, a in elements; r and s, w, b, a may
    be absent. EARLY: weight and bias, or the addend, are loaded together with the row, not after its sums: less latency, more registers.

    With CENTRE the rounding error of the mean, which is the mean of the differences, is subtracted too (Chan, Golub & LeVeque 1983), so
    that rows of equal elements give exactly 0. A reduction of parts with their own means would save one exchange between the warps, but
    Triton then converts a layout, which costs more."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)[:, None]
    first = tl.arange(0, COLUMNS)[None, :]
    last = COLUMNS + tl.arange(0, MORE if MORE > 0 else 1)[None, :]
    within = (row < R) & (first < C)
    beyond = (row < R) & (last < C)
    v = _take(x, r, s, row, xs, rs, ss, first, within)
    if MORE > 0:
        u = _take(x, r, s, row, xs, rs, ss, last, beyond)
    else:
        u = v
    g, h, more_g, more_h = 0.0, 0.0, 0.0, 0.0
    if EARLY and a is not None:
        g = tl.load(a + row * az + first, within, other=0)
        more_g = tl.load(a + row * az + last, beyond, other=0) if MORE > 0 else 0.0
    elif EARLY:
        g = _before(w, first, C)
        h = _before(b, first, C)
        if MORE > 0:
            more_g = _before(w, last, C)
            more_h = _before(b, last, C)
    if CENTRE:
        mean = over(tl.sum(_folded(v, u, COLUMNS, MORE, LANES), 1, keep_dims=True), C)
        v = tl.where(within, v - mean, 0)
        u = tl.where(beyond, u - mean, 0) if MORE > 0 else v
        rest, squares = tl.reduce(
            (_folded(v, u, COLUMNS, MORE, LANES), _folded(v * v, u * u, COLUMNS, MORE, LANES)), 1, both, keep_dims=True
        )
        left = over(rest, C)
        squares = tl.maximum(squares - rest * left, 0)
        v -= left
        u -= left
    else:
        squares = tl.sum(_folded(v * v, u * u, COLUMNS, MORE, LANES), 1, keep_dims=True)
    scale = scale_of(squares, C, eps)
    _give(y, row, ys, v * scale, w, b, a, az, first, C, within, g, h, EARLY)
    if MORE > 0:
        _give(y, row, ys, u * scale, w, b, a, az, last, C, beyond, more_g, more_h, EARLY)


@triton.jit
def _statistics(x, r, s, rounds, C, CENTRE: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mean (0 without CENTRE) and sum of squares about it of one row of C columns; stores x + r to s.

    With CENTRE each position keeps its own mean (Welford 1962); they are combined at the end (Chan et al. 1979)."""
    mean = tl.zeros((COLUMNS,), tl.float32)
    squares = tl.zeros((COLUMNS,), tl.float32)
    for k in range(rounds):
        column = k * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < C
        v = load(x, column, inside)
        if r is not None:
            v = (v + load(r, column, inside)).to(s.dtype.element_ty)
            tl.store(s + column, v, inside)
            v = v.to(tl.float32)
        if CENTRE:
            off = tl.where(inside, v - mean, 0)
            mean += off * over(1.0, k + 1)
            squares += off * tl.where(inside, v - mean, 0)
        else:
            squares += v * v
    if CENTRE:
        count = seen(C, COLUMNS)
        total = over(tl.sum(count * mean, 0), C)
        off = mean - total
        return total, tl.sum(squares + count * off * off, 0)
    return tl.full((), 0.0, tl.float32), tl.sum(squares, 0)


@triton.jit
def _apply(v, w, b, a, y, rounds, C, mean, scale, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The result of one row, last piece first."""
    for k in range(rounds):
        column = (rounds - 1 - k) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < C
        n = affine((load(v, column, inside) - mean) * scale, w, b, column, inside)
        if a is not None:
            n += load(a, column, inside)
        tl.store(y + column, n.to(y.dtype.element_ty), inside)


@triton.jit
def _loop(  # type: ignore[no-untyped-def]
    x, r, w, b, y, s, C, xs, rs, ys, ss, eps, rounds, CENTRE: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr, a=None, az=None
):
    """One row, COLUMNS columns at a time, in `rounds` iterations, twice."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    x += row * xs
    if r is not None:
        r += row * rs
        s += row * ss
    mean, squares = _statistics(x, r, s, rounds, C, CENTRE, COLUMNS)
    scale = scale_of(squares, C, eps)
    if a is not None:
        a += row * az
    if r is not None:
        tl.debug_barrier()  # s is read back
        _apply(s, w, b, a, y + row * ys, rounds, C, mean, scale, COLUMNS)
    else:
        _apply(x, w, b, a, y + row * ys, rounds, C, mean, scale, COLUMNS)


# -- configs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """`columns` (tile: and `more`) × `lanes` elements at a time by `warps` warps. `way`: tile or loop.
    `early`: weight and bias, or the addend, are loaded together with the row."""

    way: str
    columns: int
    lanes: int
    warps: int
    more: int = 0
    early: bool = False


def pieces(columns: int, lanes: int, warps: int, itemsize: int) -> tuple[int, int]:
    """Splits a row into one power of two, or into two if their sum is smaller: 5120 = 4096 + 1024 leaves no thread idle, 8192 three of
    eight. The second is at least what all threads load in one access, so that each thread adds its own columns of both."""
    wide, most = pow2(columns), pow2(columns + 1) // 2
    more = max(pow2(columns - most) if columns > most else 0, 32 * warps * 16 // itemsize // lanes)
    return (most, more) if most + more < wide and more <= most else (wide, 0)


def wide_access(p: Problem) -> bool:
    """Whether Triton can prove that 16-byte accesses are aligned: it only knows whether addresses, strides and extents are divisible by
    16."""
    return all(
        m.align >= 16 and m.shape[-1] % 16 == 0 and (len(m.shape) == 1 or m.shape[0] <= 1 or m.strides[0] % 16 == 0) for _,
        m in p.tensors if m
    )


def reason(p: Problem, main: str) -> str | None:
    m = p[main]
    if m.numel == 0:
        return "there is nothing to compute"
    if m.shape[1] >= 2**31 - 2**20 or m.shape[0] >= 2**31:
        return f"takes fewer than 2**31 - 2**20 columns and 2**31 rows; given {m.shape[1]} and {m.shape[0]}"
    return None


def lanes_of(p: Problem, rows: int, wide: int, tile: int) -> int:
    """Rows of a program: as many as fill a tile, but with at least four programs a multiprocessor."""
    lanes = max(1, min(tile // wide, pow2(rows)))
    while lanes > 1 and rows < 4 * lanes * p.device.sms:
        lanes //= 2
    return lanes


def supports(p: Problem) -> str | None:
    return reason(p, "x")


def choose(p: Problem) -> Config:
    rows, columns = p["x"].shape
    wide = pow2(columns)
    if wide > 32768:
        return Config("loop", 8192, 1, 16)
    tile, each = (4096, 512) if wide_access(p) else (2048, 1024)
    lanes = max(lanes_of(p, rows, wide, tile), 32 // wide)  # not fewer elements than threads: several would write one word of a reduction
    warps = max(1, min(16 if each == 512 else 32, pow2(columns + 1) // 2 * lanes // each))
    early = lanes == 1 and wide_access(p) and 1024 <= columns <= 4096 and wide == columns
    if early:  # short rows are bound by latency: 8 elements a thread, or 16, or 32 if there are two reductions
        warps = max(1, wide // (1024 if p.op.startswith("layer_norm") and wide == 4096 else 512 if wide > 1024 else 256))
    most, more = pieces(columns, lanes, warps, p["x"].itemsize)
    return Config("tile", most, lanes, warps, more=more, early=columns <= 16384 if p.extra else early)


def configs(p: Problem) -> list[Config]:
    rows, columns = p["x"].shape
    wide = pow2(columns)
    found = [
        Config("tile", most, lanes, warps, more=more, early=early)
        for lanes in (1, 2, 4, 8, 16)
        for warps in (1, 2, 4, 8, 16, 32)
        for most, more in sorted({pieces(columns, lanes, warps, p["x"].itemsize), (wide, 0)})
        for early in (False, True)
        if 8 * 32 * warps <= wide * lanes <= (16 if early else 64) * 32 * warps and wide * lanes <= 65536 and lanes <= pow2(rows)
    ]
    found += [
        Config("loop", size, 1, warps) for size in (2048, 4096, 8192, 16384) for warps in (8, 16, 32) if size < wide
        and size // warps <= 1024
    ]
    return found


def launches(p: Problem, config: Config) -> list[Launch]:
    centre = p.op.startswith("layer_norm")
    rows, columns = p["x"].shape
    names = {"x": "x", "r": "residual", "w": "weight", "b": "bias", "y": "y", "s": "s"}
    strides = {f"{short}s": m.strides[0] if (m := p.get(names[short])) is not None else 0 for short in "xrys"}
    eps, chain = float(p.option("eps")), p.device.pdl
    if p.extra:
        names["a"], strides["az"] = "addend", p["addend"].strides[0]
    if config.way == "tile":
        args = {**names, "R": rows, "C": columns, **strides, "eps": eps, "CENTRE": centre}
        args |= {"COLUMNS": config.columns, "MORE": config.more, "LANES": config.lanes, "EARLY": config.early, "PDL": chain}
        return [Launch(_tile, (-(-rows // config.lanes),), args, config.warps, pdl=chain)]
    rounds = -(-columns // config.columns)
    args = {**names, "C": columns, **strides, "eps": eps, "rounds": rounds, "CENTRE": centre, "COLUMNS": config.columns}
    return [Launch(_loop, (rows,), {**args, "PDL": chain}, config.warps, pdl=chain)]
