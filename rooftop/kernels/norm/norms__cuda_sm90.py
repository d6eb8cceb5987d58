"""The forward of rms_norm and layer_norm on sm_90 for rows that are too long for a block's registers: which of two kernels of
norms__cuda_sm90.cu runs, and with which launch config. One table for both ops.

    streaming   a cluster takes one or two rows, in shared memory, and ends; the hardware then starts the next one
    persistent  as many clusters as are resident at once, each loops over rows; weight and bias are read once

A config holds

    cluster   blocks of a cluster
    blocks    blocks that must fit a multiprocessor at once, at least: the second argument of __launch_bounds__, which bounds the registers
    threads   of a block
    pieces    packs of 16 bytes that a thread holds (a pack is 4 elements of float32, 8 of 16 bits; the sm_80 kernels call it a vector)
    rows      that a cluster takes at once
    stages    rows in the ring buffer of a persistent cluster

Rows without a residual go to the persistent kernel whose config has the least estimated time (`Rows.ring`, by timings on an H200), if shared
memory holds three of them and there are at least four rows a cluster. All others have a table, timed on an H100; its lines for odd rows of
more than 96 KiB and for rows of more than 512 KiB are derived from timings of the persistent kernel on an H200. Each line of the table gives
the resource that explains the choice; the first line that fits is taken, so "the same" means the reason of the line above. "Odd" rows are
rows that do not start on 16 bytes or are not whole packs. Rows of up to 64 KiB are taken where the kernel is named, and odd ones of
layer_norm (choose.py): the others are faster in registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem, instance
from rooftop.kernels.norm import _cluster_slices
from rooftop.kernels.norm._cluster_slices import ANY, BYTES, KIB, Choice

SHORTEST = 4 * KIB  # bytes of a row in a ring: shorter ones leave most threads of a block without a pack


class Rows(_cluster_slices.Rows):
    """`second`: a residual."""

    @cached_property
    def ring(self) -> dict[str, Any] | None:
        """The persistent clusters with the lowest estimated time a row; None if other kernels are faster.

        A ring buffer has two advantages over streaming clusters, which end after a row or two. Weight and bias, each as long as a row, are
        not read from the L2 again and again (layer_norm of float32 at 208736 columns: three reads from the L2 for each read of memory, 0.65
        of a copy). And there is no last wave: a streaming cluster lives for 11 us, and at the end multiprocessors wait for others, for
        about 20 us of each call."""
        if not self.same_alignment or self.second or self.bytes <= SHORTEST:
            return None
        r, table = self.as_ring_rows, _cluster_slices.of_table(TABLE, self).config
        if table["cluster"] > 1 and not r.centre and r.count <= r.card.resident(table["cluster"]) * table["blocks"]:
            return None  # all rows at once
        step = 1 << max(r.count.bit_length() - 3, 0)  # rounded, so that a new number of rows seldom compiles a new kernel
        found = _rings(replace(r, count=r.count // step * step))
        if not found or found[0][0] > SLOWEST[r.slices.aligned][r.centre] + STREAMED * BYTES * r.sms / (2 * r.count * r.bytes):
            return None
        _, size, pieces, blocks, stages, threads = found[0]
        return _complete(r, {**persistent(size, pieces, blocks, stages), "threads": threads})

    @property
    def as_ring_rows(self) -> Rows:
        """The rows as a ring takes them. Of rows of an odd multiple of 16 bytes every second one starts amid 32 bytes: as odd rows, no
        sector is split."""
        half = self.slices.aligned and self.slices.stride * self.slices.itemsize % 32 != 0
        return replace(self, slices=replace(self.slices, aligned=False)) if half else self


@lru_cache(maxsize=16)
def of(p: Problem) -> Rows:
    x = p["x"]
    tensors = [p.get(n) for n in ("x", "y", "residual", "s", "weight", "bias")]
    aligned = x.shape[1] * x.itemsize % 16 == 0 and _cluster_slices.rows_aligned(*tensors)
    layout = _cluster_slices.Slices(x.shape[1], x.itemsize, x.strides[0], aligned)
    same_alignment = aligned or _cluster_slices.same_starts(*tensors[:4])
    residual, weight, bias = tensors[2] is not None, tensors[4] is not None, tensors[5] is not None
    return Rows(x.shape[0], layout, same_alignment, residual, weight, bias, p.op.startswith("layer_norm"), p.device.sms, p.device)


def streaming(cluster: int, pieces: int, blocks: int, rows: int = 1) -> dict[str, Any]:
    return {"path": "streaming", "cluster": cluster, "blocks": blocks, "pieces": pieces, "rows": rows}


def persistent(cluster: int, pieces: int, blocks: int, stages: int) -> dict[str, Any]:
    return {"path": "persistent", "cluster": cluster, "blocks": blocks, "pieces": pieces, "stages": stages}


TABLE = (  # the first entry that fits the input is used
    Choice(8 * KIB, 24592, streaming(1, 4, 4), "odd rows: four packs a thread and four blocks keep 100 KiB in flight", "odd",
           "layer_norm", second=False),
    Choice(8 * KIB, 32 * KIB, streaming(1, 4, 3), "rms_norm needs fewer registers: three blocks, up to the longest row that fits", "odd",
           second=False),
    Choice(32 * KIB, 48 * KIB, streaming(1, 4, 2), "two blocks of up to 768 threads, one row each", "odd", second=False),
    Choice(48 * KIB, 96 * KIB, streaming(4, 8, 4), "layer_norm also reads weight and bias: four blocks share a row", "odd", "layer_norm",
           second=False),
    Choice(48 * KIB, 96 * KIB, streaming(1, 8, 2), "eight packs a thread: one block still holds a row, and no exchange is needed", "odd",
           second=False),
    Choice(96 * KIB, 256 * KIB, streaming(8, 8, 4), "odd rows of rms_norm, or too few rows for the runs of a ring", "odd", second=False),
    Choice(256 * KIB, 448 * KIB, streaming(8, 8, 3), "few rows: three blocks a multiprocessor hold all of them at once (45 rows of 184803 "
           "bf16: 19 us, in two waves 28)", "odd", second=False, max_rows=0.341),
    Choice(256 * KIB, 512 * KIB, streaming(8, 8, 2), "the same; 64 KiB a block, two of them", "odd", second=False),
    Choice(512 * KIB, 960 * KIB, streaming(16, 8, 2), "sixteen blocks with up to 60 KiB each, two a multiprocessor", "same_alignment",
           second=False),
    Choice(960 * KIB, ANY, streaming(16, 8, 1), "one block a multiprocessor: 110 KiB in flight", "same_alignment", second=False),
    Choice(64 * KIB, 128 * KIB, streaming(8, 4, 6, 2), "two rows at once share a read of weight and bias (L2)", "aligned", itemsize=2,
           second=False),
    Choice(64 * KIB, 128 * KIB, streaming(8, 4, 5, 2), "the same; float32 sums need the registers of a sixth block", "aligned",
           "layer_norm", second=False),
    Choice(64 * KIB, 128 * KIB, streaming(8, 8, 8), "only a weight to read again: one row, more clusters", "aligned", "rms_norm",
           second=False),
    Choice(128 * KIB, 192 * KIB, streaming(8, 4, 4, 2), "two rows of up to 24 KiB a block leave room for four blocks", "aligned",
           itemsize=2, second=False),
    Choice(128 * KIB, 256 * KIB, streaming(8, 8, 6), "only a weight to read again: six blocks a multiprocessor", "aligned", "rms_norm",
           second=False),
    Choice(256 * KIB, 512 * KIB, streaming(8, 8, 3), "the same; as many blocks as shared memory holds", "aligned", "rms_norm", itemsize=4,
           second=False),
    Choice(128 * KIB, 256 * KIB, persistent(16, 4, 2, 3), "layer_norm: weight and bias are read once", "aligned", second=False,
           min_rows=0.25),
    Choice(256 * KIB, 512 * KIB, persistent(16, 2, 1, 3), "the same; one block a multiprocessor", "aligned", second=False, min_rows=0.25),
    Choice(-1, 32 * KIB, streaming(1, 4, 3), "short rows: three blocks, a row each", second=False),
    Choice(32 * KIB, 64 * KIB, streaming(1, 8, 2), "two blocks, a row each", second=False),
    Choice(64 * KIB, 256 * KIB, streaming(8, 8, 4), "few rows: eight blocks share one", second=False),
    Choice(256 * KIB, 512 * KIB, streaming(8, 8, 2), "the same; 64 KiB a block, two of them", second=False),
    Choice(-1, 8 * KIB, streaming(1, 4, 3), "a residual: a block holds a row and its residual's"),
    Choice(8 * KIB, 64 * KIB, streaming(2, 4, 2), "the same with two blocks"),
    Choice(64 * KIB, 256 * KIB, streaming(8, 4, 3), "the same with eight blocks, three on a multiprocessor"),
    Choice(256 * KIB, 512 * KIB, streaming(16, 4, 3), "the same with sixteen blocks"),
    Choice(512 * KIB, ANY, streaming(16, 8, 1), "the same; one block a multiprocessor"),
)


def supports(p: Problem, head: Head | None = None) -> str | None:
    return None if of(p).same_alignment else "rows must start equally far from 16 bytes in the input, the residual and the results"


def _complete(r: Rows, config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with all fields: defaults filled in, and the number of threads computed from `pieces` where it is not given."""
    found = {"threads": 0, "pieces": 1, "rows": 1, "stages": 3, **config}
    if not found["threads"]:
        layout = (r.as_ring_rows if found["path"] == "persistent" else r).slices
        found["threads"] = layout.threads(found["cluster"], found["pieces"])
    return found


