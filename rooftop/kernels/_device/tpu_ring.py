"""Four TPUs in a ring: each sends to its right neighbour what it has, block by block, by copies into the neighbour's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooftop.kernels._device.tpu import On, jax, lax, pl, pltpu

DEVICES = 4


def meet(me: Any) -> None:
    """Wait until both neighbours are in the kernel: before, their memory is not there to be written."""
    barrier = pltpu.get_barrier_semaphore()
    for other in (lax.rem(me + 1, DEVICES), lax.rem(me + DEVICES - 1, DEVICES)):
        pl.semaphore_signal(barrier, 1, device_id=(other,), device_id_type=pl.DeviceIdType.MESH)
    pl.semaphore_wait(barrier, 2)


def around(held: Any, sent: Any, received: Any, use: Callable[[Any], None]) -> None:
    """Bring every device's block to all. `held` [4, ...]: the block of device d at place d, of which a device has its own at first; `sent` and `received`: a
    semaphore a step. `use(d)` is called as soon as block d is there, while it goes on to the neighbour. No place is written twice, so nobody waits to be
    allowed to send."""
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
        )  # fmt: skip
        copy.start()
        use(block)
        copy.wait()  # the block is sent, and the next is here


def spread(function: Callable[..., Any], on: On) -> Callable[..., Any]:
    """`function` on every device, with its part of the first dimension of each argument; its results are put together along the first."""
    part = jax.sharding.PartitionSpec("x")
    return jax.shard_map(function, mesh=on.mesh, in_specs=part, out_specs=part, check_vma=False)  # type: ignore[no-any-return]
