"""The launch of sample__cuda_sm90.cu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem
from rooftop.kernels.select import _draw_rows, _smem_select

CLUSTER = _smem_select.CLUSTER
STATIC = 36 * 1024  # bytes of shared memory beside the logits: a histogram or lists, sums, and what the driver keeps
FEW, MANY = 512, 256  # threads of a block: where each multiprocessor has at most one; where it has several


def supports(p: Problem, head: Head) -> str | None:
    x = p["logits"]
    if x.shape[1] > 1 and x.strides[1] != 1:
        return "the elements of a row must be neighbours"
    if x.shape[0] == 0:
        return "there is nothing to draw"
    return _smem_select.too_long(x, p.device, STATIC)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    """The fewest blocks a row with which three blocks fit a multiprocessor: one copies while the others compute. Few rows are divided
    further, down to four packs a thread, so that more multiprocessors take part."""
    x = p["logits"]
    cluster, room = 1, p.device.shared_per_block // 3 - STATIC
    while cluster < CLUSTER and (
        16 * _smem_select.packs(x, cluster) > room
        or (2 * x.shape[0] * cluster <= p.device.sms and _smem_select.packs(x, cluster) > 4 * FEW)
    ):
        cluster *= 2
    return {"cluster": cluster, "threads": FEW if x.shape[0] * cluster <= p.device.sms and _smem_select.packs(x, cluster) > MANY else MANY}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, cluster, threads = p["logits"], int(config["cluster"]), int(config["threads"])
    rows, n = x.shape
    packs = _smem_select.packs(x, cluster)
    # draws of sample_rows: bit 0 by a list, bit 1 from whole rows
    apart = (1 if rows >= p.device.sms else 0) | (2 if rows >= 4 * p.device.sms else 0)
    args: dict[str, tuple[Any, str]] = {
        "logits": ("logits", "ptr"), "xs": (x.strides[0], "i64"), "n": (n, "u32"), "packs": (packs, "u32"),
        "temperature": ("temperature", "f32"), "top_k": ("top_k", "i32"), "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"),
        "seed": ("seed", "i32"), "apart": (apart, "i32"), "out": ("out", "ptr"),
    }
    clusters = Launch(
        f"sample_clusters<{DTYPES[x.dtype].cuda}, {cluster}, {threads}>", (rows * cluster,), {name: v for name, (v, _) in args.items()},
        types=tuple(t for _, t in args.values()), block=(threads,), cluster=(cluster,), shared=16 * packs, chained=True,
    )
    return [_draw_rows.rows_launch(p, apart), clusters] if apart else [clusters]
