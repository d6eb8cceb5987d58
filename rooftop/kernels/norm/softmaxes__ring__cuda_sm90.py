"""Which rows softmaxes__ring__cuda_sm90.cu supports, and the clusters among which they are divided: as norm_persistent's
(norms__cuda_sm90.py), with the instructions of a softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem, instance
from rooftop.kernels.norm import _cluster_slices
from rooftop.kernels.norm import norms__cuda_sm90 as norms

KIB = 1024
# predicted cycles of a multiprocessor's quarter for a warp's 32 packs: two exponentials an element at 8 cycles each, by bytes of an element;
# float32 has half as many, in seven instructions
PACK = {2: 128, 4: 120}
THREADS = {True: 1280, False: 1024}  # of a multiprocessor, by whether rows are aligned: 48 registers a thread, else 64
EXCHANGE = 700  # cycles of the reductions of a row's maximum and sum over a warp, a block and a cluster, in sequence
ROUNDS = 4  # with fewer rows of a cluster, filling and draining the ring costs more than it gains


def supports(p: Problem, head: Head | None = None) -> str | None:
    r = norms.of(p).as_ring_rows
    if not r.same_alignment or r.bytes < 32 * KIB:
        return "takes rows of at least 32 KiB, equally far from 16 bytes in the input and the output"
    return None if _fitting(r) else "three rows do not fit the shared memory of sixteen blocks"


def _fitting(r: norms.Rows) -> list[dict[str, Any]]:
    """All that run, the smallest clusters first: those of many rows."""
    found, many = [], replace(r, count=1 << 30)
    for cluster, pieces in product((1, 2, 4, 8, 16), (4, 8)):
        threads = r.slices.threads(cluster, pieces)
        if threads > 1024:
            continue
        for blocks, stages in product((1, 2, 3, 4), (3, 4)):
            c = norms.persistent(cluster, pieces, blocks, stages) | {"threads": threads, "rows": 1}
            if blocks * threads <= THREADS[r.slices.aligned] and norms.runs(many, c):
                found.append(c)
    return found


def _time(r: norms.Rows, c: Mapping[str, Any]) -> float:
    """Of a round, in which each cluster processes a row, as a multiple of its memory traffic's."""
    clusters = _clusters(r, c)
    least, memory = _cluster_slices.traffic(r, c, clusters, 1, 2)
    own = EXCHANGE + c["blocks"] * c["threads"] / 32 * c["pieces"] * PACK[r.slices.itemsize] / 4
    unequal = norms.UNEQUAL if c["cluster"] <= 2 else 1.0
    return _cluster_slices.takes_turns(memory, own) / least * unequal * (norms.RUNS if r.slices.runs(clusters) > 1 else 1)


def _clusters(r: norms.Rows, c: Mapping[str, Any]) -> int:
    return r.slices.clusters(r.count, _cluster_slices.resident(r.card, c["cluster"], c["blocks"]))


def choose(p: Problem, head: Head | None = None) -> dict[str, Any]:
    r = norms.of(p).as_ring_rows
    return _config(min(_fitting(r), key=lambda c: (round(_time(r, c), 2), c["cluster"], c["pieces"], c["blocks"])))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return [_config(c) for c in _fitting(norms.of(p).as_ring_rows)]


def _config(c: Mapping[str, Any]) -> dict[str, Any]:
    return {n: c[n] for n in ("cluster", "blocks", "threads", "pieces", "stages")}


def launches(p: Problem, c: Mapping[str, Any], head: Head) -> list[Launch]:
    r = norms.of(p).as_ring_rows
    threads, size, pieces, stages = (c[n] for n in ("threads", "cluster", "pieces", "stages"))
    clusters, fit = _clusters(r, c), r.slices.fit(size, pieces, threads)
    kernel = instance(
        "softmax_ring", DTYPES[p["x"].dtype].cuda, pieces, threads, size, c["blocks"], stages, fit, r.slices.runs(clusters) > 1,
        p.op == "log_softmax",
    )
    args, types = head.arguments(p, c)
    (rows, columns, *rest) = args.items()
    args = dict((rows, columns, ("clusters", clusters), ("period", r.slices.period_of(clusters)), *rest))
    shared = 16 * stages * (pieces * threads + (_cluster_slices.EDGE if fit == 0 else 0))
    return [Launch(kernel, (size * clusters,), args, types=("i32", "i32", *types), block=(threads,), shared=shared, chained=True, cluster=(size,))]
