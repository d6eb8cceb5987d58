"""out = a b with a pipeline of the kernel's own over matrices that stay in HBM."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import On, call, jnp, like, padded, pl, pltpu, tile, up

IDEA = "One kernel call gets a and b in HBM and copies the tiles itself, with an explicit pipeline over the same grid."
LIMIT = "The pipeline is the same that Pallas generates for a grid; the gain is that other work can run around it. The tiles are as small as before."
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
    return 4 * (c["m"] * c["k"] + c["k"] * c["n"]) + 8 * c["m"] * c["n"]


def _step(a: Any, b: Any, out: Any, *, acc: Any, steps: int) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        acc[...] = jnp.zeros_like(acc)

    acc[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == steps - 1)
    def _() -> None:
        out[...] = acc[...].astype(out.dtype)


def _kernel(a: Any, b: Any, out: Any, acc: Any, *, m: int, n: int, k: int) -> None:
    """a, b and out in HBM."""
    steps = a.shape[1] // k
    pltpu.emit_pipeline(
        partial(_step, acc=acc, steps=steps), grid=(a.shape[0] // m, b.shape[1] // n, steps),
        in_specs=[pl.BlockSpec((m, k), lambda i, j, k: (i, k)), pl.BlockSpec((k, n), lambda i, j, k: (k, j))],
        out_specs=[pl.BlockSpec((m, n), lambda i, j, k: (i, j))],
    )(a, b, out)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    m, n = p["out"].shape
    k = up(max(p["a"].shape[1], 1), c["k"])
    a, b = padded(given["a"], up(m, c["m"]), k), padded(given["b"], k, up(n, c["n"]))
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    out = call(
        partial(_kernel, **c), on, name="pipelined", in_specs=[hbm, hbm], out_specs=hbm, out_shape=like(a, a.dtype, a.shape[0], b.shape[1]),
        scratch_shapes=[pltpu.VMEM((c["m"], c["n"]), jnp.float32)],
    )(a, b)
    return {"out": out[:m, :n]}
