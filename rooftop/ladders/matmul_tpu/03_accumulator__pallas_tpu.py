"""out = a b by a grid over K too: a tile of sums stays in VMEM while K goes by."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import On, call, jnp, lax, like, padded, pl, pltpu, tile, up

IDEA = "The grid's last dimension is K, and the sums of a tile stay in VMEM: any K fits."
LIMIT = "The product is in float32: six passes of the matrix units."
TILE = 256


def supports(p: Problem) -> str | None:
    plain = all(p.get(n) is None for n in ("c", "bias", "gate", "residual")) and p.option("activation") == "none" and p.option("alpha") == 1.0
    if p["a"].dtype != "bf16" or len(p["a"].shape) != 2 or p["out"].dtype != "bf16" or not plain:
        return "it multiplies two matrices of bfloat16 and does nothing more"
    return None


def choose(p: Problem) -> dict[str, int]:
    (m, k), n = p["a"].shape, p["b"].shape[1]
    return {"m": tile(m, 16, TILE), "n": tile(n, 128, TILE), "k": tile(k, 128, TILE)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """Two of each tile, since the next comes while one is multiplied, and the sums."""
    return 8 * (c["m"] * c["k"] + c["k"] * c["n"]) + 8 * c["m"] * c["n"]


def _kernel(a: Any, b: Any, out: Any, acc: Any, *, steps: int) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        acc[...] = jnp.zeros_like(acc)

    wide = (x[...].astype(jnp.float32) for x in (a, b))
    acc[...] += jnp.dot(*wide, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == steps - 1)
    def _() -> None:
        out[...] = acc[...].astype(out.dtype)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    m, n = p["out"].shape
    k = up(max(p["a"].shape[1], 1), c["k"])
    a, b = padded(given["a"], up(m, c["m"]), k), padded(given["b"], k, up(n, c["n"]))
    out = call(
        partial(_kernel, steps=k // c["k"]), on, name="accumulator", order=("parallel", "parallel", "arbitrary"),
        grid=(a.shape[0] // c["m"], b.shape[1] // c["n"], k // c["k"]),
        in_specs=[pl.BlockSpec((c["m"], c["k"]), lambda i, j, k: (i, k)), pl.BlockSpec((c["k"], c["n"]), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((c["m"], c["n"]), lambda i, j, k: (i, j)), out_shape=like(a, a.dtype, a.shape[0], b.shape[1]),
        scratch_shapes=[pltpu.VMEM((c["m"], c["n"]), jnp.float32)],
    )(a, b)
    return {"out": out[:m, :n]}
