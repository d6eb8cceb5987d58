"""Attention for a TPU: a block of queries stays in VMEM while the grid loops over the keys, with the running maximum and sum of
FlashAttention-2.

The grid's last dimension is the keys; blocks of keys that no query of the block sees are skipped. A block has one head, so heads come
before
tokens: the caller's [B, S, H, D] is first transposed to [B, H, S, D]. Query head h reads key head h // (H / Hk) through the block's index.
The matrix unit multiplies bfloat16; the vector unit computes the exponentials, and is the limit for small D."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import LANES, WORD, On, call, jnp, lax, like, pl, pltpu, tile, up

# of a block at most: scores of 256 KiB in float32, twice the registers. The compiler unrolls a block: larger ones take minutes
QUERIES, KEYS = 256, 256
CYCLES = False  # libtpu's cost estimate visits every step of the grid: with more steps it takes minutes and gigabytes
NOT_TAKEN = (
    "bias", "mask", "cu_seqlens_q", "cu_seqlens_k", "page_table", "cache_lengths", "alibi_slopes", "q_scale", "k_scale", "v_scale", "sinks",
    "key_begin", "key_end",
)


def supports(p: Problem) -> str | None:
    if given := [n for n in NOT_TAKEN if p.get(n) is not None]:
        return f"{', '.join(given)} is given; it takes q, k and v alone"
    if p.option("dropout_p"):
        return "dropout_p is above 0; it drops nothing"
    if p["q"].dtype != "bf16" or p["v"].dtype != "bf16":
        return f"q is {p['q'].dtype} and v {p['v'].dtype}; the matrix unit multiplies bfloat16"
    return None


def choose(p: Problem) -> dict[str, int]:
    step = WORD["bf16"]
    return {"queries": tile(p["q"].shape[1], step, QUERIES), "keys": tile(p["k"].shape[1], LANES, KEYS)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """VMEM: two blocks of q, k, v and the result, the running sums, and two of scores."""
    d, dv = up(p["q"].shape[3], LANES), up(p["v"].shape[3], LANES)
    blocks = 2 * 2 * (c["queries"] * (d + dv) + c["keys"] * (d + dv))
    return blocks + 4 * c["queries"] * (2 * LANES + dv + 2 * LANES) + 8 * c["queries"] * up(c["keys"], LANES)


def _kernel(
    scale: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, most: Any, total: Any, acc: Any, *, steps: int, keys: int, shift: int,
    left: int, right: int, cap: float,
) -> None:
    """q [1, 1, queries, D], k and v [1, 1, keys, D]; most, total [queries, 128], one number a row; acc [queries, Dv]. Query i is at
    position i + shift."""
    bq, bk = q.shape[2], k.shape[2]
    i, j = pl.program_id(2) * bq, pl.program_id(3) * bk

    @pl.when(j == 0)
    def _() -> None:
        most[...] = jnp.full_like(most, -jnp.inf)
        total[...] = jnp.zeros_like(total)
        acc[...] = jnp.zeros_like(acc)

    seen = j < keys
    if right >= 0:
        seen &= j <= i + bq - 1 + shift + right
    if left >= 0:
        seen &= j + bk - 1 >= i + shift - left

    @pl.when(seen)
    def _() -> None:
        z = lax.dot_general(q[0, 0], k[0, 0], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32) * scale[0]
        if cap:
            z = cap * jnp.tanh(z / cap)
        position = i + shift + lax.broadcasted_iota(jnp.int32, (bq, bk), 0)
        key = j + lax.broadcasted_iota(jnp.int32, (bq, bk), 1)
        visible = key < keys
        visible = visible & (key <= position + right) if right >= 0 else visible
        visible = visible & (key >= position - left) if left >= 0 else visible
        z = jnp.where(visible, z, -jnp.inf)
        before = most[:, :1]
        now = jnp.maximum(before, jnp.max(z, 1, keepdims=True))
        base = jnp.where(now == -jnp.inf, 0.0, now)  # a query that attends to no key so far
        weight, keep = jnp.exp(z - base), jnp.exp(before - base)
        total[...] = jnp.broadcast_to(keep * total[:, :1] + jnp.sum(weight, 1, keepdims=True), total.shape)
        acc[...] = keep * acc[...] + jnp.dot(weight.astype(v.dtype), v[0, 0], preferred_element_type=jnp.float32)
        most[...] = jnp.broadcast_to(now, most.shape)

    @pl.when(pl.program_id(3) == steps - 1)
    def _() -> None:
        sums = total[:, :1]
        nothing = sums == 0.0
        out[0, 0] = jnp.where(nothing, 0.0, acc[...] / jnp.where(nothing, 1.0, sums)).astype(out.dtype)
        lse[0, 0] = jnp.where(nothing, -jnp.inf, most[:, :1] + jnp.log(jnp.where(nothing, 1.0, sums)))


def prepare(given: Mapping[str, Any], p: Problem) -> dict[str, Any]:
    """Transposes [B, S, H, D] to [B, H, S, D]."""
    return {n: x.swapaxes(1, 2) if n in ("q", "k", "v") else x for n, x in given.items()}


def finish(outputs: Mapping[str, Any], p: Problem) -> dict[str, Any]:
    return {"out": outputs["out"].swapaxes(1, 2), "lse": outputs["lse"][..., 0]}


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    (batch, queries, heads, d), (_, keys, key_heads, dv) = p["q"].shape, p["v"].shape
    if 0 in p["out"].shape or keys == 0:
        return {"out": jnp.zeros((batch, heads, queries, dv), jnp.bfloat16), "lse": jnp.full((*p["lse"].shape, 1), -jnp.inf, jnp.float32)}
    bq, bk, group = c["queries"], c["keys"], heads // key_heads
    q, k, v = (jnp.pad(given[n], ((0, 0), (0, 0), (0, -given[n].shape[2] % to), (0, 0))) for n, to in (("q", bq), ("k", bk), ("v", bk)))
    steps = k.shape[2] // bk
    left, right = int(p.option("left")), int(p.option("right"))
    kernel = partial(_kernel, steps=steps, keys=keys, shift=keys - queries, left=left, right=right, cap=float(p.option("softcap")))

    def of(rows: int, last: int, index: Any) -> Any:
        return pl.BlockSpec((1, 1, rows, last), index)

    row = lambda b, h, i, j: (b, h, i, 0)  # noqa: E731
    column = lambda b, h, i, j: (b, h // group, j, 0)  # noqa: E731
    out, lse = call(
        kernel, on, name="attention", order=("parallel", "parallel", "parallel", "arbitrary"), grid=(batch, heads, q.shape[2] // bq, steps),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), of(bq, d, row), of(bk, d, column), of(bk, dv, column)],
        out_specs=[of(bq, dv, row), of(bq, 1, row)],
        out_shape=[like(q, jnp.bfloat16, batch, heads, q.shape[2], dv), like(q, jnp.float32, batch, heads, q.shape[2], 1)],
        scratch_shapes=[pltpu.VMEM((bq, LANES), jnp.float32), pltpu.VMEM((bq, LANES), jnp.float32), pltpu.VMEM((bq, dv), jnp.float32)],
    )(given["scale"], q, k, v)
    return {"out": out[:, :, :queries], "lse": lse[:, :, :queries]}
