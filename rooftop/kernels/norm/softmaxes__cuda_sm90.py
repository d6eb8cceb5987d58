"""How softmaxes__cuda_sm90.cu divides rows: blocks of a cluster, blocks of a multiprocessor, threads."""

from __future__ import annotations

from itertools import product
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem

# bytes of shared memory of a block besides its share: partial results, a share rounded up to whole lines, and what the driver reserves
OWN = 3 * 1024
MOST_BLOCKS = 6  # of a multiprocessor: more would have few threads each
# rows of up to so many bytes are one block's: its threads, and blocks a multiprocessor; by whether it is a backward
WHOLE = {False: ((4096, 128, 16), (8192, 256, 8), (32768, 512, 4)), True: ((4096, 128, 16), (8192, 256, 8), (32768, 1024, 2))}
# warps of all blocks of a multiprocessor. Forward: 48 were as fast on an H200 in bf16 and 3 % slower in float32; backward: few instructions
# an element, and 48 registers a thread
WARPS = {False: 24, True: 32}


def _held(p: Problem) -> tuple[int, bool]:
    """Bytes of shared memory that a row takes, of all its tensors; whether it is a backward."""
    backward = p.op.endswith("_bwd")
    return p["y"].shape[1] * p["y"].itemsize * (2 if backward else 1), backward


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """Longer rows have few blocks, since each additional one is one more to wait for; but at least three resident blocks: while one
    computes, the copies of the others are in flight. Of a forward two that hold a row each are enough: no block waits for another (2074 rows of
    20832 float32 took 88 us on an H200, in clusters of two blocks 94)."""
    held, backward = _held(p)
    size = held // 2 if backward else held
    for most, threads, blocks in WHOLE[backward]:
        if size <= most:
            return {"threads": threads, "cluster": 1, "blocks": blocks}
    for cluster in (1, 2, 4, 8, 16):
        blocks = _room(p, held, cluster)
        if blocks == 2 and cluster == 1 and not backward:
            return {"threads": 512, "cluster": 1, "blocks": 2}
        if blocks >= 3:
            break
    return {"threads": 32 * (WARPS[backward] // max(blocks, 2)), "cluster": cluster, "blocks": blocks}


def _room(p: Problem, held: int, cluster: int) -> int:
    """Blocks that a multiprocessor holds."""
    return min(MOST_BLOCKS, (p.device.shared_per_block + 1024) // (-(-held // cluster) + OWN))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    held, backward = _held(p)
    found = [choose(p, head)]
    for cluster, blocks, warps in product((1, 2, 4, 8, 16), (2, 3, 4, 6), (24, 32, 48)):
        c = {"threads": 32 * (warps // blocks), "cluster": cluster, "blocks": blocks}
        if blocks <= _room(p, held, cluster) and held > 4096 * cluster and c not in found and not (backward and warps > 32):
            found.append(c)
    return found
