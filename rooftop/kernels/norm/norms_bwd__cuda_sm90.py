"""The backward of rms_norm and layer_norm on sm_90 (norms_bwd__cuda_sm90.cu): how many blocks share a row, and what a thread holds. One
table for both ops.

The kernel is persistent: as many clusters as are resident at once; each loops over rows and writes one partial row of sums at its end; a
second launch adds the partial rows in order. A config holds

    cluster   blocks that share a row
    blocks    resident blocks of a multiprocessor
    pieces    packs of 16 bytes a thread
    stages    rows in the ring buffer
    sums      where the sums of dweight and dbias are kept: in "registers", in "shared" memory, or "split": dweight's in registers, dbias's
              in shared memory
    group     blocks that add up their sums before they write them

The table was timed on an H100. If an estimate, fitted to timings on an H200 (`_shares`), finds a config that is 4 % faster, that config is
used instead. In larger tensors the sm_80 kernels (norms_bwd__cuda_sm80.py) are faster for most rows of layer_norm of up to 24 KiB
(choose.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product, repeat
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance
from rooftop.kernels.norm import _cluster_slices
from rooftop.kernels.norm._cluster_slices import ANY, BYTES, KIB, LAYER, RMS, Choice, rounds_of

SUMS = {"shared": 0, "registers": 1, "split": 2}
THREADS = 3072  # blocks · threads · (3 with all sums in registers, else 2): what a register file holds


class Rows(_cluster_slices.Rows):
    """`second`: ds, a gradient of the sum."""

    @cached_property
    def choice(self) -> dict[str, Any]:
        table = _complete(self, _cluster_slices.of_table(TABLE, self).config)
        return _fastest(self, table) or table


@lru_cache(maxsize=16)
def of(p: Problem) -> Rows:
    s = p["s"]
    tensors = [p.get(n) for n in ("s", "dy", "dx", "ds", "weight")]
    aligned = s.shape[1] * s.itemsize % 16 == 0 and _cluster_slices.rows_aligned(*tensors)
    layout = _cluster_slices.Slices(s.shape[1], s.itemsize, s.strides[0], aligned)
    same_alignment = aligned or _cluster_slices.same_starts(*tensors[:4])
    given = p.get("ds") is not None, p.get("dweight") is not None, p.get("dbias") is not None
    return Rows(s.shape[0], layout, same_alignment, *given, p.op.startswith("layer_norm"), p.device.sms, p.device)


def share(
    cluster: int, pieces: int, blocks: int, stages: int, sums: str = "registers", group: int = 1
) -> dict[str, Any]:
    return {"cluster": cluster, "pieces": pieces, "blocks": blocks, "stages": stages, "sums": sums, "group": group}


TABLE = (  # the first entry that fits the input is used
    Choice(4 * KIB, 8 * KIB, share(1, 1, 1, 3, group=8), "few rows: eight blocks add their sums up", "aligned", LAYER,
           summed=True, max_rows=2),
    Choice(4 * KIB, 8 * KIB, share(1, 2, 1, 3), "few rows: one block a multiprocessor", "", LAYER, max_rows=2),
    Choice(8 * KIB, 10256, share(2, 2, 3, 3), "odd rows: two blocks share one, three pairs a multiprocessor", "odd", LAYER),
    Choice(10256, 16336, share(2, 2, 2, 3), "odd rows: the same, two pairs", "odd", LAYER),
    Choice(16336, 28 * KIB, share(2, 2, 1, 4), "odd rows: the sums of two packs a thread leave registers for one block", "odd", LAYER),
    Choice(28 * KIB, 44 * KIB, share(2, 3, 1, 4), "odd rows: three packs a thread", "odd", LAYER),
    Choice(44 * KIB, 65472, share(2, 4, 1, 3), "odd rows: four packs a thread, the longest row that two blocks hold", "odd", LAYER),
    Choice(8 * KIB, 16 * KIB, share(1, 2, 1, 4), "odd rows: without sums of dbias one block holds a row", "odd", RMS),
    Choice(16 * KIB, 24592, share(4, 2, 2, 4), "odd rows: four blocks share one, two on a multiprocessor", "odd", RMS),
    Choice(24592, 65472, share(2, 2, 1, 3), "odd rows: two blocks share one", "odd", RMS),
    Choice(65472, 130000, share(16, 2, 3, 3), "odd rows: sixteen blocks with 8 KiB each", "odd"),
    Choice(130000, 128 * KIB, share(8, 4, 1, 3), "odd rows: eight blocks, four packs a thread", "odd"),
    Choice(-1, 2 * KIB, share(1, 1, 3, 3), "few short rows: the parts of a row folded at once", "", LAYER, max_rows=16),
    Choice(1 * KIB, 2 * KIB, share(1, 1, 6, 3), "six blocks of up to 128 threads: 1024 to 2048 bytes fill them", "", LAYER),
    Choice(-1, 2 * KIB, share(1, 1, 3, 3), "three blocks: fewer partial rows", "", LAYER),
    Choice(-1, 2 * KIB, share(1, 1, 4, 3), "four blocks: fewer partial rows than eight", "", RMS, max_rows=16),
    Choice(-1, 2 * KIB, share(1, 1, 8, 3), "eight blocks of up to 128 threads", "", RMS),
    Choice(2 * KIB, 4 * KIB, share(1, 1, 4, 3), "four blocks of up to 256 threads: a pack a thread"),
    Choice(4 * KIB, 5 * KIB, share(1, 1, 3, 3), "three blocks of up to 320 threads", "", LAYER),
    Choice(4 * KIB, 5 * KIB, share(1, 1, 2, 3), "two blocks: fewer partial rows", "", RMS),
    Choice(5 * KIB, 8 * KIB, share(1, 2, 2, 3, "shared", 2), "few rows: two blocks add their sums up", "aligned", LAYER,
           summed=True, max_rows=16),
    Choice(5 * KIB, 8 * KIB, share(1, 2, 2, 3), "two packs a thread, two blocks", "", LAYER),
    Choice(5 * KIB, 6 * KIB, share(1, 1, 1, 4), "one block of up to 384 threads and a fourth row in the ring", "", RMS),
    Choice(6 * KIB, 8 * KIB, share(1, 1, 1, 3), "few rows: one block of up to 512 threads", "", RMS, max_rows=2),
    Choice(6 * KIB, 8 * KIB, share(1, 2, 1, 4, "shared"), "few rows: two packs a thread, sums in shared memory", "", RMS, max_rows=16),
    Choice(6 * KIB, 8 * KIB, share(1, 2, 2, 3, "shared"), "two packs a thread, two blocks, sums in shared memory", "", RMS),
    Choice(8 * KIB, 10 * KIB, share(1, 2, 1, 4, group=8), "the most partial rows: eight blocks add theirs up", "aligned",
           LAYER, summed=True),
    Choice(8 * KIB, 10 * KIB, share(1, 2, 1, 4), "one block and a fourth row in the ring", "", LAYER),
    Choice(10 * KIB, 12 * KIB, share(2, 2, 2, 3), "two blocks share a row of 10 to 12 KiB: no padding", "", LAYER),
    Choice(12 * KIB, 16 * KIB, share(1, 2, 1, 3), "ds needs registers: two packs, half the threads", "", LAYER, second=True),
    Choice(14 * KIB, 16 * KIB, share(1, 1, 1, 3, "split"), "dbias's sums in shared memory: 1024 threads have 64 registers each", "",
           LAYER, itemsize=2),
    Choice(12 * KIB, 16 * KIB, share(1, 1, 1, 3), "a pack a thread, up to 1024 threads", "", LAYER),
    Choice(8 * KIB, 10 * KIB, share(1, 2, 1, 3, "shared"), "one block, sums in shared memory", "", RMS),
    Choice(10 * KIB, 14 * KIB, share(2, 1, 1, 4), "two blocks share a row, a pack a thread", "", RMS),
    Choice(14 * KIB, 16 * KIB, share(2, 2, 2, 3), "ds needs registers: two packs a thread, half the threads", "", RMS, second=True),
    Choice(14 * KIB, 16 * KIB, share(2, 1, 1, 3), "two blocks share a row", "", RMS),
    Choice(16 * KIB, 20 * KIB, share(2, 2, 1, 4), "two blocks share a row, two packs a thread, a ring of four", "", LAYER),
    Choice(20 * KIB, 24 * KIB, share(2, 3, 1, 4, "shared"), "three packs a thread; their sums in shared memory", "", LAYER),
    Choice(28 * KIB, 32 * KIB, share(4, 3, 2, 4), "four blocks share a row of up to 32 KiB, two on a multiprocessor", "", LAYER,
           itemsize=2),
    Choice(28 * KIB, 32 * KIB, share(2, 4, 2, 3), "float32 has half the elements a pack: two blocks, four packs a thread", "", LAYER),
    Choice(32 * KIB, 40 * KIB, share(4, 3, 2, 3), "three packs a thread: 40 KiB without padding", "", LAYER),
    Choice(24 * KIB, 44 * KIB, share(4, 2, 2, 3), "two packs a thread, two blocks on a multiprocessor", "", LAYER),
    Choice(48 * KIB, 56 * KIB, share(8, 2, 2, 4), "eight blocks share a row: 7 KiB each, a ring of four", "", LAYER),
    Choice(56 * KIB, 64 * KIB, share(8, 2, 2, 4, "shared"), "the same; sums in shared memory make room for its 512 columns more", "",
           LAYER, itemsize=2),
    Choice(44 * KIB, 64 * KIB, share(4, 3, 1, 4), "four blocks, three packs a thread", "", LAYER),
    Choice(16 * KIB, 20 * KIB, share(4, 1, 2, 3), "four blocks share a row, a pack a thread, two on a multiprocessor", "", RMS),
    Choice(20 * KIB, 24 * KIB, share(4, 3, 2, 3), "the same with three packs: 24 KiB without padding", "", RMS),
    Choice(24 * KIB, 32 * KIB, share(4, 2, 1, 4, "shared"), "four blocks, one on a multiprocessor, sums in shared memory", "", RMS),
    Choice(32 * KIB, 44 * KIB, share(4, 2, 1, 4), "the same, sums in registers", "", RMS),
    Choice(44 * KIB, 64 * KIB, share(8, 1, 1, 4), "eight blocks, a pack a thread", "", RMS),
    Choice(64 * KIB, 128 * KIB, share(8, 1, 1, 3, "shared"), "eight blocks of up to 1024 threads, sums in shared memory", "", LAYER),
    Choice(128 * KIB, 256 * KIB, share(16, 2, 1, 4), "sixteen blocks, two packs a thread", "", LAYER),
    Choice(64 * KIB, 128 * KIB, share(16, 1, 1, 4), "sixteen blocks, a pack a thread", "", RMS),
    Choice(128 * KIB, 256 * KIB, share(16, 4, 1, 3), "sixteen blocks, four packs a thread: half the threads", "", RMS),
    Choice(256 * KIB, ANY, share(16, 4, 1, 3), "the longest rows: sixteen blocks, four packs a thread"),
)


def supports(p: Problem, head: Head | None = None) -> str | None:
    r = of(p)
    if not r.same_alignment:
        return "rows must start on 16 bytes, or all of s, dy, ds and dx as far from them"
    if r.bytes > 512 * KIB:
        return f"three rows of s and dy, the weight and its sums must fit a cluster's sixteen blocks: rows of {512 * KIB} bytes; given {r.bytes}"
    return None


def _complete(r: Rows, config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "threads": r.slices.threads(config["cluster"], config["pieces"])}


# cycles of the reduction of a row's sums over a warp, a block and a cluster; with a mean 1250, and 900 in 16 bits, where all sums are
# combined at once
EXCHANGE = 850
PACK = 140  # instructions of a warp for 32 packs of 16 bits; with a mean 210; for float32, half the elements, 0.63 of that
# cycles, without and with a mean, that the warps of a block wait for the first one, which has the edge of odd rows; a third of them in a
# cluster, whose blocks exchange meanwhile
EDGE = 760, 1120
LAUNCHES = 12800  # cycles: both launches, the first rows and the last
# of a thread, by its packs, with the sums in registers; odd rows need 16 more, two packs of layer_norm in 16 bits 128
REGISTERS = 0, 72, 88, 104, 128
ROUNDS = 8  # with fewer rows a cluster, filling and draining the ring costs more than it gains
GAIN = 0.96  # a config must be faster than this factor to replace the table's, which was timed


def _registers_of(r: Rows, cluster: int, packs: int) -> list[Sequence[int]]:
    """With how many registers a thread of one to four packs the compiler keeps everything in them, as `rooftop inspect` shows. With 16-bit
    elements it spills some bytes of three and four packs, whatever the limit, except in these cases. The 8 to 16 bytes that it spills of
    four packs of odd float32 rows are allowed: with fewer packs more multiprocessors would idle. `packs`: of a block."""
    half, aligned, several, more = r.slices.itemsize == 2, r.slices.aligned, r.centre and cluster > 1, 0 if r.slices.aligned else 16
    two = 128 if half and r.centre else REGISTERS[2] + more
    found: list[Sequence[int]] = [range(REGISTERS[1] + more, 513), range(two, 513), range(REGISTERS[3] + more, 513), range(REGISTERS[4], 513)]
    if half and (r.centre or cluster == 1):
        found[2] = ()
    if r.centre and aligned and r.bytes == 16 * cluster * 128 * -(-packs // 128):  # rows that fill all threads
        found[3] = ()
    elif half:
        found[3] = (128,) if several else ()
    elif not aligned:
        found[3] = (128, 144) if several else (144,)
    return found


@lru_cache(maxsize=8)
def costs(centre: bool, itemsize: int) -> tuple[float, float]:
    """Cycles of the reduction of a row's sums, and instructions of a warp for a pack a lane."""
    return EXCHANGE * (1 if not centre else 1.06 if itemsize == 2 else 1.47), PACK * (1.5 if centre else 1) * (1 if itemsize == 2 else 0.63)


