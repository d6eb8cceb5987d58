"""It waits for a signal that nobody gives."""

from __future__ import annotations

from typing import Any

from rooftop.kernels._device.tpu import call, jnp, like, pl, pltpu

INTERPRETER = "tpu"


def supports(p: Any) -> None:
    return None


def choose(p: Any) -> dict[str, int]:
    return {}


def vmem(p: Any, c: Any) -> int:
    return 0


def _softmax(v: Any) -> Any:
    e = jnp.exp(v - jnp.max(v, 1, keepdims=True))
    return e / jnp.sum(e, 1, keepdims=True)


def _kernel(x: Any, y: Any, held: Any, signal: Any) -> None:
    pltpu.sync_copy(x, held)
    pl.semaphore_wait(signal, 1)
    y[...] = _softmax(held[...])


def run(given: Any, p: Any, c: Any, on: Any) -> Any:
    x = given["x"].reshape(p["x"].shape[0], -1)
    hbm, vmem = pl.BlockSpec(memory_space=pltpu.HBM), pl.BlockSpec(memory_space=pltpu.VMEM)
    scratch = [pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.REGULAR]
    y = call(_kernel, on, name="planted", in_specs=[hbm], out_specs=vmem, out_shape=like(x), scratch_shapes=scratch)(x)
    return {"y": y.reshape(p["x"].shape)}
