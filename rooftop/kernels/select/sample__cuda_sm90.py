"""The launch of sample__cuda_sm90.cu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem

THREADS = 512  # as in the kernel
STATIC = 40 * 1024  # bytes of shared memory beside the logits: lists, a histogram, sums, and what the driver keeps
CLUSTER = 8  # blocks: what every card of these grants


def _packs(p: Problem, cluster: int) -> int:
    """Packs of 16 bytes of a row that a block holds, whatever address the row begins at."""
    x = p["logits"]
    return -(-(-(-x.shape[1] * DTYPES[x.dtype].bytes // 16) + 1) // cluster)


def supports(p: Problem, head: Head) -> str | None:
    x = p["logits"]
    if x.shape[1] > 1 and x.strides[1] != 1:
        return "the elements of a row must be neighbours"
    if x.shape[0] * CLUSTER >= 2**31:
        return f"fewer than 2^31 / {CLUSTER} rows"
    if x.shape[0] == 0:
        return "there is nothing to draw"
    if 16 * _packs(p, CLUSTER) + STATIC > p.device.shared_per_block:
        return f"a row must fit the shared memory of {CLUSTER} blocks"
    return None


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    """Two blocks a multiprocessor, so that one reads while the other waits for its cluster; few rows are shared out further."""
    rows = p["logits"].shape[0]
    room = p.device.shared_per_block // 2 - STATIC
    cluster = 1
    while cluster < CLUSTER and (16 * _packs(p, cluster) > room or (2 * rows * cluster <= 2 * p.device.sms and _packs(p, cluster) > 4 * THREADS)):
        cluster *= 2
    return {"cluster": cluster}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, cluster = p["logits"], int(config["cluster"])
    rows, n = x.shape
    packs = _packs(p, cluster)
    args: dict[str, tuple[Any, str]] = {
        "logits": ("logits", "ptr"), "xs": (x.strides[0], "i64"), "n": (n, "u32"), "packs": (packs, "u32"), "temperature": ("temperature", "f32"),
        "top_k": ("top_k", "i32"), "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"), "seed": ("seed", "i32"), "out": ("out", "ptr"),
    }  # fmt: skip
    return [
        Launch(
            f"sample_clusters<{DTYPES[x.dtype].cuda}>", (rows * cluster,), {name: v for name, (v, _) in args.items()}, types=tuple(t for _, t in args.values()),
            block=(THREADS,), cluster=(cluster,), shared=16 * packs, chained=True,
        )
    ]  # fmt: skip
