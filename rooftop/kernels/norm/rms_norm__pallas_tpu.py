"""Root-mean-square normalisation for a TPU: whole rows in VMEM, reduced across lanes in strips of rows that the registers hold. HBM bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import WORD, On, call, jnp, lax, like, pl, tile, up
from rooftop.kernels._device.tpu_numbers import RAISE, TINY, lowered, raised

BLOCK = 1 << 20  # bytes of float32 that a block of rows holds at least, where there are so many
STRIP = 32  # registers, each 8 x 128 words, that a strip of rows fills at most: x, and what is made of it, must stay in 64


def supports(p: Problem) -> str | None:
    return None


def choose(p: Problem) -> dict[str, int]:
    rows, columns = p["x"].shape
    step, width = WORD[p["x"].dtype], up(columns, 128)
    strip = max(step, STRIP * 1024 // width // step * step)
    block = min(rows, tile(rows, step, max(strip, BLOCK // (4 * width) // strip * strip)))
    return {"rows": block, "strip": min(strip, block)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """Two blocks of each tensor of rows, since the next is copied while one is computed, two rows of what every row shares, three strips in float32."""
    width = up(p["x"].shape[1], 128)
    blocks = sum(1 for n in ("x", "residual", "y", "s") if p.get(n) is not None)
    shared = sum(1 for n in ("weight", "bias") if p.get(n) is not None)
    return 2 * blocks * up(c["rows"], 8) * width * p["x"].itemsize + 2 * shared * 8 * width * 4 + 12 * up(c["strip"], 8) * width


def _kernel(*refs: Any, names: tuple[str, ...], strip: int, eps: float) -> None:
    """x, residual, y, s: [rows, columns]; weight, bias: [1, columns]"""
    ref = dict(zip(names, refs, strict=True))
    x, y = ref["x"], ref["y"]
    whole, rest = divmod(x.shape[0], strip)

    def one(at: Any) -> None:
        v = x[at, :].astype(jnp.float32)
        if "residual" in ref:
            v = (v + ref["residual"][at, :].astype(jnp.float32)).astype(x.dtype)
            ref["s"][at, :] = v
            v = v.astype(jnp.float32)
        weight, bias = (ref[n][...].astype(jnp.float32) if n in ref else None for n in ("weight", "bias"))
        tiny = jnp.max(jnp.abs(v), 1, keepdims=True) < TINY
        few = jnp.any(tiny)

        def out(v: Any, up: Any) -> Any:
            """`up`: how many times larger than they are v and the result are taken."""
            scaled = v * lax.rsqrt(jnp.mean(jnp.square(v / up), 1, keepdims=True) + eps)
            scaled = scaled if weight is None else scaled * weight
            return scaled if bias is None else scaled + bias * up

        @pl.when(jnp.logical_not(few))
        def _() -> None:
            y[at, :] = out(v, 1.0).astype(y.dtype)

        @pl.when(few)
        def _() -> None:
            made = out(jnp.where(tiny, raised(v), v), jnp.where(tiny, RAISE, 1.0))
            y[at, :] = jnp.where(tiny, lowered(made), made).astype(y.dtype)

    def step(i: Any, _: Any) -> Any:
        one(pl.ds(pl.multiple_of(i * strip, strip), strip))
        return 0

    if whole:
        lax.fori_loop(0, whole, step, 0)
    if rest:
        one(pl.ds(whole * strip, rest))


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    x = given["x"]
    rows, columns = x.shape
    block, shared = pl.BlockSpec((c["rows"], columns), lambda i: (i, 0)), pl.BlockSpec((1, columns), lambda i: (0, 0))
    inputs = {n: given[n] if n in ("x", "residual") else given[n][None] for n in ("x", "residual", "weight", "bias") if given.get(n) is not None}
    outputs = [n for n in ("y", "s") if p.get(n) is not None]
    made = call(
        partial(_kernel, names=(*inputs, *outputs), strip=c["strip"], eps=float(p.option("eps"))), on, name="rms_norm", order=("parallel",),
        grid=(pl.cdiv(rows, c["rows"]),), in_specs=[block if n in ("x", "residual") else shared for n in inputs], out_specs=[block] * len(outputs),
        out_shape=[like(x)] * len(outputs),
    )(*inputs.values())  # fmt: skip
    return dict(zip(outputs, made, strict=True))