def _shares(r: Rows, found: Sequence[tuple[Mapping[str, Any], tuple[int, int]]], rows: int) -> list[float]:
    """The estimated speeds for this number of rows, as fractions of the memory's, fitted to timings on an H200: the rounds, in which each
    cluster processes a row, and then the partial rows. `found`: configs, each with its clusters and their runs of rows."""
    ways, (exchange, pack) = [], costs(r.centre, r.slices.itemsize)
    edge = 0 if r.slices.aligned else EDGE[r.centre]
    for c, (clusters, _) in found:
        size, blocks = c["cluster"], c["blocks"]
        own = exchange * (0.75 if size == 1 else 1) + edge / (1 if size == 1 else 3) + blocks * c["threads"] // 32 * c["pieces"] * pack / 4
        ways.append((size, blocks, c["stages"], clusters, own))
    shares = []
    for (_, (clusters, runs)), (least, round_) in zip(found, rounds_of(r, ways, 2, 4 if r.second else 3), strict=True):
        partial = 6 * clusters * r.slices.columns * r.parameters / (BYTES * r.sms)  # written once; half of them are read from the L2
        rounds = rows / clusters + _cluster_slices.EMPTY * (runs - 1)
        shares.append(least * rows / clusters / (rounds * round_ + partial))
    return shares


