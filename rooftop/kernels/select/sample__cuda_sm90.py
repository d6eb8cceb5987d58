"""The launch of sample__cuda_sm90.cu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem, typed
from rooftop.kernels.select import _draw_rows, _smem_select

STATIC = 36 * 1024  # bytes of shared memory beside the logits: a histogram or lists, sums, and what the driver keeps
FEW, MANY = 512, 256  # threads of a block: where each multiprocessor has at most one; where it has several


def supports(p: Problem, head: Head) -> str | None:
    x = p["logits"]
    if x.shape[1] > 1 and x.strides[1] != 1:
        return "the elements of a row must be neighbours"
    if x.shape[0] == 0:
        return "there is nothing to draw"
    return _smem_select.too_long(x, p.device, STATIC)


def choose(p: Problem, head: Head | None) -> Mapping[str, Any]:
    """The fewest blocks a row with which three fit a multiprocessor, one copying while others compute; fewer, if the waves then take less
    time. Few rows are divided further, down to four packs a thread, so that more multiprocessors take part."""
    x = p["logits"]
    cluster, room = 1, p.device.shared_per_block // 3 - STATIC
    while cluster < _smem_select.CLUSTER and (
        16 * _smem_select.packs(x, cluster) > room
        or (2 * x.shape[0] * cluster <= p.device.sms and _smem_select.packs(x, cluster) > 4 * FEW)
    ):
        cluster *= 2
    if 2 * x.shape[0] * cluster > p.device.sms:
        cluster = min((c for c in (1, 2, 4, 8) if c <= cluster and _resident(p, c)), key=lambda c: _lasts(p, c))
    return {"cluster": cluster, "threads": FEW if x.shape[0] * cluster <= p.device.sms and _smem_select.packs(x, cluster) > MANY else MANY}


def one_wave(p: Problem, head: Head | None = None) -> bool:
    """Whether clusters of several blocks hold all rows at once."""
    cluster = choose(p, head)["cluster"]
    return cluster > 1 and _waves(p, cluster) == 1


def _resident(p: Problem, cluster: int) -> int:  # blocks of a multiprocessor; the registers of 256 threads allow three
    return min(3, p.device.shared_per_block // (16 * _smem_select.packs(p["logits"], cluster) + STATIC))


def _waves(p: Problem, cluster: int) -> int:
    return -(-p["logits"].shape[0] * cluster // (_resident(p, cluster) * p.device.sms // cluster * cluster))


def _lasts(p: Problem, cluster: int) -> float:
    """Seconds of all draws from a nucleus: of each wave, what one row alone takes (22 us on an H200, mostly barriers), and 22 instructions an
    element, at their full rate from 20 warps a multiprocessor on. It gives the 184 us of 256 rows of 128256 with eight blocks a row."""
    blocks, barriers = _resident(p, cluster), 1e-6 * (cluster.bit_length() - 1)
    work = 0.17e-9 * blocks * p["logits"].shape[1] / cluster * max(1.0, 20 * 32 / (blocks * MANY))
    return _waves(p, cluster) * (19e-6 + barriers + work)


def for_any_rows(p: Problem, head: Head) -> Mapping[str, Any]:
    """Under `rooftop.invariant()`: as always. Weights are whole numbers, whose sums have no order."""
    return choose(p, head)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, cluster, threads = p["logits"], int(config["cluster"]), int(config["threads"])
    rows, n = x.shape
    packs = _smem_select.packs(x, cluster)
    # draws of sample_rows: bit 0 by a list, bit 1 from whole rows
    apart = (1 if rows >= p.device.sms else 0) | (2 if rows >= 4 * p.device.sms else 0)
    args: dict[str, tuple[Any, str]] = {
        "logits": ("logits", "ptr"), "xs": (x.strides[0], "i64"), "n": (n, "u32"), "packs": (packs, "u32"),
        "temperature": ("temperature", "f32"), "top_k": ("top_k", "i32"), "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"),
        "seed": ("seed", "i32"), "seeds": (None if p.get("seeds") is None else "seeds", "ptr"), "apart": (apart, "i32"), "out": ("out", "ptr"),
    }
    clusters = Launch(
        f"sample_clusters<{DTYPES[x.dtype].cuda}, {cluster}, {threads}>", (rows * cluster,), **typed(args, value_first=True),
        block=(threads,), cluster=(cluster,), shared=16 * packs, pdl=True,
    )
    return [_draw_rows.rows_launch(p, apart), clusters] if apart else [clusters]
