"""How many blocks of a cluster share a row that is held in their shared memory, and how many threads each block has."""

from __future__ import annotations

from rooftop.core.spec import Device

# bytes of shared memory of a block besides its share: partial results, a share rounded up to whole lines, and what the driver reserves
OWN = 3 * 1024
MOST = 6  # blocks of a multiprocessor: more would have few threads each


def choose(held: int, warps: int, device: Device) -> dict[str, int]:
    """Few blocks a row, since each additional block is one more to wait for; but at least three resident blocks: while one computes, the
    copies of the others are in flight.

    held   bytes of shared memory that a row takes, of all its tensors
    warps  of all blocks of a multiprocessor"""
    cluster, blocks = 1, 0
    while True:
        blocks = min(MOST, (device.shared_per_block + 1024) // (-(-held // cluster) + OWN))
        if blocks >= 3 or cluster == 16:
            return {"threads": 32 * (warps // max(blocks, 2)), "cluster": cluster, "blocks": blocks}
        cluster *= 2
