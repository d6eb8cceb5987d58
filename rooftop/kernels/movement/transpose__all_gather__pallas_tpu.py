"""All-gather over four TPUs in a ring, as a copy: each device has a quarter of the rows, and all have all of them after three steps.

A step sends one block to the right neighbour by remote DMA; each link carries three quarters of the result, the minimum for a ring in one
direction. All four copies are checked: if they differ, the result is made wrong."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import LANES, WORD, On, call, jnp, lax, like, pl, pltpu, up
from rooftop.kernels._device.tpu_ring import DEVICES, around, spread

INTERPRETER = "tpu"  # it copies by hand
FIGURES = ("heads 8x4096x32x128 bf16",)


def supports(p: Problem) -> str | None:
    return None if p["out"].strides[4] == 1 or p["x"].shape[4] == 1 else "it gathers rows as they are: the columns must stay neighbours"


def choose(p: Problem) -> dict[str, int]:
    *batch, rows, columns = p["x"].shape
    return {"rows": up(-(-prod(batch) * rows // DEVICES), WORD[p["x"].dtype]), "columns": up(columns, LANES)}


def vmem(p: Problem, c: Mapping[str, int]) -> int:
    """None: it copies from HBM to HBM."""
    return 0


def _kernel(x: Any, out: Any, own: Any, sent: Any, received: Any) -> None:
    """x [1, rows, columns], out [1, 4, rows, columns] in HBM."""
    me = lax.axis_index("x")
    copy = pltpu.make_async_copy(x.at[0], out.at[0, me], own)
    copy.start()
    copy.wait()
    around(out.at[0], sent, received, lambda block: None)


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    columns = p["x"].shape[4]
    x = given["x"].reshape(-1, columns)
    rows = x.shape[0]
    x = jnp.pad(x, ((0, DEVICES * c["rows"] - rows), (0, c["columns"] - columns))).reshape(DEVICES, c["rows"], c["columns"])
    hbm, semaphore = pl.BlockSpec(memory_space=pltpu.HBM), pltpu.SemaphoreType.DMA

    def gather(x: Any) -> Any:
        return call(
            _kernel, on, name="all_gather", collective=0, in_specs=[hbm], out_specs=hbm,
            out_shape=like(x, x.dtype, 1, DEVICES, *x.shape[1:]),
            scratch_shapes=[semaphore, semaphore((DEVICES - 1,)), semaphore((DEVICES - 1,))],
        )(x)

    copies = spread(gather, on)(x).reshape(DEVICES, -1, c["columns"])[:, :rows, :columns]
    return {"out": jnp.where((copies == copies[:1]).all(0), copies[0], ~copies[0])}


def finish(outputs: Mapping[str, Any], p: Problem) -> dict[str, Any]:
    return {"out": outputs["out"].reshape(p["out"].shape)}
