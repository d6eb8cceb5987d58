"""Which kernel selects: by how far the k-th element is from an end of its row, and whether one wave of clusters holds all rows. Measured on
an H200."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem
from rooftop.kernels.select import _smem_select, _top_k
from rooftop.kernels.select import sample__cuda_sm90 as clusters

DEEP = 2048  # elements before the k-th from which a cluster that holds the row is faster than a heap of the k best
SAMPLED = 36 * 1024  # bytes of shared memory that sample__cuda_sm90 needs beside the logits


def topk(p: Problem, named: str = "") -> Chosen | str:
    """A warp selects the first few of a short row in about 370 instructions for 300 elements (20000 rows of them: 11.5 us); a sort of 256 takes
    2000, a block of threads 4500 (108 us)."""
    warp, others = ("topk__warp__cuda_sm80", "few of a short row: a warp a row, in registers"), ("topk__cuda_sm80", "a selection from an end, or a sort")
    return in_order(p, named, (warp, others) if p["x"].shape[1] > 64 else (others, warp))


def kthvalue(p: Problem, named: str = "") -> Chosen | str:
    n, k = p["x"].shape[1], int(p.option("k"))
    return in_order(p, named, _kth(p, "kthvalue", min(k, n + 1 - k), min(k, n - k) > DEEP))


def topk_mask(p: Problem, named: str = "") -> Chosen | str:
    """If few elements of a long row are selected, writing their bytes of the mask one by one costs less than a second read of the row."""
    (rows, n), k = p["x"].shape, int(p.option("k"))
    return in_order(p, named, _kth(p, "topk_mask", min(k, n - k), min(k, n - k) > DEEP or (8 * rows <= p.device.sms and n >= 65536)))


def _kth(p: Problem, op: str, k: int, deep: bool) -> list[tuple[str, str]]:
    """k: counted from the nearer end of the row."""
    splitters, held = (
        f"{op}__splitters__cuda_sm80", "splitters from a sample, one pass"
    ), (f"{op}__cuda_sm90", "the row in the shared memory of a cluster")
    heap = (f"{op}__cuda_sm80", "few before the k-th: the best of each block")
    rows, n = p["x"].shape
    order = []
    if (k > _top_k.MOST or 16 * k > n) and (rows * _smem_select.CLUSTER > p.device.sms or _smem_select.not_taken(p) is not None):
        order.append(splitters)
    order += [held, heap] if deep else [heap, held]
    return [*order, splitters]


def sample(p: Problem, named: str = "") -> Chosen | str:
    """A stream of the row from one row for every four multiprocessors on, unless one wave of clusters holds all rows, and where a row is too
    long for a cluster. 256 rows of 128256 bf16 logits plain 21.6 us (clusters 52), min_p 36 (54), top_k 51 (55), top_p alone 210 (187); 64 rows
    top_k 38, top_p alone 179: most of it is latency, which does not depend on the rows. Plain draws over a sweep are 1.6 to 2.5 times as fast
    from 51 rows on, where clusters took a second wave, as fast at 29. top_p itself is known only at the launch, after the choice."""
    x = p["logits"]
    stream, held, one_block = (
        ("sample__stream__cuda_sm80", "many rows: each streamed by a block"),
        ("sample__cuda_sm90", "each row in the shared memory of a cluster, all rows at once"),
        ("sample__cuda_sm80", "a row a block, read again in each pass"),
    )
    if _smem_select.too_long(x, p.device, SAMPLED) is not None:
        return in_order(p, named, (stream, held, one_block))
    if 4 * x.shape[0] < p.device.sms:
        return in_order(p, named, (held, one_block, stream))
    return in_order(p, named, (held, stream, one_block) if p.device.arch >= 90 and clusters.one_wave(p) else (stream, held, one_block))
