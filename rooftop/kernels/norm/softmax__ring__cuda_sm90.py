"""Which rows softmax__ring__cuda_sm90.cu supports, and how they are divided: among the fewest blocks of a cluster whose shared memory holds
three rows, with as many clusters as are resident at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem, instance
from rooftop.kernels.norm import _cluster_slices
from rooftop.kernels.norm._cluster_slices import KIB, Rows

THREADS = {4: 1024, 8: 768}  # of a multiprocessor, by packs a thread: 64 registers each, or 80
MOST_BLOCKS = 4  # of a multiprocessor
ROUNDS = 4  # with fewer rows of a cluster, filling and draining the ring costs more than it gains
SLICE = 32 * KIB  # of a block: two of them take as long as the exchange
STATIC = 1280  # bytes of shared memory of a block besides its ring: the parts of warps and blocks, at most


def _rows(p: Problem) -> Rows:
    """Of rows of an odd multiple of 16 bytes every second one starts amid 32 bytes: as odd rows, no sector is split."""
    x, y = p["x"], p["y"]
    size = x.itemsize
    aligned = x.shape[1] * size % 16 == 0 and x.strides[0] * size % 32 == 0 and _cluster_slices.rows_aligned(x, y)
    layout = _cluster_slices.Slices(x.shape[1], size, x.strides[0], aligned)
    return Rows(x.shape[0], layout, aligned or _cluster_slices.same_starts(x, y), False, False, False, False, p.device.sms, p.device)


def supports(p: Problem, head: Head | None = None) -> str | None:
    r = _rows(p)
    if not r.same_alignment or r.bytes < 32 * KIB:
        return "takes rows of at least 32 KiB, equally far from 16 bytes in the input and the output"
    return None if _config(r) else "three rows do not fit the shared memory of sixteen blocks"


def _config(r: Rows) -> dict[str, Any] | None:
    """Clusters of one or two blocks would get unequal shares of the memory's bandwidth (docs/persistent.md)."""
    for cluster, pieces in product((4, 8, 16), THREADS):
        if found := _sized(r, cluster, pieces, 3):
            return found
    return None


def _sized(r: Rows, cluster: int, pieces: int, stages: int, most: int = MOST_BLOCKS) -> dict[str, Any] | None:
    """With as many blocks a multiprocessor as fit, `most` at most."""
    threads = r.slices.threads(cluster, pieces)
    used = _shared(r, pieces, threads, stages) + STATIC
    blocks = min(most, THREADS[pieces] // threads, _cluster_slices.SHARED // (used + _cluster_slices.SYSTEM))
    if blocks < 1 or used > _cluster_slices.SHARED_OF_BLOCK or r.bytes < 4096 * cluster:
        return None
    return {"cluster": cluster, "blocks": blocks, "threads": threads, "pieces": pieces, "stages": stages}


def _shared(r: Rows, pieces: int, threads: int, stages: int) -> int:
    return 16 * stages * (pieces * threads + (0 if r.slices.aligned else _cluster_slices.EDGE))


def _clusters(r: Rows, c: Mapping[str, Any]) -> int:
    return r.slices.clusters(r.count, r.card.resident(c["cluster"]) * c["blocks"])


def keeps_busy(p: Problem) -> bool:
    """Whether the memory is busy all the time: of rows of whole vectors, if each cluster has enough of them, and a row's slice takes as long
    as the exchange of its sums or a second block works meanwhile."""
    r = _rows(p)
    c = _config(r) if r.bytes % 16 == 0 and supports(p) is None else None
    return c is not None and (c["blocks"] > 1 or r.bytes >= SLICE * c["cluster"]) and r.count >= ROUNDS * _clusters(r, c)


def choose(p: Problem, head: Head | None = None) -> dict[str, Any]:
    return _config(_rows(p)) or {}


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    r = _rows(p)
    found = [_sized(r, *c) for c in product((1, 2, 4, 8, 16), THREADS, (3, 4), (1, 2, 4))]
    return [c for i, c in enumerate(found) if c and c not in found[:i]]


def launches(p: Problem, c: Mapping[str, Any], head: Head) -> list[Launch]:
    r = _rows(p)
    threads, size, pieces, stages = (c[n] for n in ("threads", "cluster", "pieces", "stages"))
    clusters, fit = _clusters(r, c), r.slices.fit(size, pieces, threads)
    kernel = instance(
        "softmax_ring", DTYPES[p["x"].dtype].cuda, pieces, threads, size, c["blocks"], stages, fit, r.slices.runs(clusters) > 1
    )
    args, types = head.arguments(p, c)
    (rows, columns, *rest) = args.items()
    args = dict((rows, columns, ("clusters", clusters), ("period", r.slices.period_of(clusters)), *rest))
    return [
        Launch(
            kernel, (size * clusters,), args, types=("i32", "i32", *types), block=(threads,), shared=_shared(r, pieces, threads, stages),
            pdl=True, cluster=(size,),
        )
    ]
