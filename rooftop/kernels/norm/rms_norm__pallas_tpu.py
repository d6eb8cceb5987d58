"""Root-mean-square normalisation for a TPU: whole rows in VMEM, processed in strips of rows and pieces of these. HBM bandwidth is the
limit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import LANES, WORD, On, added, call, jnp, larger, lax, like, pieces, pl, pltpu, strips, tile, up
from rooftop.kernels._device.tpu_float32 import RAISE, TINY, lowered, raised

BLOCK = 1 << 20  # bytes of float32 of a block of rows, at least, if there are so many


def supports(p: Problem) -> str | None:
    return "takes no addend" if p.extra else None


def choose(p: Problem) -> dict[str, int]:
    rows, columns = p["x"].shape
    step = WORD[p["x"].dtype]
    return {"rows": min(rows, tile(rows, step, max(step, BLOCK // (4 * up(max(columns, 1), 128)) // step * step)))}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """VMEM: two blocks of each row tensor, since the next one is copied while one is computed, and two of the tensors that all rows
    share."""
    width = up(p["x"].shape[1], 128)
    blocks = sum(1 for n in ("x", "residual", "y", "s") if p.get(n) is not None)
    shared = sum(1 for n in ("weight", "bias") if p.get(n) is not None)
    return 2 * blocks * up(c["rows"], 16) * width * p["x"].itemsize + 2 * shared * 8 * width * 4


def _kernel(*refs: Any, names: tuple[str, ...], step: int, eps: float) -> None:
    """x, residual, y, s: [rows, columns]; weight, bias: [1, columns]. Two passes over a strip: the sum of squares, then the result."""
    ref = dict(zip(names, refs, strict=True))
    x, y, residual = ref["x"], ref["y"], ref.get("residual")
    s = x if residual is None else ref["s"]
    columns = x.shape[1]

    def strip(start: Any, n: int) -> None:
        rows = pl.ds(start, n)

        def first(at: Any, width: int, kept: Any) -> Any:
            here = rows, pl.ds(at, width)
            v = x[here].astype(jnp.float32)
            if residual is not None:
                rounded = (v + residual[here].astype(jnp.float32)).astype(x.dtype)
                s[here] = rounded
                v = rounded.astype(jnp.float32)
            total, most = kept
            return added(total, v * v), larger(most, jnp.abs(v))

        none = jnp.zeros((n, LANES), jnp.float32)
        total, most = pieces(columns, n, first, (none, none))
        total, most = _across(total), jnp.max(most, 1, keepdims=True)
        scale, tiny = _rsqrt(total / columns + eps), most < TINY
        few = jnp.any(tiny)

        def out(at: Any, width: int, v: Any, up: Any) -> Any:
            """`up`: the factor by which v and the result are scaled."""
            made = v * scale
            made = made * ref["weight"][:, pl.ds(at, width)].astype(jnp.float32) if "weight" in ref else made
            return made + ref["bias"][:, pl.ds(at, width)].astype(jnp.float32) * up if "bias" in ref else made

        def plain(at: Any, width: int, kept: Any) -> Any:
            here = rows, pl.ds(at, width)
            y[here] = out(at, width, s[here].astype(jnp.float32), 1.0).astype(y.dtype)
            return kept

        def careful(at: Any, width: int, kept: Any) -> Any:
            here = rows, pl.ds(at, width)
            v = s[here].astype(jnp.float32)
            made = out(at, width, jnp.where(tiny, raised(v), v), jnp.where(tiny, RAISE, 1.0))
            y[here] = jnp.where(tiny, lowered(made), made).astype(y.dtype)
            return kept

        @pl.when(jnp.logical_not(few))
        def _() -> None:
            pieces(columns, n, plain)

        @pl.when(few)
        def _() -> None:
            pieces(columns, n, careful)

    strips(x.shape[0], step, strip)


def _across(total: Any) -> Any:
    """The sum of 128 lanes, [rows, 1]: a tree of halves, with the error of seven additions."""
    for shift in (64, 32, 16, 8, 4, 2, 1):
        total = total + pltpu.roll(total, shift, 1)
    return total[:, :1]


def _rsqrt(a: Any) -> Any:
    """1 / sqrt(a) to about the last bit: the estimate is off by several, which one Newton step corrects."""
    r = lax.rsqrt(a)
    return jnp.where((a > 0) & (a < jnp.inf), r + 0.5 * r * (1.0 - (a * r) * r), r)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    x = given["x"]
    rows, columns = x.shape
    block, shared = pl.BlockSpec((c["rows"], columns), lambda i: (i, 0)), pl.BlockSpec((1, columns), lambda i: (0, 0))
    inputs = {
        n: given[n] if n in ("x", "residual") else given[n][None] for n in ("x", "residual", "weight", "bias") if given.get(n) is not None
    }
    outputs = [n for n in ("y", "s") if p.get(n) is not None]
    made = call(
        partial(_kernel, names=(*inputs, *outputs), step=WORD[p["x"].dtype], eps=float(p.option("eps"))), on, name="rms_norm",
        order=("parallel",), grid=(pl.cdiv(rows, c["rows"]),), in_specs=[block if n in ("x", "residual") else shared for n in inputs],
        out_specs=[block] * len(outputs), out_shape=[like(x)] * len(outputs),
    )(*inputs.values())
    return dict(zip(outputs, made, strict=True))
