"""Four TPUs in a ring: each sends the blocks that it has to its right neighbour, one after another, by remote copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooftop.kernels._device.tpu import On, jax, lax, pl, pltpu

DEVICES = 4


def meet(me: Any) -> None:
    """Waits until both neighbours have started the kernel: before that their memory must not be written."""
    barrier = pltpu.get_barrier_semaphore()
    for other in (lax.rem(me + 1, DEVICES), lax.rem(me + DEVICES - 1, DEVICES)):
        pl.semaphore_signal(barrier, 1, device_id=(other,), device_id_type=pl.DeviceIdType.MESH)
    pl.semaphore_wait(barrier, 2)


def around(held: Any, sent: Any, received: Any, use: Callable[[Any], None]) -> None:
    """An all-gather: every device gets all blocks. `held` [4, ...]: the block of device d is at index d; each device starts with its own.
    `sent` and
    `received`: a semaphore a step. `use(d)` is called as soon as block d is there, while it is sent on to the neighbour. No place is
    written twice, so no flow control is needed."""
    me = lax.axis_index("x")
    meet(me)
    for step in range(DEVICES):
        block = lax.rem(me + DEVICES - step, DEVICES)
        if step == DEVICES - 1:
            use(block)
            continue
        copy = pltpu.make_async_remote_copy(
            held.at[block], held.at[block], sent.at[step], received.at[step],
            device_id=(lax.rem(me + 1, DEVICES),), device_id_type=pl.DeviceIdType.MESH,
        )
        copy.start()
        use(block)
        copy.wait()  # the block is sent, and the next one has arrived


def spread(function: Callable[..., Any], on: On) -> Callable[..., Any]:
    """Runs `function` on every device, with its shard of the first dimension of each argument; results are concatenated along the first."""
    part = jax.sharding.PartitionSpec("x")
    return jax.shard_map(function, mesh=on.mesh, in_specs=part, out_specs=part, check_vma=False)  # type: ignore[no-any-return]
