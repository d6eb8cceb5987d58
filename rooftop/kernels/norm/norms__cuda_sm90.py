"""The forward of rms_norm and layer_norm on sm_90: which of five kernels runs, and with which launch config. One table for both ops.

| path | what it does | device code |
|---|---|---|
| `warp` | one or a few short rows a warp, in registers; no barrier | norm_warp, norms__cuda_sm90.cu |
| `whole row` | one block a row, in registers | norm_whole_row, norms__cuda_sm90.cu |
| `streaming` | a cluster takes one or two rows, in shared memory, and ends; the hardware then starts the next one | norm_streaming, _fwd_slices_sm90.cuh |
| `persistent` | as many clusters as are resident at once, each loops over rows; weight and bias are read once | norm_persistent, _fwd_slices_sm90.cuh |
| `cluster` | the general case: one cluster a row, one cluster barrier | norm_cluster, norms__cuda_sm90.cu |

A config holds

    cluster   blocks of a cluster
    blocks    blocks that must fit a multiprocessor at once, at least: the second argument of __launch_bounds__, which bounds the registers
    threads   of a block
    pieces    packs of 16 bytes that a thread holds (a pack is 4 elements of float32, 8 of 16 bits; the sm_80 kernels call it a vector)
    early     when norm_whole_row loads weight and bias: AFTER_STATISTICS; TO_REGISTERS, before the barrier; TO_SHARED, by cp.async to
              shared memory, issued after the loads of the row; TO_SHARED_FIRST, the same, issued before them
    rows      that a cluster or a warp takes at once
    stages    rows in the ring buffer of a persistent cluster

Rows of more than 64 KiB (odd ones from 48 KiB on, of layer_norm from 4 KiB on) without a residual go to the persistent kernel whose config
has the least estimated time (`Rows.ring`, by timings on an H200), if shared memory holds three of them and there are at least four rows a
cluster. All others have a table. Its numbers were found by timing on an H100; those for unaligned rows of more than 96 KiB and for rows of
more than 512 KiB are derived from timings of the persistent kernel on an H200. Each row of the table gives the resource that explains the
choice; the first row that fits is taken, so "the same" means the reason of the row above. "Odd" rows are rows that do not start on 16 bytes
or are not whole packs.

Example: layer_norm of bfloat16, 2048 rows of 8192 columns. (From 4096 rows on x has 64 MiB and norms__cuda_sm80.cu is chosen:
_register_rows.py has that example.) A row is 16 KiB = 1024 packs: too long for a warp, so one block holds it. The first row of the table
that fits is "12 KiB to 16 KiB",
`whole_row(512, 2, 3, early=TO_SHARED)`: 512 threads with 2 packs each, which are 8 registers of data. __launch_bounds__(512, 3) gives a
thread up to 40 registers; three blocks are resident on a multiprocessor, so 48 KiB of x are in flight, and one row is loaded while others
are reduced and stored. There is no cluster and no loop over rows: the overlap comes from the resident blocks. In a block: all loads of x;
cp.async of 16 KiB of weight and 16 KiB of bias to shared memory; statistics of each warp in one pass over its registers, about a pivot (the
thread's first element); one barrier; normalise and store. 2048 rows are 5.2 waves of the 396 resident blocks of an H100, so device memory
limits them. 512 rows are 1.3
waves: then the latency of one block counts, from its loads over two reductions and a barrier to its stores, and 512 threads with two packs
each finish a row sooner than 256 threads with four. Why not
persistent: such a kernel reads weight and bias once, but here they come from the L2 while the block waits for its row anyway; and its rows
in flight would take shared memory and the waits of a ring buffer, where three resident blocks keep as many loads in flight without either.

Example: layer_norm of float32, 16384 rows of 8192 columns. A row is 32 KiB = 2048 packs of 16 bytes. A warp would need 64 packs a lane, 256
registers. A block of 512 threads holds it with 4 packs a thread, 16 registers of data: `whole_row(512, 4, 2, early=TO_SHARED)`. Two such
blocks are resident, so 64 KiB of x are in flight to a multiprocessor while about 40 KiB are enough, and one row is loaded while the other
is reduced, normalised and stored. Each block also copies 32 KiB of weight and 32 KiB of bias from the L2 to shared memory, after it has
issued the
loads of its row: 1 GiB of L2 traffic beside 1 GiB of device memory's. The copies take the time in which the block waits for its row.
Measured on an H100: 355 us, 3.03 TB/s, which is what a copy of as many bytes takes. So a persistent kernel, which would read weight and
bias once, has nothing to gain at 32 KiB. Above, a block needs 1024 threads of up to 64 registers, which is the whole register file: one
block is resident, and nothing is loaded while it computes. There the ring buffer of a persistent block keeps loads in flight in shared
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem, instance
from rooftop.kernels.norm import _cluster_slices
from rooftop.kernels.norm._cluster_slices import ANY, KIB, Choice

KERNELS = {
    "warp": "norm_warp", "whole row": "norm_whole_row", "streaming": "norm_streaming", "persistent": "norm_persistent",
    "cluster": "norm_cluster"
}
CLUSTER_BYTES = 225000  # of shared memory for all resident blocks of norm_cluster on one multiprocessor
WARP_PACKS = 8192  # packs of 16 bytes in half of a register file: the rows, weight, bias and results of norm_warp must fit
AFTER_STATISTICS, TO_REGISTERS, TO_SHARED, TO_SHARED_FIRST = range(4)  # `early`; EARLY of norms__cuda_sm90.cu


class Rows(_cluster_slices.Rows):
    """`second`: a residual."""

    @cached_property
    def ring(self) -> dict[str, Any] | None:
        """The persistent clusters with the lowest estimated time a row, for rows longer than a block's registers and for the odd rows of
        layer_norm, for which kernels without a loop shift weight and bias once a row; None if other kernels are faster.

        A ring buffer has two advantages over streaming clusters, which end after a row or two. Weight and bias, each as long as a row, are
        not read from the L2 again and again (layer_norm of float32 at 208736 columns: three reads from the L2 for each read of memory, 0.65
        of a copy). And there is no last wave: a streaming cluster lives for 11 us, and at the end multiprocessors wait for others, for
        about 20 us of each call."""
        longest = 64 * KIB if self.slices.aligned else 4 * KIB if self.centre else 48 * KIB
        if not self.same_alignment or self.second or self.bytes <= longest:
            return None
        r = self.as_ring_rows
        for time, size, pieces, blocks, stages, threads, _ in _rings(replace(r, count=1 << 30)):
            clusters = r.slices.clusters(r.count, r.card.resident(size) * blocks)
            if r.count >= ROUNDS * clusters * (1 if r.slices.aligned else r.slices.runs(clusters)):
                return _complete(r, {**persistent(size, pieces, blocks, stages), "threads": threads}) if time <= SLOWEST[r.centre] else None
        return None

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


def warp(blocks: int, pieces: int, rows: int = 1, threads: int = 64) -> dict[str, Any]:
    return {"path": "warp", "threads": threads, "cluster": 1, "blocks": blocks, "pieces": pieces, "rows": rows}


def whole_row(threads: int, pieces: int, blocks: int, early: int = AFTER_STATISTICS) -> dict[str, Any]:
    return {"path": "whole row", "threads": threads, "cluster": 1, "blocks": blocks, "pieces": pieces, "early": early}


def streaming(cluster: int, pieces: int, blocks: int, rows: int = 1) -> dict[str, Any]:
    return {"path": "streaming", "cluster": cluster, "blocks": blocks, "pieces": pieces, "rows": rows}


def persistent(cluster: int, pieces: int, blocks: int, stages: int) -> dict[str, Any]:
    return {"path": "persistent", "cluster": cluster, "blocks": blocks, "pieces": pieces, "stages": stages}


def cluster(threads: int, cluster: int, blocks: int) -> dict[str, Any]:
    return {"path": "cluster", "threads": threads, "cluster": cluster, "blocks": blocks}


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
    Choice(-1, 512, warp(32, 1), "one pack a lane; 2048 threads a multiprocessor", "aligned"),
    Choice(512, 1 * KIB, warp(16, 2), "two packs a lane; registers for 1024 threads", "aligned"),
    Choice(1 * KIB, 2 * KIB, whole_row(128, 1, 12, early=TO_SHARED), "few rows: four times the warps; weight loaded during the sums",
           "aligned", max_rows=16),
    Choice(1536, 2 * KIB, warp(8, 4), "four packs a lane without padding", "aligned"),
    Choice(1 * KIB, 1536, whole_row(128, 1, 12), "a warp's fourth pack would be padding", "aligned"),
    Choice(2 * KIB, 4 * KIB, whole_row(128, 2, 12), "two packs: 24 KiB a round of 12 blocks", "aligned", "layer_norm"),
    Choice(2 * KIB, 4 * KIB, whole_row(256, 1, 8, early=TO_SHARED), "one pack a thread, all 2048 threads: few registers without a mean",
           "aligned"),
    Choice(4 * KIB, 6 * KIB, whole_row(128, 3, 8, early=TO_SHARED), "three packs need no padding at 3072 elements of 16 bits", "aligned",
           "layer_norm"),
    Choice(4 * KIB, 6 * KIB, whole_row(128, 3, 8), "the same; a weight alone is read after the sums", "aligned"),
    Choice(6 * KIB, 8 * KIB, whole_row(256, 2, 6, early=TO_SHARED), "layer_norm's registers allow six blocks", "aligned", "layer_norm"),
    Choice(6 * KIB, 8 * KIB, whole_row(256, 2, 8, early=TO_SHARED), "two packs in 32 registers: all 2048 threads", "aligned"),
    Choice(8 * KIB, 12 * KIB, whole_row(256, 3, 4, early=TO_SHARED), "three packs, 1024 threads of 64 registers", "aligned"),
    Choice(12 * KIB, 14 * KIB, whole_row(256, 4, 4, early=TO_SHARED), "7168 elements of 16 bits: 3.5 packs of 256 threads", "aligned",
           "layer_norm"),
    Choice(12 * KIB, 16 * KIB, whole_row(512, 2, 3, early=TO_SHARED), "1536 threads: three rows in flight", "aligned"),
    Choice(16 * KIB, 24 * KIB, whole_row(512, 3, 2, early=TO_SHARED),
           "two rows a multiprocessor: one is loaded while the other is summed", "aligned"),
    Choice(24 * KIB, 32 * KIB, whole_row(512, 4, 2, early=TO_SHARED), "the same", "aligned"),
    Choice(32 * KIB, 44 * KIB, persistent(2, 4, 1, 4), "one block a multiprocessor: a ring buffer", "aligned", "layer_norm", second=False,
           min_rows=2),
    Choice(32 * KIB, 48 * KIB, whole_row(1024, 3, 1, early=TO_SHARED), "1024 threads hold the row", "aligned"),
    Choice(48 * KIB, 64 * KIB, whole_row(1024, 4, 1, early=TO_SHARED), "the longest row that registers hold", "aligned"),
    Choice(-1, 4 * KIB, cluster(128, 1, 12), "a residual with odd rows, or rows whose misalignment differs between tensors"),
    Choice(4 * KIB, 8 * KIB, cluster(256, 1, 6), "the same"),
    Choice(8 * KIB, 32 * KIB, cluster(256, 1, 4), "the same", op="layer_norm"),
    Choice(8 * KIB, 32 * KIB, cluster(512, 1, 3), "the same", op="rms_norm"),
    Choice(32 * KIB, 64 * KIB, cluster(512, 1, 2), "the same; two rows of 64 KiB fit the shared memory"),
    Choice(128 * KIB, 256 * KIB, persistent(16, 4, 2, 3), "layer_norm: weight and bias are read once", "aligned", second=False,
           min_rows=0.25),
    Choice(256 * KIB, 512 * KIB, persistent(16, 2, 1, 3), "the same; one block a multiprocessor", "aligned", second=False, min_rows=0.25),
    Choice(64 * KIB, 128 * KIB, cluster(512, 2, 2), "a residual, or unlike misalignment: the smallest cluster that holds a row"),
    Choice(128 * KIB, 256 * KIB, cluster(256, 8, 4), "the same, or fewer rows than persistent clusters"),
    Choice(256 * KIB, 512 * KIB, cluster(512, 8, 2), "the same"),
    Choice(512 * KIB, ANY, cluster(256, 16, 2), "sixteen blocks: the longest row that a cluster's shared memory holds"),
)


def _complete(r: Rows, config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with all fields: defaults filled in, and the number of threads computed from `pieces` where it is not given."""
    found = {"threads": 0, "pieces": 1, "early": AFTER_STATISTICS, "rows": 1, "stages": 3, **config}
    if not found["threads"]:
        layout = (r.as_ring_rows if found["path"] == "persistent" else r).slices
        found["threads"] = layout.threads(found["cluster"], found["pieces"])
    return found


