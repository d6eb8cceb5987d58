"""How rows are divided among the clusters of selections__cuda_sm90.cu, which hold them in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import DTYPES, Device, Launch, Meta, Problem, typed
from rooftop.kernels.select import _top_k

THREADS = 512  # as in selections__cuda_sm90.cu
CLUSTER = 8  # blocks of a cluster: the portable maximum
STATIC = 18 * 1024  # bytes of shared memory besides the row: histograms, sums and what the driver reserves


def packs(x: Meta, cluster: int) -> int:
    """Packs of 16 bytes of a row that a block holds, at any alignment of the row."""
    return -(-(-(-x.shape[1] * DTYPES[x.dtype].bytes // 16) + 1) // cluster)


def cluster_of(x: Meta, device: Device, static: int) -> int:
    """Blocks a row: two a multiprocessor, so that one reads while the other waits for its cluster; more blocks a row if there are few
    rows."""
    cluster, room = 1, device.shared_per_block // 2 - static
    while cluster < CLUSTER and (16 * packs(x, cluster) > room or (x.shape[0] * cluster <= device.sms and packs(x, cluster) > 4 * THREADS)):
        cluster *= 2
    return cluster


def too_long(x: Meta, device: Device, static: int) -> str | None:
    if x.shape[0] * CLUSTER >= 2**31:
        return f"fewer than 2^31 / {CLUSTER} rows"
    return f"a row must fit the shared memory of {CLUSTER} blocks" if 16 * packs(x, CLUSTER) + static > device.shared_per_block else None


def not_taken(p: Problem) -> str | None:
    return _top_k.not_taken(p) or too_long(p["x"], p.device, STATIC)


def choose(p: Problem) -> dict[str, Any]:
    return {"cluster": cluster_of(p["x"], p.device, STATIC)}


def launches(
    p: Problem, config: Mapping[str, Any], k: int, sense: int, value: str | None, index: str | None, mask: str | None
) -> list[Launch]:
    cluster, (rows, _) = int(config["cluster"]), _top_k.rows_of(p)
    x, lengths = _top_k.given(p)
    each = packs(p["x"], cluster)
    args: _top_k.Arguments = {
        **x, **lengths, "packs": (each, "u32"), "k": (k, "u32"), "sense": (sense, "u32"), "value": (value, "ptr"), "index": (index, "ptr"),
        "mask": (mask, "ptr"),
    }
    return [
        Launch(
            f"held_select<{DTYPES[p['x'].dtype].cuda}>", (rows * cluster,), **typed(args, value_first=True),
            block=(THREADS,), cluster=(cluster,), shared=16 * each, pdl=True,
        )
    ]
