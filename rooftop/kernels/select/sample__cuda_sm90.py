"""The launch of sample__cuda_sm90.cu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem
from rooftop.kernels._device import drawing, held_selecting

THREADS = 512  # as in the kernel
STATIC = 40 * 1024  # bytes of shared memory besides the logits: lists, a histogram, sums, and what the driver reserves


def supports(p: Problem, head: Head) -> str | None:
    x = p["logits"]
    if x.shape[1] > 1 and x.strides[1] != 1:
        return "the elements of a row must be neighbours"
    if x.shape[0] == 0:
        return "there is nothing to draw"
    return held_selecting.too_long(x, p.device, STATIC)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return {"cluster": held_selecting.cluster_of(p["logits"], p.device, STATIC)}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, cluster = p["logits"], int(config["cluster"])
    rows, n = x.shape
    # one block a row is faster if a list decides, or if every multiprocessor has a row and all elements can be drawn
    apart = (1 if rows * held_selecting.CLUSTER > 2 * p.device.sms else 0) | (2 if rows >= p.device.sms else 0)
    packs = held_selecting.packs(x, cluster)
    args: dict[str, tuple[Any, str]] = {
        "logits": ("logits", "ptr"), "xs": (x.strides[0], "i64"), "n": (n, "u32"), "packs": (packs, "u32"), "temperature": ("temperature", "f32"),
        "top_k": ("top_k", "i32"), "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"), "seed": ("seed", "i32"), "apart": (apart, "i32"),
        "out": ("out", "ptr"),
    }  # fmt: skip
    clusters = Launch(
        f"sample_clusters<{DTYPES[x.dtype].cuda}, {cluster}>", (rows * cluster,), {name: v for name, (v, _) in args.items()},
        types=tuple(t for _, t in args.values()), block=(THREADS,), cluster=(cluster,), shared=16 * packs, chained=True,
    )  # fmt: skip
    return [drawing.rows_launch(p, apart), clusters] if apart else [clusters]