EXCHANGE = 900  # cycles of the reduction of a row's sums over a warp, a block and a cluster, in sequence; without a mean 600
PACK = 110  # instructions of a warp for 32 packs of 16 bits, both passes; fewer without a mean, and for float32
# clusters of one or two blocks use all multiprocessors; those of GPCs with 18 instead of 16 get less bandwidth each and end later
UNEQUAL = 1.08
ROUNDS = 4  # with fewer rows of a cluster, or of a run of its rows, filling and draining the ring costs more than it gains
# several runs of rows a cluster must save more than this; what their ends cost is not in the estimate, since it depends on the number of
# rows
RUNS = 1.12
# limits of the estimate, without and with a mean: streaming clusters take so long, in which layer_norm also reads a bias
SLOWEST = 1.15, 1.6


def _clusters(r: Rows, c: Mapping[str, Any], rows: int) -> int:
    return r.slices.clusters(rows, r.card.resident(c["cluster"]) * c["blocks"])


@lru_cache(maxsize=64)
def _rings(r: Rows) -> list[tuple[float, int, int, int, int, int, int]]:
    """The rings that fit if there are rows enough, fastest first: (time, blocks of a cluster, pieces, blocks of a multiprocessor, stages,
    threads, clusters). The time is that of a row in norm_persistent as a multiple of its memory traffic's, fitted to timings on an H200. A
    round, in which each cluster processes a row, takes as long as the memory traffic, or as a row's own reductions and instructions if
    these take longer. It does not depend on the number of rows (`count` is 2^30), so a new number of rows compiles nothing new."""
    found: list[tuple[float, int, int, int, int, int, int]] = []
    ways: list[tuple[int, int, int, int, float]] = []
    aligned, edge = r.slices.aligned, 0 if r.slices.aligned else _cluster_slices.EDGE
    limits = _threads(r)
    mean, width = 1 if r.centre else 0.65, 1 if r.slices.itemsize == 2 else 0.55
    for size in (1, 2, 4, 8, 16):
        known: dict[int, tuple[int, bool]] = {}  # by the blocks of a multiprocessor: clusters, and whether they have several runs of rows
        room, packs = 0, r.slices.packs(size)
        for pieces in (2, 4, 8) if size == 1 or r.bytes > 4096 * size else ():
            threads = 32 * -(-packs // (32 * pieces))
            slot = 16 * (pieces * threads + edge)
            fixed = slot * r.parameters + _cluster_slices.SYSTEM  # bytes of shared memory
            if threads > 1024 or 3 * slot + fixed > _cluster_slices.SHARED:
                continue
            fixed += _static(1, threads, size)
            most, with_runs = limits[pieces > 2]
            for blocks in range(-(-256 // threads), min(4, most // threads, _cluster_slices.SHARED // (3 * slot + fixed)) + 1):
                if blocks not in known:
                    room = room or r.card.resident(size)
                    clusters = room * blocks if aligned else r.slices.clusters(r.count, room * blocks)
                    known[blocks] = clusters, not aligned and r.slices.runs(clusters) > 1
                clusters, several = known[blocks]
                if several and blocks * threads > with_runs:
                    continue
                # three rows in the ring; a fourth if there is room, and three keep too few bytes in flight
                few = blocks * 2 * r.bytes < _cluster_slices.FLYING * size and blocks * (4 * slot + fixed) <= _cluster_slices.SHARED
                own = EXCHANGE * (1 if r.centre else 0.67) + blocks * threads / 32 * pieces * PACK * mean * width / 4
                slower = (UNEQUAL if size <= 2 else 1) * (RUNS if several else 1)
                for n in (3, 4) if few else (3,):
                    ways.append((size, blocks, n, clusters, own))
                    found.append((slower, size, pieces, blocks, n, threads, clusters))
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
    match c["path"]:
        case "cluster":
            return 16 * tensors * -(-r.bytes // (16 * c["cluster"]))
        case "whole row":
            return 16 * c["pieces"] * c["threads"] * r.parameters if c["early"] >= TO_SHARED else 0
        case "persistent":
            return 16 * slots * (c["stages"] * tensors + r.parameters)
        case "streaming":
            return 16 * c["rows"] * slots * tensors
    return 0


def runs(r: Rows, c: Mapping[str, Any]) -> bool:
    """Whether the rows fit this config, and `blocks` of its blocks fit a multiprocessor."""
    threads, pieces, blocks = c["threads"], c["pieces"], c["blocks"]
    r = r.as_ring_rows if c["path"] == "persistent" else r
    if c["cluster"] > 1 and r.bytes <= 4096 * c["cluster"]:
        return False
    static = _static(c["rows"], threads, c["cluster"])
    covers = (pieces - 1) * threads * 16 < r.bytes <= pieces * threads * 16
    match c["path"]:
        case "cluster":
            return blocks * threads <= 2048 and r.bytes * blocks <= CLUSTER_BYTES * c["cluster"]
        case "whole row":
            room = blocks * (_shared(r, c) + _cluster_slices.SYSTEM + 256) <= _cluster_slices.SHARED
            return (
                r.slices.aligned and 512 <= blocks * threads <= 2048 and covers and room
                and (c["early"] == AFTER_STATISTICS or r.parameters > 0)
            )
        case "warp":
            held = blocks * threads * pieces * (c["rows"] + 3) <= WARP_PACKS
            return r.slices.aligned and 256 <= blocks * threads <= 2048 and held and (pieces - 1) * 512 < r.bytes <= pieces * 512
        case "persistent":
            most, with_runs = _threads(r)[pieces > 2]
            several = r.slices.runs(_clusters(r, c, r.count)) > 1
            few = r.count * c["cluster"] <= r.sms * blocks
            if not r.same_alignment or few or blocks * threads > (with_runs if several else most):
                return False
            return _cluster_slices.fits(blocks, threads, _shared(r, c), static)
    return r.same_alignment and (c["rows"] == 1 or r.slices.aligned) and _cluster_slices.fits(blocks, threads, _shared(r, c), static)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    """All configs that `rooftop tune` may try."""
    r, clusters = of(p), (1, 2, 4, 8, 16)
    found = [cluster(*c) for c in product((256, 512, 1024), clusters, (1, 2, 3, 4, 6, 8))]
    found += [
        whole_row(t, p, b, e) for t, b, p, e in product((64, 128, 256, 512, 1024), (1, 2, 3, 4, 6, 8, 12, 16), (1, 2, 3, 4), range(4))
    ]
    found += [persistent(*c) for c in product(clusters, (1, 2, 4), (1, 2, 3, 4), (3, 4))]
    found += [streaming(c, p, b, n) for c, b, p, n in product(clusters, (1, 2, 3, 4, 5, 6, 8, 12), (1, 2, 3, 4, 8), (1, 2))]
    found += [warp(b, p, n, t) for t, b, p, n in product((32, 64, 128, 256), (4, 8, 16, 32), (1, 2, 3, 4), (1, 2, 4))]
    return [c for c in (_complete(r, one) for one in found) if runs(r, c)]


def launches(p: Problem, c: Mapping[str, Any], head: Head) -> list[Launch]:
    r, path, (args, types) = of(p), c["path"], head.arguments(p, c)
    r = r.as_ring_rows if path == "persistent" else r
    threads, size, blocks, pieces, rows = c["threads"], c["cluster"], c["blocks"], c["pieces"], c["rows"]
    fit = r.slices.fit(size, pieces, threads)
    grid, config = {
        "cluster": (r.count * size, (threads, size, blocks)),
        "whole row": (r.count, (threads, pieces, blocks, c["early"])),
        "warp": (-(-r.count // (rows * (threads // 32))), (threads, pieces, rows, blocks)),
        "streaming": (size * -(-r.count // rows), (pieces, rows, threads, size, blocks, fit)),
        "persistent": (0, (pieces, threads, size, blocks, c["stages"], fit)),
    }[path]
    flags = [r.centre, r.second]
    if path in ("cluster", "whole row"):  # one row per block or cluster: the number of rows is the grid's
        args, types = {n: v for n, v in args.items() if n != "R"}, types[1:]
    if path == "persistent":
        clusters = _clusters(r, c, r.count)
        (rows_, columns, *rest), grid, flags = args.items(), size * clusters, [r.slices.runs(clusters) > 1, *flags, r.weight, r.bias]
        args = dict((rows_, columns, ("clusters", clusters), ("period", r.slices.period_of(clusters)), *rest))
        types = ("i32", "i32", *types)
    kernel, of_cluster = instance(KERNELS[path], DTYPES[p["x"].dtype].cuda, *config, *flags), () if path in ("whole row", "warp") else (size,)
    return [Launch(kernel, (grid,), args, types=types, block=(threads,), shared=_shared(r, c), pdl=True, cluster=of_cluster)]
