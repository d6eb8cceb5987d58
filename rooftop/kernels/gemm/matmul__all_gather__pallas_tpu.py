"""All-gather and product in one kernel over four TPUs in a ring: a is divided by rows, b and the result by columns.

A device multiplies the block of a that it holds while remote DMA sends that block to its neighbour, so that communication is hidden behind
the matrix units from a block of some hundred rows on. This is the product of tensor-parallel layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import LANES, WORD, On, call, jnp, lax, like, pl, pltpu, up
from rooftop.kernels._device.tpu_ring import DEVICES, around, spread

INTERPRETER = "tpu"  # it copies by hand
FIGURES = ("2048 cubed bf16",)
STRIP = 256  # rows of a that are multiplied at once


def supports(p: Problem) -> str | None:
    if p["a"].dtype != "bf16" or len(p["a"].shape) != 2:
        return f"a is {p['a'].dtype} of {len(p['a'].shape)} dimensions; it takes two matrices of bfloat16"
    more = [n for n in ("c", "bias", "gate", "residual") if p.get(n) is not None]
    if more or p.option("activation") != "none" or p.option("alpha") != 1.0:
        return f"it makes the product alone; given are {', '.join([*more, str(p.option('activation')), str(p.option('alpha'))])}"
    return None


def choose(p: Problem) -> dict[str, int]:
    """For one device: rows of a, columns of b, and K."""
    (m, k), n = p["a"].shape, p["b"].shape[1]
    rows = up(max(1, -(-m // DEVICES)), WORD["bf16"])
    return {"m": rows if rows <= STRIP else up(rows, STRIP), "n": up(max(1, -(-n // DEVICES)), LANES), "k": up(max(1, k), LANES)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """VMEM: all of a, a quarter of b, a quarter of the result, and a strip of sums."""
    return 2 * (
        DEVICES * c["m"] * c["k"] + c["k"] * c["n"]
    ) + p["out"].itemsize * DEVICES * c["m"] * c["n"] + 4 * min(c["m"], STRIP) * c["n"]


def _kernel(a: Any, b: Any, out: Any, held: Any, own: Any, sent: Any, received: Any) -> None:
    """a [1, m, K] in HBM, b [1, K, n] in VMEM, out [1, 4, m, n] in VMEM, held [4, m, K] in VMEM: the blocks of a as they arrive."""
    copy = pltpu.make_async_copy(a.at[0], held.at[lax.axis_index("x")], own)
    copy.start()
    copy.wait()
    rows = held.shape[1]
    strip = min(rows, STRIP)

    def multiply(block: Any) -> None:
        def one(i: Any, _: Any) -> Any:
            at = pl.ds(pl.multiple_of(i * strip, strip), strip)
            out[0, block, at, :] = jnp.dot(held[block, at, :], b[0], preferred_element_type=jnp.float32).astype(out.dtype)
            return 0

        lax.fori_loop(0, rows // strip, one, 0)

    around(held, sent, received, multiply)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    (m, k), n = p["a"].shape, p["b"].shape[1]
    rows, columns, deep = c["m"], c["n"], c["k"]
    a = jnp.pad(given["a"], ((0, DEVICES * rows - m), (0, deep - k))).reshape(DEVICES, rows, deep)
    b = jnp.pad(given["b"], ((0, deep - k), (0, DEVICES * columns - n))).reshape(deep, DEVICES, columns).swapaxes(0, 1)
    dtype = jnp.bfloat16 if p["out"].dtype == "bf16" else jnp.float32
    vmem, semaphore = pl.BlockSpec(memory_space=pltpu.VMEM), pltpu.SemaphoreType.DMA

    def multiply(a: Any, b: Any) -> Any:
        return call(
            _kernel, on, name="all_gather_matmul", collective=0, in_specs=[pl.BlockSpec(memory_space=pltpu.HBM), vmem], out_specs=vmem,
            out_shape=like(a, dtype, 1, DEVICES, rows, columns),
            scratch_shapes=[pltpu.VMEM((DEVICES, rows, deep), a.dtype), semaphore, semaphore((DEVICES - 1,)), semaphore((DEVICES - 1,))],
        )(a, b)

    out = spread(multiply, on)(a, b).reshape(DEVICES, DEVICES * rows, columns)
    return {"out": jnp.moveaxis(out, 0, 1).reshape(DEVICES * rows, -1)[:m, :n]}
