"""Products of matrices on a TPU: tile sizes from the sizes of the matrix units and of VMEM, and the kernel that sums over a grid into an
accumulator in VMEM.

The grid's last dimension is K. While the matrix units multiply one pair of tiles, the next pair is copied from HBM: Pallas does that for
every block of a grid.
The limit: a tile of m x n makes 2 m n K products for (m + n) K elements read, so a tile of 512 x 512 makes 256 products for a byte of
bfloat16; v5e makes 120 in the time of a byte of HBM, v6e 280."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Meta, Problem
from rooftop.kernels._device.tpu import LANES, WORD, On, call, jnp, like, pl, pltpu, tile, up

SIDE = 4  # sides of the tile, in sides of a matrix unit: a weight tile loaded into a unit is used for so many rows
DEEP = 4096  # of K in one step: the accumulator is read and written once a step, so the deeper the better


def extents(p: Problem) -> tuple[int, int, int, int]:
    """(batch, M, N, K)"""
    a, b = p["a"], p["b"]
    return (a.shape[0] if len(a.shape) == 3 else 1), a.shape[-2], b.shape[-1], a.shape[-1]


def choose(p: Problem) -> dict[str, int]:
    """The largest tiles that fit VMEM, of equal size, so that the last one is not nearly empty."""
    _, m, n, k = extents(p)
    device: Any = p.device
    side, step = SIDE * device.matrix_side, WORD[p["a"].dtype]
    deep = DEEP
    while True:
        c = {"m": tile(m, step, side), "n": tile(n, LANES, side), "k": tile(k, LANES, deep)}
        if vmem(p, c) <= device.shared_per_block or deep <= LANES:
            return c
        deep //= 2


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """VMEM: two tiles of each operand and of the added tensors, two of the result, the accumulator and the product added to it."""
    out: Meta = p["out"]
    tiles = 2 * (c["m"] * c["k"] + c["k"] * c["n"]) * p["a"].itemsize + 2 * c["m"] * c["n"] * out.itemsize + 8 * c["m"] * c["n"]
    more = [m for name in ("c", "gate", "residual") if (m := p.get(name)) is not None]
    return tiles + sum(2 * c["m"] * c["n"] * m.itemsize for m in more)


def _kernel(*refs: Any, steps: int, more: tuple[str, ...], finish: Callable[..., Any]) -> None:
    """a [1, m, k], b [1, k, n], then the tiles of `more`, out [1, m, n], acc [m, n]. The accumulator stays in VMEM along K."""
    a, b, *rest = refs
    *given, out, acc = rest
    k = pl.program_id(3)

    @pl.when(k == 0)
    def _() -> None:
        acc[...] = jnp.zeros_like(acc)

    acc[...] += jnp.dot(a[0], b[0], preferred_element_type=acc.dtype)

    @pl.when(k == steps - 1)
    def _() -> None:
        out[0] = finish(acc[...], {name: ref[0] for name, ref in zip(more, given, strict=True)}).astype(out.dtype)


def product(
    a: Any, b: Any, c: Mapping[str, int], on: On, dtype: Any, total: Any, *, more: Mapping[str, Any] | None = None,
    finish: Callable[..., Any] | None = None
) -> Any:
    """a [B, M, K] times b [B, K, N] in tiles of `c`, accumulated as `total`; `finish(sum, tiles)` computes a tile of the result from it and
    from the tiles of `more` ([B, M, N], or [B, 1, N] if all rows are alike). Partial tiles are padded with zeros."""
    batch, m, k = a.shape
    n = b.shape[2]
    big = up(m, c["m"]), up(n, c["n"]), up(max(k, 1), c["k"])
    a, b = (jnp.pad(x, ((0, 0), (0, r - x.shape[1]), (0, s - x.shape[2]))) for x, r, s in ((a, big[0], big[2]), (b, big[2], big[1])))
    specs = [
        pl.BlockSpec((1, c["m"], c["k"]), lambda z, i, j, k: (z, i, k)),
        pl.BlockSpec((1, c["k"], c["n"]), lambda z, i, j, k: (z, k, j)),
    ]
    tiles = []
    for x in (more or {}).values():
        row = x.shape[1] == 1
        tiles.append(jnp.pad(x, ((0, 0), (0, 0 if row else big[0] - m), (0, big[1] - n))))
        at = (lambda z, i, j, k: (0, 0, j)) if row else (lambda z, i, j, k: (z, i, j))
        specs.append(pl.BlockSpec((1, 1 if row else c["m"], c["n"]), at))
    steps = big[2] // c["k"]
    kernel = partial(_kernel, steps=steps, more=tuple(more or ()), finish=finish or (lambda acc, tiles: acc))
    out = call(
        kernel, on, name="matmul", order=("parallel", "parallel", "parallel", "arbitrary"),
        grid=(batch, big[0] // c["m"], big[1] // c["n"], steps),
        in_specs=specs, out_specs=pl.BlockSpec((1, c["m"], c["n"]), lambda z, i, j, k: (z, i, j)),
        out_shape=like(a, dtype, batch, *big[:2]), scratch_shapes=[pltpu.VMEM((c["m"], c["n"]), total)],
    )(a, b, *tiles)
    return out[:, :m, :n]