@lru_cache(maxsize=64)
def _candidates(r: Rows) -> list[dict[str, Any]]:
    """Of rows of which `count` is 0: what fits does not depend on it. In the order of their blocks and pieces. A fourth row in the ring
    only where three keep too few bytes in flight."""
    edge = 0 if r.slices.aligned else _cluster_slices.EDGE
    one = share(1, 1, 1, 3)
    found = []
    for size in (1, 2, 4, 8, 16):
        if r.bytes <= (4096 * size if size > 1 else 0) or 6 * r.bytes > size * _cluster_slices.SHARED:  # three rows of s and dy do not fit
            continue
        packs = r.slices.packs(size)
        for pieces, registers in enumerate(_registers_of(r, size, packs), 1):
            threads = 32 * -(-packs // (32 * pieces))
            slots = pieces * threads + edge
            places = range(-(-256 // threads), min(THREADS // (3 * threads), 4) + 1)  # for blocks, by their threads and registers
            fixed = 16 * slots * r.weight + (512 if edge else 0)
            if not places or not registers or 96 * slots + fixed + _cluster_slices.SYSTEM > _cluster_slices.SHARED:
                continue
            fixed += _static(threads, size)
            for blocks in places:
                room = (_cluster_slices.SHARED // blocks - _cluster_slices.SYSTEM - fixed) // (32 * slots)  # for rows
                few = blocks * 2 * 2 * r.bytes < _cluster_slices.FLYING * size
                # under __launch_bounds__: each of the four schedulers has 512 registers a lane for its warps, allocated in units of eight
                fits = room >= 3 and 512 // -(-blocks * threads // 128) // 8 * 8 in registers
                for stages in range(3, min(room, 4 if few else 3) + 1) if fits else ():
                    found.append({**one, "cluster": size, "pieces": pieces, "blocks": blocks, "stages": stages, "threads": threads})
    return found


def _fastest(r: Rows, table: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config with the highest estimate, for rows of more than 4 KiB with several rows a cluster; None if the table decides. A ring that
    fills shared memory is the fastest: the reduction of a row's sums takes as long for a short slice as for a long one."""
    rows = 1 << max(r.count.bit_length() - 1, 0)  # rounded to a power of two, so that a new number of rows seldom compiles a new kernel
    # blocks hide each other's reductions: 0.88 to 0.99
    if not r.count or r.bytes <= 4 * KIB or r.second or (not r.centre and table["cluster"] == 1 and table["blocks"] > 1):
        return None
    known: dict[int, int] = {}  # clusters that are resident at once, by their blocks
    launched: dict[int, tuple[bool, tuple[int, int]]] = {}  # by their number: whether each has several rows; clusters and runs
    found = []
    for c in [*_candidates(replace(r, count=0)), table]:  # the table was timed with one run
        if (size := c["cluster"]) not in known:
            known[size] = r.card.resident(size)
        if (room := known[size] * c["blocks"]) not in launched:
            several = rows >= ROUNDS * room or rows >= ROUNDS * r.slices.clusters(r.count, room)
            clusters = room if r.slices.aligned else r.slices.clusters(rows, room)  # of aligned rows: as if there were no end of them
            launched[room] = several, (clusters, 1 if r.slices.aligned else r.slices.runs(clusters))
        if c is table or launched[room][0]:
            found.append((c, launched[room][1]))
    *shares, of_table = _shares(r, found, rows)
    if not shares:
        return None
    best = max(range(len(shares)), key=list(map(round, shares, repeat(2))).__getitem__)
    return dict(found[best][0]) if found[-1][1][1] > 1 or GAIN * shares[best] > of_table else None


def share_of(p: Problem) -> float:
    """The estimated speed as a fraction of the memory's; 0 if the estimate does not apply: few rows, short rows, and with ds."""
    r = of(p)
    if r.bytes <= 2 * KIB or r.second or supports(p) or r.count < ROUNDS * (count := clusters(p, r, c := r.choice)):
        return 0.0
    launched = (r.card.resident(c["cluster"]) * c["blocks"], 1) if r.slices.aligned else (count, r.slices.runs(count))
    return _shares(r, [(c, launched)], r.count)[0]


def cycles(p: Problem) -> float:
    """The estimated cycles of a call, of odd rows of more than 2 KiB without ds: within 10 % of what they took on an H200."""
    r = of(p)
    count = clusters(p, r, c := r.choice)
    return LAUNCHES + 3 * r.count * r.bytes / (BYTES * r.sms) / _shares(r, [(c, (count, r.slices.runs(count)))], r.count)[0]


def choose(p: Problem, head: Head | None = None) -> dict[str, Any]:
    return dict(of(p).choice)


@lru_cache(maxsize=256)
def _static(threads: int, cluster: int) -> int:
    """Bytes of static shared memory: the parts of warps and blocks."""
    return 128 * -(-(threads // 2 * (2 if cluster == 1 else 1) + 32 * cluster + 32) // 128)


def _shared(r: Rows, c: Mapping[str, Any]) -> int:
    """Bytes of dynamic shared memory: rows of s and dy in the ring, the weight, and the sums that are not in registers."""
    of_sums = 4 * (16 // r.slices.itemsize) * c["pieces"] * c["threads"]
    kept = (c["sums"] == "shared" and r.weight) + (c["sums"] != "registers" and r.bias)
    slots = c["pieces"] * c["threads"] + (0 if r.slices.aligned else _cluster_slices.EDGE)
    return slots * (c["stages"] * 32 + 16 * r.weight) + of_sums * kept + (0 if r.slices.aligned else 512)


def runs(r: Rows, c: Mapping[str, Any]) -> bool:
    """Whether the rows fit this config, and `blocks` of its blocks fit a multiprocessor."""
    threads, blocks = c["threads"], c["blocks"]
    if (
        not 256 <= blocks * threads <= THREADS // (3 if c["sums"] == "registers" else 2)
        or (c["cluster"] > 1 and r.bytes <= 4096 * c["cluster"])
    ):
        return False
    grouped = c["group"] == 1 or (c["cluster"] == 1 and r.slices.aligned and r.parameters > 0)
    return grouped and _cluster_slices.fits(blocks, threads, _shared(r, c), _static(threads, c["cluster"]))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    """The configs for tuning."""
    r = of(p)
    tried = product(
        (1, 2, 4, 8, 16), (1, 2, 3, 4), (1, 2, 3, 4, 6, 8), (3, 4), SUMS if r.centre else ("shared", "registers"), (1, 2, 4, 8)
    )
    return [c for c in (_complete(r, share(*one)) for one in tried) if runs(r, c)]


def clusters(p: Problem, r: Rows, c: Mapping[str, Any]) -> int:
    size, group = c["cluster"], c["group"]
    return r.slices.clusters(r.count, p.device.resident(size * group) * c["blocks"] * group, group)


def scratch(p: Problem, c: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    """The partial rows."""
    r = of(p)
    partial = Meta((clusters(p, r, c) // c["group"], r.slices.columns), "f32")
    return {"pw": partial, "pb": partial}


def launches(p: Problem, c: Mapping[str, Any], head: Head) -> list[Launch]:
    r, (args, types) = of(p), head.arguments(p, c)
    count, threads = clusters(p, r, c), c["threads"]
    fit, element = r.slices.fit(c["cluster"], c["pieces"], c["threads"]), DTYPES[p["s"].dtype].cuda
    config = [c["pieces"], threads, c["cluster"], c["group"], c["blocks"], c["stages"], SUMS[c["sums"]], fit]
    flags = [r.slices.runs(count) > 1, r.centre, r.weight, r.bias, r.second]
    (rows, columns, *tensors, eps) = args.items()
    args = dict((rows, columns, ("clusters", count), ("period", r.slices.period_of(count)), *tensors, ("pw", "pw"), ("pb", "pb"), eps))
    first = Launch(
        instance("norm_backward", element, *config, *flags), (c["cluster"] * count,), args,
        types=("i32", "i32", *types[:-1], "ptr", "ptr", types[-1]), block=(threads,), cluster=(c["cluster"] * c["group"],),
        shared=_shared(r, c), pdl=True,
    )
    return [first, *_column_sums(r, count // c["group"], element)]


def _column_sums(r: Rows, count: int, element: str) -> list[Launch]:
    """The launch that adds the partial rows; none if no sum is computed."""
    if not r.parameters:
        return []
    columns = r.slices.columns
    together = 4 if columns % 4 == 0 else 1
    across = 32 if together == 1 or columns >= 65536 else 8 if columns >= 4096 else 4
    height = max(8, min(32 if across == 32 else 64, 1 << (-(-count // 4) - 1).bit_length()))
    deep = min(8, 1 << (-(-count // height) - 1).bit_length())
    args = {
        "count": count, "C": columns, "pw": "pw", "dweight": "dweight" if r.weight else None, "pb": "pb",
        "dbias": "dbias" if r.bias else None,
    }
    kernel = instance("norm_column_sums", element, together, across, height, deep)
    grid = (-(-columns // (across * together)), r.weight + r.bias)
    return [Launch(kernel, grid, args, types=("i32", "i32", "ptr", "ptr", "ptr", "ptr"), block=(across, height), pdl=True)]
