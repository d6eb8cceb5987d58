"""The product of bfloat16 matrices on a TPU's matrix units, with a fused epilogue. The grid and its accumulator:
kernels/gemm/_tiles_tpu.py"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import On, jax, jnp
from rooftop.kernels.gemm._tiles_tpu import choose, extents, product, vmem

__all__ = ["FIGURES", "choose", "run", "supports", "vmem"]
FIGURES = ("4096 cubed bf16",)  # compiled for figures
AROUND = ("c", "gate", "residual")  # of the shape of the result


def supports(p: Problem) -> str | None:
    if p["a"].dtype != "bf16":
        return f"a is {p['a'].dtype}; the matrix unit multiplies bfloat16, and float32 is not IEEE's through it"
    return None


def activated(x: Any, name: str) -> Any:
    match name:
        case "relu":
            return jnp.where(x < 0, 0.0, x)  # keeps NaN
        case "silu":
            return x / (1.0 + jnp.exp(-x))
        case "gelu":
            return 0.5 * x * (1.0 + jax.lax.erf(x * 0.7071067811865476))
        case "gelu_tanh":
            return 0.5 * x * (1.0 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return x


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    alpha, beta = float(p.option("alpha")), float(p.option("beta"))
    out = p["out"]
    batch = extents(p)[0]
    read = {n: given[n].reshape((batch, *out.shape[-2:])) for n in AROUND if given.get(n) is not None and not (n == "c" and beta == 0.0)}
    if given.get("bias") is not None:
        read["bias"] = given["bias"].reshape(1, 1, -1)

    def finish(acc: Any, tiles: Mapping[str, Any]) -> Any:
        """[m, n] float32, rounded by the caller."""
        wide = {n: t.astype(jnp.float32) for n, t in tiles.items()}
        x = acc * alpha
        x = x + beta * wide["c"] if "c" in wide else x
        x = activated(x + wide["bias"] if "bias" in wide else x, str(p.option("activation")))
        x = x * wide["gate"] if "gate" in wide else x
        return x + wide["residual"] if "residual" in wide else x

    a, b = (given[n].reshape((batch, *given[n].shape[-2:])) for n in ("a", "b"))
    made = product(a, b, c, on, jnp.bfloat16 if out.dtype == "bf16" else jnp.float32, jnp.float32, more=read, finish=finish)
    return {"out": made.reshape(out.shape)}
