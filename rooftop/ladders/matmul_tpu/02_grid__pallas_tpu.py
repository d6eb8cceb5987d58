"""out = a b by a grid of tiles of the result, each from all of K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import On, call, jnp, lax, like, padded, pl, tile, up

IDEA = "A grid over tiles of the result: rows of a and columns of b are copied to VMEM while the tile before is computed."
LIMIT = "A tile needs all of K in VMEM, and the product is still in float32."
TILE = 256


def supports(p: Problem) -> str | None:
    plain = all(p.get(n) is None for n in ("c", "bias", "gate", "residual")) and p.option("activation") == "none" and p.option("alpha") == 1.0
    if p["a"].dtype != "bf16" or len(p["a"].shape) != 2 or p["out"].dtype != "bf16" or not plain:
        return "it multiplies two matrices of bfloat16 and does nothing more"
    return None


def choose(p: Problem) -> dict[str, int]:
    (m, k), n = p["a"].shape, p["b"].shape[1]
    return {"m": tile(m, 16, TILE), "n": tile(n, 128, TILE), "k": up(max(k, 1), 128)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """Two of each tile, since the next comes while one is multiplied, and each in float32."""
    return 8 * (c["m"] * c["k"] + c["k"] * c["n"] + c["m"] * c["n"])


def _kernel(a: Any, b: Any, out: Any) -> None:
    wide = (x[...].astype(jnp.float32) for x in (a, b))
    out[...] = jnp.dot(*wide, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32).astype(out.dtype)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    m, n = p["out"].shape
    a, b = padded(given["a"], up(m, c["m"]), c["k"]), padded(given["b"], c["k"], up(n, c["n"]))
    out = call(
        _kernel, on, name="grid", order=("parallel", "parallel"), grid=(a.shape[0] // c["m"], b.shape[1] // c["n"]),
        in_specs=[pl.BlockSpec((c["m"], c["k"]), lambda i, j: (i, 0)), pl.BlockSpec((c["k"], c["n"]), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((c["m"], c["n"]), lambda i, j: (i, j)), out_shape=like(a, a.dtype, a.shape[0], b.shape[1]),
    )(a, b)
    return {"out": out[:m, :n]}
