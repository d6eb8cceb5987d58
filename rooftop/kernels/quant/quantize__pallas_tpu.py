"""int8 with a scale for each row or group, for a TPU: rounded to nearest, to zero, or stochastically with the bits that every backend
draws.

A block of rows is processed in strips of 32, since an int8 tile of VMEM has 32 rows, and in pieces of these. The vector unit is the limit:
two quotients rounded as in IEEE 754, and a mix and a 64-bit product per element for the random bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import LANES, WORD, On, call, jnp, larger, lax, like, pieces, pl, pltpu, strips, tile, up
from rooftop.kernels._device.tpu_float32 import RAISE, TINY, quotient, raised

FIGURES = ("int8 rows stochastic 16384x8192 bf16",)  # compiled for figures
BLOCK = 1 << 20  # bytes of float32 of a block of rows, at least, if there are so many
LEAST, LARGEST = 2.0**-126, 3.4028234663852886e38  # of a scale
BOUND = 512.0  # beyond every code
FACTORS = (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35, 0x7FEB352D)  # of the random bits: rooftop/formats/random_bits.py


def supports(p: Problem) -> str | None:
    x, option = p["x"], p.option
    if option("format") != "int8" or option("scales") != "f32" or not option("symmetric"):
        return (
            f"format is {option('format')} with scales of {option('scales')}, symmetric={option('symmetric')}; it makes symmetric int8 "
            f"with float32 scales"
        )
    if option("rounding") not in ("nearest", "zero", "stochastic"):
        return f"rounding is {option('rounding')}; it rounds to nearest, to zero, or stochastically"
    if len(x.shape) != 2:
        return "a scale is shared by neighbours of one row, in whole groups; here it is by more, or the last group is short"
    if x.numel >= 2**32:
        return f"x has {x.numel} elements; their index must fit 32 bits"
    return None


def choose(p: Problem) -> dict[str, int]:
    rows, columns = p["x"].shape
    step = WORD["i8"]
    return {"rows": min(rows, tile(rows, step, max(step, BLOCK // (4 * up(max(columns, 1), 128)) // step * step)))}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """Two blocks of x and of the codes, and two of the scales."""
    return up(c["rows"], 32) * (up(p["x"].shape[1], 128) * 2 * (p["x"].itemsize + 1) + 2 * 128 * 4)


def _mix(h: Any) -> Any:
    h = h ^ (h >> 16)
    h = h * jnp.uint32(0x85EBCA6B)
    h = h ^ (h >> 13)
    h = h * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def _folded(a: Any, b: Any) -> Any:
    """The low 32 bits of a * b xor the high ones. The vector unit multiplies 32 by 32 bits to the low 32 only; the high half is computed
    from four products of 16 bits."""
    low, high = (lambda x: x & jnp.uint32(0xFFFF)), (lambda x: x >> 16)
    middle = low(a) * high(b) + high(low(a) * low(b))  # below 2^32
    other = high(a) * low(b) + low(middle)
    return (a * b) ^ (high(a) * high(b) + high(middle) + high(other))


def halves(seed: Any, index: Any) -> Any:
    """16 random bits of an element: uint32 of 0 to 65535. `seed`: uint32; `index`: uint32, of fewer than 2^32 elements."""
    state = _mix((index >> 3) ^ (seed * jnp.uint32(FACTORS[0]))) ^ seed
    turn = (index >> 1) & jnp.uint32(3)
    first, second, third, fourth = (jnp.uint32(f) for f in FACTORS)
    factor = jnp.where(turn == 0, first, jnp.where(turn == 1, second, jnp.where(turn == 2, third, fourth)))
    return (_folded(state, factor) >> ((index & jnp.uint32(1)) * jnp.uint32(16))) & jnp.uint32(0xFFFF)


def _kernel(seed: Any, x: Any, codes: Any, scale: Any, *, rounding: str) -> None:
    """x, codes: [rows, columns]; scale: [rows, 1]. Two passes over a strip: the maximum, the codes."""
    rows, columns = x.shape
    first = pl.program_id(0) * rows

    def rounded(v: Any, start: Any, at: Any) -> Any:
        """Codes of values divided by their scale; the first value is at [start, at] of the block."""
        v = jnp.clip(jnp.where(v == v, v, 0.0), -BOUND, BOUND)
        if rounding == "stochastic":
            row = lax.broadcasted_iota(jnp.int32, v.shape, 0) + (first + start)
            index = (row * columns + (lax.broadcasted_iota(jnp.int32, v.shape, 1) + at)).astype(jnp.uint32)
            k = (jnp.round(v * 65536.0).astype(jnp.int32) + halves(seed[0].astype(jnp.uint32), index).astype(jnp.int32)) >> 16
        else:
            k = (jnp.round(v) if rounding == "nearest" else jnp.trunc(v)).astype(jnp.int32)
        return jnp.clip(k, -127, 127).astype(jnp.int8)

    def strip(start: Any, n: int) -> None:
        at_rows, none = pl.ds(start, n), jnp.zeros((n, LANES), jnp.float32)

        def piece(at: Any, width: int) -> Any:
            return x[at_rows, pl.ds(at, width)].astype(jnp.float32)

        def write(value: Any, s: Any) -> None:
            def one(at: Any, width: int, kept: Any) -> Any:
                codes[at_rows, pl.ds(at, width)] = rounded(quotient(value(at, width), s), start, at)
                return kept

            pieces(columns, n, one)

        largest = jnp.max(pieces(columns, n, lambda at, width, most: larger(most, _sizes(piece(at, width))), none), 1, keepdims=True)
        tiny = largest < TINY
        few = jnp.any(tiny)

        @pl.when(jnp.logical_not(few))
        def _() -> None:
            s = jnp.minimum(quotient(largest, 127.0), LARGEST)
            scale[at_rows, :] = s
            write(piece, s)

        @pl.when(few)
        def _() -> None:
            def up_piece(at: Any, width: int) -> Any:
                v = piece(at, width)
                return jnp.where(tiny, raised(v), v)

            most = jnp.max(pieces(columns, n, lambda at, width, most: larger(most, _sizes(up_piece(at, width))), none), 1, keepdims=True)
            s = jnp.clip(quotient(most, 127.0), jnp.where(tiny, LEAST * RAISE, LEAST), LARGEST)
            scale[at_rows, :] = jnp.where(tiny, s / RAISE, s)
            write(up_piece, s)

    strips(rows, WORD["i8"], strip)


def _sizes(v: Any) -> Any:
    """Replaces NaN and infinities by zeros: they do not influence a scale."""
    return jnp.where(jnp.abs(v) < jnp.inf, jnp.abs(v), 0.0)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    x = given["x"]
    rows, columns = x.shape
    block, number = pl.BlockSpec((c["rows"], columns), lambda i: (i, 0)), pl.BlockSpec(memory_space=pltpu.SMEM)
    codes, scale = call(
        partial(_kernel, rounding=str(p.option("rounding"))), on, name="quantize", order=("parallel",), grid=(pl.cdiv(rows, c["rows"]),),
        in_specs=[number, block], out_specs=[block, pl.BlockSpec((c["rows"], 1), lambda i: (i, 0))],
        out_shape=[like(x, jnp.int8), like(x, jnp.float32, rows, 1)],
    )(given["seed"], x)
    return {"codes": codes, "scale": scale}


def finish(outputs: Mapping[str, Any], p: Problem) -> dict[str, Any]:
    """Codes as bytes, the dtype of the contract."""
    return {"codes": outputs["codes"].view("uint8"), "scale": outputs["scale"][:, 0]}