EXCHANGE = 900  # cycles of the reduction of a row's sums over a warp, a block and a cluster, in sequence; without a mean 600
PACK = 110  # instructions of a warp for 32 packs of 16 bits, both passes; fewer without a mean, and for float32
ODD = 55  # more of them for 32 packs of odd rows, with the edge
# clusters of one or two blocks use all multiprocessors; those of GPCs with 18 instead of 16 get less bandwidth each and end later
UNEQUAL = 1.08
ROUNDS = 4  # with fewer rows of a cluster, or of a run of its rows, filling and draining the ring costs more than it gains
END = 0.7  # rounds that a cluster loses between two runs of rows
# what streaming clusters take, in which layer_norm also reads a bias: so many times the memory traffic's time, of odd and of aligned rows,
# each without and with a mean; and the cycles by which they start and end later than a ring
SLOWEST = (1.33, 2.0), (1.15, 1.6)
STREAMED = 4700


def _own(r: Rows, warps: int, pieces: int) -> float:
    """Cycles of the reductions and instructions of a round, of so many warps of a multiprocessor."""
    mean, width, odd = 1 if r.centre else 0.65, 1 if r.slices.itemsize == 2 else 0.55, 0 if r.slices.aligned else ODD
    return EXCHANGE * (1 if r.centre else 0.67) + warps * pieces * (PACK * mean * width + odd) / 4


