"""int8 with a scale for each row or group, for a TPU: rounded to nearest, to zero, or stochastically with the bits that every backend draws.

A block of rows is gone over in strips of 32: an int8 tile of VMEM has 32 rows. The vector unit bounds it: two quotients rounded as IEEE's, and a mix and a
product of 64 bits an element for the random bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import WORD, On, call, jnp, lax, like, pl, pltpu, tile, up
from rooftop.kernels._device.tpu_numbers import RAISE, TINY, quotient, raised
from rooftop.kernels._device.tpu_random import halves

BLOCK = 1 << 20  # bytes of float32 that a block of rows holds at least, where there are so many
LEAST, LARGEST = 2.0**-126, 3.4028234663852886e38  # of a scale
BOUND = 512.0  # beyond every code


def supports(p: Problem) -> str | None:
    x, option = p["x"], p.option
    if option("format") != "int8" or option("scales") != "f32" or not option("symmetric"):
        return f"format is {option('format')} with scales of {option('scales')}, symmetric={option('symmetric')}; it makes symmetric int8 with float32 scales"
    if option("rounding") not in ("nearest", "zero", "stochastic"):
        return f"rounding is {option('rounding')}; it rounds to nearest, to zero, or stochastically"
    if len(x.shape) != 2:
        return "a scale is shared by neighbours of one row, in whole groups; here it is by more, or the last group is short"
    if x.numel >= 2**32:
        return f"x has {x.numel} elements; their index must fit 32 bits"
    return None


def choose(p: Problem) -> dict[str, int]:
    rows, columns = p["x"].shape
    strip = WORD["i8"]
    block = min(rows, tile(rows, strip, max(strip, BLOCK // (4 * up(columns, 128)) // strip * strip)))
    return {"rows": block, "strip": min(strip, block)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """Two blocks of x and of the codes, two of the scales, and six strips of 32 bits."""
    width = up(p["x"].shape[1], 128)
    return up(c["rows"], 32) * (width * 2 * (p["x"].itemsize + 1) + 2 * 128 * 4) + 24 * up(c["strip"], 8) * width


def _kernel(seed: Any, x: Any, codes: Any, scale: Any, *, strip: int, rounding: str) -> None:
    """x, codes: [rows, columns]; scale: [rows, 1]"""
    rows, columns = x.shape
    first = pl.program_id(0) * rows
    whole, rest = divmod(rows, strip)

    def rounded(v: Any, start: Any) -> Any:
        """v: [strip, columns], divided by the scale."""
        v = jnp.clip(jnp.where(v == v, v, 0.0), -BOUND, BOUND)
        if rounding == "stochastic":
            row = lax.broadcasted_iota(jnp.int32, v.shape, 0) + (first + start)
            index = (row * columns + lax.broadcasted_iota(jnp.int32, v.shape, 1)).astype(jnp.uint32)
            k = (jnp.round(v * 65536.0).astype(jnp.int32) + halves(seed[0].astype(jnp.uint32), index).astype(jnp.int32)) >> 16
        else:
            k = (jnp.round(v) if rounding == "nearest" else jnp.trunc(v)).astype(jnp.int32)
        return jnp.clip(k, -127, 127).astype(jnp.int8)

    def one(start: Any, n: int) -> None:
        at = pl.ds(start, n)
        v = x[at, :].astype(jnp.float32)
        largest = _largest(v)
        tiny = largest < TINY
        few = jnp.any(tiny)

        @pl.when(jnp.logical_not(few))
        def _() -> None:
            s = jnp.minimum(quotient(largest, 127.0), LARGEST)
            scale[at, :] = s
            codes[at, :] = rounded(quotient(v, s), start)

        @pl.when(few)
        def _() -> None:
            w = jnp.where(tiny, raised(v), v)
            s = jnp.clip(quotient(_largest(w), 127.0), jnp.where(tiny, LEAST * RAISE, LEAST), LARGEST)
            scale[at, :] = jnp.where(tiny, s / RAISE, s)
            codes[at, :] = rounded(quotient(w, s), start)

    def step(i: Any, _: Any) -> Any:
        one(pl.multiple_of(i * strip, strip), strip)
        return 0

    if whole:
        lax.fori_loop(0, whole, step, 0)
    if rest:
        one(whole * strip, rest)


def _largest(v: Any) -> Any:
    """Of each row, [rows, 1]: neither NaN nor infinity has a say."""
    return jnp.max(jnp.where(jnp.abs(v) < jnp.inf, jnp.abs(v), 0.0), 1, keepdims=True)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    x = given["x"]
    rows, columns = x.shape
    block, number = pl.BlockSpec((c["rows"], columns), lambda i: (i, 0)), pl.BlockSpec(memory_space=pltpu.SMEM)
    codes, scale = call(
        partial(_kernel, strip=c["strip"], rounding=str(p.option("rounding"))), on, name="quantize", order=("parallel",), grid=(pl.cdiv(rows, c["rows"]),),
        in_specs=[number, block], out_specs=[block, pl.BlockSpec((c["rows"], 1), lambda i: (i, 0))],
        out_shape=[like(x, jnp.int8), like(x, jnp.float32, rows, 1)],
    )(given["seed"], x)  # fmt: skip
    return {"codes": lax.bitcast_convert_type(codes, jnp.uint8), "scale": scale[:, 0]}
