"""The sizes of cluster_slices.cuh on the host: how rows are divided among the blocks of clusters, which its kernels are compiled and
launched with.

A row is packs of 16 bytes. A block of a cluster has a slice of them, a thread `pieces` packs of the slice. Unaligned rows have up to two
partial packs at either end, the edge; the four edge packs have slots of their own, and the first warp processes their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from rooftop.core.spec import TARGETS, Device, Meta

SHARED = 233472  # bytes of shared memory of a multiprocessor; each block takes SYSTEM besides its own
SHARED_OF_BLOCK = 232448
SYSTEM = 1024
EDGE = 4  # edge packs of an unaligned row
SATURATED = 0.8  # this part of the resident clusters moves nearly as many bytes as all of them
# rounds that a cluster loses while its ring runs empty and is filled again: two runs of 9 rows took 1.24 times as long as fewer clusters
# with 23
EMPTY = 6


@dataclass(frozen=True)
class Slices:
    """Rows of `columns` elements, `stride` apart. `aligned`: they start on 16 bytes and are whole packs."""

    columns: int
    itemsize: int
    stride: int
    aligned: bool
    row_bytes: int = field(init=False, compare=False)
    period: int = field(init=False, compare=False)  # rows so far apart are equally far from 32 bytes

    def __post_init__(self) -> None:
        sector = 32 // self.itemsize
        object.__setattr__(self, "row_bytes", self.columns * self.itemsize)
        object.__setattr__(self, "period", 1 if self.aligned else sector // gcd(self.stride, sector))

    def packs(self, cluster: int) -> int:
        """Packs of a block, those of the edge apart. If several blocks divide an aligned row, lines of 128 bytes are not split."""
        line, (more, edge) = 1 if cluster == 1 else 8 if self.aligned else 2, (0, 0) if self.aligned else (2, EDGE)
        return max(1, -(-(-(-self.row_bytes // 16) + more) // (line * cluster)) * line - edge)

    def threads(self, cluster: int, pieces: int) -> int:
        """Threads of a block: as many warps as its slice needs with `pieces` packs a thread."""
        return 32 * -(-self.packs(cluster) // (32 * pieces))

    def fit(self, cluster: int, pieces: int, threads: int) -> int:
        """FIT of cluster_slices.cuh: 0 for unaligned rows, 2 if every thread has all of its packs, else 1."""
        if not self.aligned:
            return 0
        return 2 if self.row_bytes == 16 * cluster * pieces * threads else 1

    def clusters(self, rows: int, room: int, group: int = 1) -> int:
        """Clusters of a persistent kernel's grid, of which `room` are resident at once: all of them get equally many rows, in groups of
        `group`. The offset of unaligned rows from 32 bytes repeats with a period. If the number of clusters is a multiple of it, all rows
        of a cluster have one offset. Otherwise a cluster has several runs of rows, between which its ring runs empty
        (_same_alignment.cuh)."""
        if self.aligned:
            each = -(-max(rows, 1) // room)
            return group * max(1, (-(-rows // each) + group - 1) // group)
        half = max(1, self.period // 2)  # if clusters are few: with one offset from 16 bytes, so that copies split sectors
        one = room // self.period * self.period or room // half * half
        if one >= SATURATED * room or (one and -(-rows // one) <= -(-rows // room) + EMPTY * (self.runs(room) - 1)):
            return one
        return max(1, min(room, rows))

    def runs(self, clusters: int) -> int:
        """The most runs of rows that a cluster has, where rows divide evenly; one more where they do not."""
        if clusters < self.period and 2 * clusters % self.period == 0:
            return 1
        return 1 + -(-(self.period - gcd(self.period, clusters)) // clusters)

    def period_of(self, clusters: int) -> int:
        """`period` of _same_alignment.cuh."""
        return 1 if self.runs(clusters) == 1 else self.period


def same_starts(*tensors: Meta | None) -> bool:
    """Whether row k has the same offset from 16 bytes in all of these tensors, for every k."""
    first: Meta | None = None
    for m in tensors:
        if m is not None:
            first = first or m
            if m.align % 16 or (m.strides[0] - first.strides[0]) * first.itemsize % 16:
                return False
    return True


def rows_aligned(*tensors: Meta | None) -> bool:
    """Whether each row of all of these tensors starts on 16 bytes; of a tensor of one dimension: whether it does."""
    odd = [m for m in tensors if m and (m.align % 16 or (len(m.shape) > 1 and m.shape[0] > 1 and m.strides[0] * m.itemsize % 16))]
    return not odd


def fits(blocks: int, threads: int, shared: int, static: int) -> bool:
    """Whether so many blocks are resident on a multiprocessor at once."""
    used = shared + static
    return threads <= 1024 and 256 <= blocks * threads <= 2048 and blocks * (used + SYSTEM) <= SHARED and used <= SHARED_OF_BLOCK


@dataclass(frozen=True)
class Rows:
    """What a choice depends on, in both directions."""

    count: int
    slices: Slices
    same_alignment: bool  # a row has the same misalignment (address modulo 16) in all tensors
    second: bool  # whether there is a second tensor of rows to read: the residual, or ds, a gradient of the sum
    weight: bool  # given, in the backward computed
    bias: bool
    centre: bool  # layer_norm: the mean is subtracted
    sms: int
    card: Device = TARGETS[90]
    bytes: int = field(init=False, compare=False)  # of a row
    parameters: int = field(init=False, compare=False)  # how many of weight and bias there are

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", self.slices.row_bytes)
        object.__setattr__(self, "parameters", self.weight + self.bias)


KIB = 1024
ANY = 1 << 62
LAYER, RMS = "layer_norm", "rms_norm"


@dataclass(frozen=True)
class Choice:
    """A row of a table: a config and the inputs it is for.

    over, most       bytes of a row: more than `over`, at most `most`
    why              the reason for the config
    alignment        "aligned": rows start on 16 bytes and are whole packs; "odd": they are not, but equally misaligned in all tensors;
                     "same_alignment": either of these; "": any
    op               LAYER or RMS; "": both
    itemsize         bytes of an element; 0: any
    second           True: only with a second tensor of rows; False: only without; None: either
    summed           True: only with a weight or a bias
    min_rows, max_rows  rows per multiprocessor, at least and at most"""

    over: int
    most: int
    config: Mapping[str, Any]
    why: str
    alignment: str = ""
    op: str = ""
    itemsize: int = 0
    second: bool | None = None
    summed: bool = False
    min_rows: float = 0
    max_rows: float = ANY


def of_table(table: Sequence[Choice], r: Rows) -> Choice:
    """The first row of a table that takes the input."""
    size, aligned = r.bytes, r.slices.aligned
    alignments = {"": True, "aligned": aligned, "same_alignment": r.same_alignment, "odd": r.same_alignment and not aligned}
    op, each = LAYER if r.centre else RMS, r.count / r.sms
    for c in table:
        if (
            c.over < size <= c.most and alignments[c.alignment] and c.op in ("", op) and c.itemsize in (0, r.slices.itemsize)
            and c.second in (None, r.second) and (r.parameters or not c.summed) and c.min_rows <= each <= c.max_rows
        ):
            return c
    raise ValueError(f"no row of the table takes rows of {size} bytes")


BYTES = 18.2  # a cycle: a multiprocessor's share of an H200's 4.2 TB/s at 1.75 GHz
MOST = 1.6  # how many times its share of the bandwidth one multiprocessor can move: 64 of the 132 moved 3.4 TB/s
FLYING = 40 * KIB  # bytes in flight to a multiprocessor that saturate the memory
OVERLAP = 0.15  # the fraction of the shorter time that is not hidden behind the longer one


def rounds_of(r: Rows, ways: Sequence[tuple[int, int, int, int, float]], ring: int, tensors: int) -> list[tuple[float, float]]:
    """Cycles of a round of persistent kernels, in which each of their clusters processes a row: those of its memory traffic with all of the
    bandwidth; and of the round, which are those of the memory with as many multiprocessors and bytes in flight as there are, or a row's own
    (reductions and instructions), whichever are more. `ways`: (blocks of a cluster, blocks of a multiprocessor, rows in the ring, clusters,
    a row's own cycles); `ring`: row tensors in the ring; `tensors`: those that are read or written."""
    found = []
    for cluster, blocks, stages, clusters, own in ways:
        flying = blocks * (stages - 1) * ring * r.bytes / cluster
        least = tensors * r.bytes * clusters / (BYTES * r.sms)
        memory = least * max(1.0, r.sms * blocks / (MOST * clusters * cluster), FLYING / flying)
        found.append((least, max(memory, own) + OVERLAP * min(memory, own)))
    return found


def takes_turns(memory: float, own: float) -> float:
    """Cycles of a round: those of the memory, or of a row's own reductions and instructions, whichever are more."""
    return max(memory, own) + OVERLAP * min(memory, own)