def _clusters(r: Rows, c: Mapping[str, Any], rows: int) -> int:
    return r.slices.clusters(rows, r.card.resident(c["cluster"]) * c["blocks"])


@lru_cache(maxsize=64)
def _rings(r: Rows) -> list[tuple[float, int, int, int, int, int]]:
    """The rings that fit and have rows enough, fastest first: (time, blocks of a cluster, pieces, blocks of a multiprocessor, stages,
    threads). The time is that of norm_persistent as a multiple of its memory traffic's, fitted to timings on an H200: within 9 %, where rows
    are odd or few too. A round, in which each cluster processes a row, takes as long as the memory traffic, or as a row's own reductions and
    instructions if these take longer."""
    found: list[tuple[float, int, int, int, int, int]] = []
    ways: list[tuple[int, int, int, int, float]] = []
    aligned, edge = r.slices.aligned, 0 if r.slices.aligned else _cluster_slices.EDGE
    limits = _threads(r)
    for size in (1, 2, 4, 8, 16):
        known: dict[int, tuple[int, int]] = {}  # by the blocks of a multiprocessor: clusters, and their runs of rows
        room, packs, held = 0, r.slices.packs(size), False
        for pieces in (2, 4, 8) if size == 1 or r.bytes > 4096 * size else ():
            threads = 32 * -(-packs // (32 * pieces))
            slot = 16 * (pieces * threads + edge)
            fixed = slot * r.parameters + _cluster_slices.SYSTEM  # bytes of shared memory
            # eight packs where four take too many threads: fewer warps hide less
            if threads > 1024 or 3 * slot + fixed > _cluster_slices.SHARED or (pieces == 8 and held):
                continue
            fixed += _static(1, threads, size)
            most, with_runs = limits[pieces > 2]
            for blocks in range(-(-256 // threads), min(4, most // threads, _cluster_slices.SHARED // (3 * slot + fixed)) + 1):
                if blocks not in known:
                    room = room or r.card.resident(size)
                    clusters = room * blocks if aligned else r.slices.clusters(r.count, room * blocks)
                    known[blocks] = clusters, 1 if aligned else r.slices.runs(clusters)
                clusters, several = known[blocks]
                launched = r.slices.clusters(r.count, room * blocks) if aligned else clusters
                if r.count < ROUNDS * launched * several or (several > 1 and blocks * threads > with_runs):
                    continue
                held = held or pieces == 4
                # three rows in the ring; a fourth if there is room, and three keep too few bytes in flight
                few = blocks * 2 * r.bytes < _cluster_slices.FLYING * size and blocks * (4 * slot + fixed) <= _cluster_slices.SHARED
                own = _own(r, blocks * threads // 32, pieces)
                unequal = UNEQUAL if size <= 2 and own * BYTES * r.sms < 2 * r.bytes * clusters else 1
                for n in (3, 4) if few else (3,):
                    ways.append((size, blocks, n, clusters, own))
                    found.append((unequal * (1 + END * (several - 1) * clusters / r.count), size, pieces, blocks, n, threads))
    times = _cluster_slices.rounds_of(r, ways, 1, 2)
    return sorted([(round(round_ / least * f[0], 2), *f[1:]) for (least, round_), f in zip(times, found, strict=True)])


def _threads(r: Rows) -> tuple[tuple[int, int], tuple[int, int]]:
    """Threads of norm_persistent on a multiprocessor, at most, and the same with several runs of rows a cluster: with two packs a thread,
    and with more, which take 80 registers for odd rows of 16 bits. Each of the four schedulers has 512 registers a lane."""
    least = 32 if not r.centre and r.slices.itemsize == 4 else 48 if r.slices.aligned else 56  # registers, with two packs
    most, with_runs = 128 * (512 // least), 128 * (512 // max(48, least + 8))
    many = 768 if not r.slices.aligned and r.slices.itemsize == 2 else 2048
    return (most, with_runs), (min(most, many), min(with_runs, many))


def choose(p: Problem, head: Head) -> dict[str, Any]:
    r = of(p)
    return dict(r.ring) if r.ring else _complete(r, _cluster_slices.of_table(TABLE, r).config)


def _static(rows: int, threads: int, size: int) -> int:
    """Bytes of static shared memory of norm_streaming and norm_persistent: the statistics that warps and blocks exchange."""
    used = 8 * rows * (threads // 32) * (2 if size == 1 else 1) + 16 * rows * size + 32
    return 128 * -(-used // 128)


def _shared(r: Rows, c: Mapping[str, Any]) -> int:
    """Bytes of dynamic shared memory."""
    tensors = 2 if r.second else 1
    slots = c["pieces"] * c["threads"] + (0 if r.slices.aligned else _cluster_slices.EDGE)  # packs of 16 bytes of a block's slice
    return 16 * slots * (c["stages"] * tensors + r.parameters if c["path"] == "persistent" else c["rows"] * tensors)


def runs(r: Rows, c: Mapping[str, Any]) -> bool:
    """Whether the rows fit this config, and `blocks` of its blocks fit a multiprocessor."""
    threads, pieces, blocks = c["threads"], c["pieces"], c["blocks"]
    r = r.as_ring_rows if c["path"] == "persistent" else r
    if c["cluster"] > 1 and r.bytes <= 4096 * c["cluster"]:
        return False
    static = _static(c["rows"], threads, c["cluster"])
    if not r.same_alignment:
        return False
    if c["path"] == "persistent":
        most, with_runs = _threads(r)[pieces > 2]
        several = r.slices.runs(_clusters(r, c, r.count)) > 1
        few = r.count * c["cluster"] <= r.sms * blocks
        if few or blocks * threads > (with_runs if several else most):
            return False
    return (c["rows"] == 1 or r.slices.aligned) and _cluster_slices.fits(blocks, threads, _shared(r, c), static)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    """All configs that `rooftop tune` may try."""
    r, clusters = of(p), (1, 2, 4, 8, 16)
    found = [persistent(*c) for c in product(clusters, (1, 2, 4), (1, 2, 3, 4), (3, 4))]
    found += [streaming(c, p, b, n) for c, b, p, n in product(clusters, (1, 2, 3, 4, 5, 6, 8, 12), (1, 2, 3, 4, 8), (1, 2))]
    return [c for c in (_complete(r, one) for one in found) if runs(r, c)]


def launches(p: Problem, c: Mapping[str, Any], head: Head) -> list[Launch]:
    r, path, (args, types) = of(p), c["path"], head.arguments(p, c)
    r = r.as_ring_rows if path == "persistent" else r
    threads, size, blocks, pieces, rows = c["threads"], c["cluster"], c["blocks"], c["pieces"], c["rows"]
    fit, flags = r.slices.fit(size, pieces, threads), [r.centre, r.second]
    if path == "streaming":
        name, grid, config = "norm_streaming", size * -(-r.count // rows), (pieces, rows, threads, size, blocks, fit)
    else:
        clusters = _clusters(r, c, r.count)
        name, grid, config = "norm_persistent", size * clusters, (pieces, threads, size, blocks, c["stages"], fit)
        flags = [r.slices.runs(clusters) > 1, *flags, r.weight, r.bias]
        (rows_, columns, *rest) = args.items()
        args = dict((rows_, columns, ("clusters", clusters), ("period", r.slices.period_of(clusters)), *rest))
        types = ("i32", "i32", *types)
    kernel = instance(name, DTYPES[p["x"].dtype].cuda, *config, *flags)
    return [Launch(kernel, (grid,), args, types=types, block=(threads,), shared=_shared(r, c), pdl=True, cluster=(size,))]
