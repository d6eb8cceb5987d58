"""Softmax for a TPU: whole rows in VMEM, so that each element is read from HBM once and written once. The vector unit is the limit, not the
matrix unit.

Two forms, by where the columns lie. Along the lanes (`inner` of 1): a block of whole rows, processed in strips of rows and pieces of these.
Along the sublanes
(`inner` above 1): a block of all columns by some inner positions, reduced register by register."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import LANES, WORD, On, added, call, jnp, larger, like, pieces, pl, strips, tile, up

BLOCK = 2 << 20  # bytes of float32 of a block of rows, at least, if there are so many: enough for a copy at the speed of HBM


def supports(p: Problem) -> str | None:
    return None


def choose(p: Problem) -> dict[str, int]:
    outer, columns, inner = p["x"].shape
    if inner > 1:
        lanes = tile(inner, 128, max(128, BLOCK // (4 * up(max(columns, 1), 8)) // 128 * 128))
        return {"rows": 1, "lanes": inner if lanes >= inner else lanes}
    step = WORD[p["x"].dtype]
    return {"rows": min(outer, tile(outer, step, max(step, BLOCK // (4 * up(max(columns, 1), 128)) // step * step))), "lanes": 1}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """VMEM: two blocks of x and of y, since the next one is copied while one is computed; for columns along the sublanes two more in
    float32."""
    _, columns, inner = p["x"].shape
    held = up(c["rows"], 16) * up(columns, 128) if inner == 1 else up(columns, 16) * up(c["lanes"], 128)
    return 4 * held * p["x"].itemsize + (8 * held if inner > 1 else 0)


def _rows(x: Any, y: Any, *, step: int) -> None:
    """x, y: [rows, columns]. Three passes over a strip: the maximum, the sum, the result."""
    columns = x.shape[1]

    def strip(start: Any, n: int) -> None:
        def piece(at: Any, width: int) -> Any:
            return x[pl.ds(start, n), pl.ds(at, width)].astype(jnp.float32)

        lowest, none = jnp.full((n, LANES), -jnp.inf, jnp.float32), jnp.zeros((n, LANES), jnp.float32)
        most = jnp.max(pieces(columns, n, lambda at, w, most: larger(most, piece(at, w)), lowest), 1, keepdims=True)
        total = jnp.sum(pieces(columns, n, lambda at, w, total: added(total, jnp.exp(piece(at, w) - most)), none), 1, keepdims=True)

        def write(at: Any, width: int, kept: Any) -> Any:
            y[pl.ds(start, n), pl.ds(at, width)] = (jnp.exp(piece(at, width) - most) / total).astype(y.dtype)
            return kept

        pieces(columns, n, write)

    strips(x.shape[0], step, strip)


def _columns(x: Any, y: Any) -> None:
    """x, y: [1, columns, lanes]"""
    v = x[0].astype(jnp.float32)
    e = jnp.exp(v - jnp.max(v, 0, keepdims=True))
    y[0] = (e / jnp.sum(e, 0, keepdims=True)).astype(y.dtype)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    x = given["x"]
    outer, columns, inner = x.shape
    if inner == 1:
        x = x.reshape(outer, columns)
        block = pl.BlockSpec((c["rows"], columns), lambda i: (i, 0))
        kernel, grid = partial(_rows, step=WORD[p["x"].dtype]), (pl.cdiv(outer, c["rows"]),)
    else:
        block = pl.BlockSpec((1, columns, c["lanes"]), lambda i, j: (i, 0, j))
        kernel, grid = _columns, (outer, pl.cdiv(inner, c["lanes"]))
    out = call(
        kernel, on, name="softmax", order=["parallel"] * len(grid), grid=grid, in_specs=[block], out_specs=block, out_shape=like(x)
    )(x)
    return {"y": out.reshape(outer, columns, inner)}
