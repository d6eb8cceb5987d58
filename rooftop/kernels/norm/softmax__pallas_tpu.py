"""Softmax for a TPU: whole rows in VMEM, so that each element comes from HBM once and goes back once. The vector unit bounds it, not the matrix unit.

Two forms, by where the columns lie. Along the lanes (`inner` of 1): a block of whole rows, reduced across lanes in strips of rows that the registers hold.
Along the sublanes (`inner` above 1): a block of all columns by some inner positions, reduced register by register."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import WORD, On, call, jnp, lax, like, pl, tile, up

BLOCK = 2 << 20  # bytes of float32 that a block of rows holds at least, where there are so many: enough for a copy to run at the speed of HBM
STRIP = 64  # registers, each 8 x 128 words, that a strip of rows fills at most


def supports(p: Problem) -> str | None:
    return None


def choose(p: Problem) -> dict[str, int]:
    outer, columns, inner = p["x"].shape
    if inner > 1:
        lanes = tile(inner, 128, max(128, BLOCK // (4 * up(columns, 8)) // 128 * 128))
        return {"rows": 1, "lanes": inner if lanes >= inner else lanes, "strip": columns}
    step, width = WORD[p["x"].dtype], up(columns, 128)
    strip = max(step, STRIP * 1024 // width // step * step)
    rows = tile(outer, step, max(strip, BLOCK // (4 * width) // strip * strip))
    return {"rows": min(outer, rows), "lanes": 1, "strip": min(strip, rows)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """Two blocks of x and of y, since the next is copied while one is computed, and the strip in float32, twice."""
    _, columns, inner = p["x"].shape
    held = up(c["rows"], 8) * up(columns, 128) if inner == 1 else up(columns, 8) * up(c["lanes"], 128)
    strip = up(c["strip"], 8) * up(columns, 128) if inner == 1 else held
    return 4 * held * p["x"].itemsize + 8 * strip


def softmax(x: Any, axis: int) -> Any:
    x = x.astype(jnp.float32)
    e = jnp.exp(x - jnp.max(x, axis, keepdims=True))
    return e / jnp.sum(e, axis, keepdims=True)


def _rows(x: Any, y: Any, *, strip: int) -> None:
    """x, y: [rows, columns]"""
    whole, rest = divmod(x.shape[0], strip)

    def step(i: Any, _: Any) -> Any:
        at = pl.ds(pl.multiple_of(i * strip, strip), strip)
        y[at, :] = softmax(x[at, :], 1).astype(y.dtype)
        return 0

    if whole:
        lax.fori_loop(0, whole, step, 0)
    if rest:
        at = pl.ds(whole * strip, rest)
        y[at, :] = softmax(x[at, :], 1).astype(y.dtype)


def _columns(x: Any, y: Any) -> None:
    """x, y: [1, columns, lanes]"""
    y[0] = softmax(x[0], 0).astype(y.dtype)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    x = given["x"]
    outer, columns, inner = x.shape
    if inner == 1:
        x = x.reshape(outer, columns)
        block = pl.BlockSpec((c["rows"], columns), lambda i: (i, 0))
        kernel, grid = partial(_rows, strip=c["strip"]), (pl.cdiv(outer, c["rows"]),)
    else:
        block = pl.BlockSpec((1, columns, c["lanes"]), lambda i, j: (i, 0, j))
        kernel, grid = _columns, (outer, pl.cdiv(inner, c["lanes"]))
    out = call(kernel, on, name="softmax", order=["parallel"] * len(grid), grid=grid, in_specs=[block], out_specs=block, out_shape=like(x))(x)
    return {"y": out.reshape(outer, columns, inner)}
