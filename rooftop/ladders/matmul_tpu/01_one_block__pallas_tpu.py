"""out = a b, all three in VMEM at once: one call of one block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import On, call, jnp, lax, like, padded, pl, pltpu, strips, up

IDEA = "The whole of a and b is copied to VMEM, multiplied in float32, and the result copied back."
LIMIT = "Copies and computation do not overlap, and matrices beyond some 3000 rows do not fit VMEM. Float32 takes six passes of bfloat16."


def supports(p: Problem) -> str | None:
    plain = all(p.get(n) is None for n in ("c", "bias", "gate", "residual")) and p.option("activation") == "none" and p.option("alpha") == 1.0
    if p["a"].dtype != "bf16" or len(p["a"].shape) != 2 or p["out"].dtype != "bf16" or not plain:
        return "it multiplies two matrices of bfloat16 and does nothing more"
    return None


def choose(p: Problem) -> dict[str, int]:
    (m, k), n = p["a"].shape, p["b"].shape[1]
    return {"m": up(max(m, 1), 16), "n": up(max(n, 1), 128), "k": up(max(k, 1), 128)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """a and b, both in float32 as well, the result in both."""
    return 6 * (c["m"] * c["k"] + c["k"] * c["n"] + c["m"] * c["n"])


def _kernel(a: Any, b: Any, out: Any) -> None:
    def strip(start: Any, rows: int) -> None:
        at = pl.ds(start, rows)
        wide = a[at, :].astype(jnp.float32), b[...].astype(jnp.float32)
        out[at, :] = jnp.dot(*wide, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32).astype(out.dtype)

    strips(a.shape[0], 128, strip)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    a, b = padded(given["a"], c["m"], c["k"]), padded(given["b"], c["k"], c["n"])
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    out = call(_kernel, on, name="one_block", in_specs=[whole, whole], out_specs=whole, out_shape=like(a, a.dtype, c["m"], c["n"]))(a, b)
    m, n = p["out"].shape
    return {"out": out[:m, :n]}
