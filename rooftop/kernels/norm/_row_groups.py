"""How rows that are too long for a block are divided among the blocks of a group (Mail of _ring.cuh), for any number of rows and columns.

The kernels are persistent, one block a multiprocessor, or `beside` smaller ones, of which one computes or waits while another loads.
`blocks` blocks are a group, which processes one row after another. A block's slice of a row is in its ring buffer from the time the copy is
issued until the row is finished, `lag` rows after the statistics of the slice were sent. The choice weighs

    shared memory   `stages` rows of all tensors that are read: at least `lag` + 2, since one is being loaded, one computed, and others wait
                    for messages
    idle blocks     blocks that do not make a whole group, and groups that have one row less than others
    messages        an iteration costs an exchange, however short the slice: OVERHEAD vectors"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem

THREADS = 512
MAIL_ROWS = 8
GROUP_MOST = 128
OVERHEAD = 128  # vectors that a block moves in the time of an iteration's barrier; kernels that were timed on an H200 pass a larger number
SYSTEM = 1024  # bytes of shared memory that a block takes besides its own
HIDDEN = 0.85  # of the shorter one of memory traffic and exchange, if several blocks share a multiprocessor
STATIC = 6 * 1024  # bytes of shared memory besides the ring, at most


@dataclass(frozen=True)
class LongRows:
    """What the choice depends on."""

    count: int
    vectors: int  # of a row of one tensor
    aligned: bool
    period: int  # rows this far apart have the same offset from a 16-byte boundary
    tensors: int  # read, of each row
    kept: int  # row tensors that stay in shared memory
    words: int  # of a message
    sms: int
    shared: int  # bytes of shared memory that a block may have
    most: int = 4  # vectors a thread
    overhead: int = OVERHEAD
    beside: int = 1  # blocks of a multiprocessor
    threads: int = THREADS  # of a block, at most
    sectors: bool = False  # SECTORS of _ring.cuh


def besides(r: LongRows, beside: int) -> LongRows:
    """The same rows for `beside` blocks a multiprocessor; `sms` then counts places for blocks."""
    return replace(
        r, sms=r.sms * beside, shared=(r.shared + SYSTEM) // beside - SYSTEM, beside=beside, threads=THREADS // beside
    ) if beside > 1 else r


def of(
    p: Problem, row: Meta, tensors: Sequence[Meta], read: int, kept: int, words: int, most: int = 4, overhead: int = OVERHEAD
) -> LongRows:
    """For the rows of `row` [R, C, ...]; if all of `tensors` are aligned to 16 bytes with whole vectors a row, there are no single
    elements."""
    of_vector = 16 // row.itemsize
    aligned = row.shape[1] % of_vector == 0 and all(_aligned(m) for m in tensors)
    period = 1 if aligned or row.shape[0] == 1 else 16 // gcd(16, row.strides[0] * row.itemsize)
    card, vectors = p.device, max(1, row.shape[1] // of_vector)
    return LongRows(row.shape[0], vectors, aligned, period, read, kept, words, card.sms, card.shared_per_block, most, overhead)


def _aligned(m: Meta) -> bool:
    return m.align >= 16 and (len(m.shape) == 1 or m.shape[0] == 1 or m.strides[0] * m.itemsize % 16 == 0)


def refuses(r: LongRows, row: Meta) -> str | None:
    if not row.shape[0] or not row.shape[1]:
        return "there must be a row"
    if max(row.shape[:2]) >= 2**31 - 2**20:
        return f"rows and columns are counted in 32 bits; given {row.shape}"
    if choose(r) is None:
        return f"a row must fit the shared memory of all blocks that run at once; given {row.shape[1] * row.itemsize} bytes"
    return None


def ring(r: LongRows, threads: int, vectors: int, stages: int) -> int:
    """Bytes, in the layout of _ring.cuh: the rows, the tensors that stay, the single elements."""
    return threads * (
        16 * vectors * (stages * r.tensors + r.kept) + (0 if r.aligned else 4 * stages * r.tensors)
    ) + (32 * stages if r.sectors else 0)


def groups(r: LongRows, blocks: int) -> int:
    """The number of groups of `blocks` blocks: a multiple of the period, and at most one for each row."""
    fit = r.sms // blocks
    return min(fit // r.period, -(-r.count // r.period)) * r.period


@lru_cache(maxsize=64)
def _candidates(r: LongRows) -> tuple[dict[str, int], ...]:
    """Of rows of which `count` is 0: the ring does not depend on it."""
    found = []
    for blocks in range(1, min(GROUP_MOST, r.sms // r.period) + 1):
        slice_ = -(-r.vectors // blocks)
        vectors = -(-slice_ // r.threads)
        if vectors > r.most:
            continue
        threads = max(64, 32 * -(-max(r.words * blocks, -(-slice_ // vectors)) // 32))
        for stages in range(8, 2, -1):
            if threads <= r.threads and ring(r, threads, vectors, stages) + STATIC <= r.shared:
                found.append({"blocks": blocks, "threads": threads, "vectors": vectors, "stages": stages, "lag": 2 if stages > 4 else 1})
                break
    return tuple(found)


def _cost(r: LongRows, c: Mapping[str, int]) -> int:
    """Vectors that a multiprocessor of the busiest group could move in the time that its blocks take: one after another those of a row and
    its exchange; if it has several blocks, the exchange of one is hidden behind the others' traffic."""
    slice_ = -(-r.vectors // c["blocks"])
    more = slice_ * (r.beside - 1)
    return -(-r.count // groups(r, c["blocks"])) * round(slice_ + max(more, r.overhead) + (1 - HIDDEN) * min(more, r.overhead))


def choose(r: LongRows) -> dict[str, int] | None:
    """The config, or None if a row is too long for all blocks together."""
    best = min(_candidates(replace(r, count=0)), key=lambda c: _cost(r, c), default=None)
    return None if best is None else dict(best)


def share(r: LongRows) -> float:
    """The estimated speed as a share of the memory's; 0 if a row is too long."""
    best = choose(r)
    return r.count * r.vectors / (r.sms / r.beside) / _cost(r, best) if best else 0.0


def configs(r: LongRows) -> list[dict[str, int]]:
    """The configs for tuning: the ten with the lowest cost, and fewer stages."""
    found = [dict(c) for c in sorted(_candidates(replace(r, count=0)), key=lambda c: _cost(r, c))[:10]]
    return found + [{**c, "stages": 4, "lag": 1} for c in found if c["stages"] > 4]


def mail(r: LongRows, blocks: int) -> Meta:
    return Meta((groups(r, blocks), MAIL_ROWS, r.words, blocks), "u64")


def launch(r: LongRows, config: Mapping[str, int], kernel: str, args: Mapping[str, Any], types: Sequence[str]) -> Launch:
    """The cooperative launch; the kernel's arguments `period`, `blocks` and the mailbox follow `args`."""
    blocks, threads = config["blocks"], config["threads"]
    more = {"period": r.period, "blocks": blocks, "mail": "mail"}
    shared = ring(r, threads, config["vectors"], config["stages"])
    types = (*types, "i32", "i32", "ptr")
    return Launch(kernel, (groups(r, blocks) * blocks,), {**args, **more}, types=types, block=(threads,), shared=shared, cooperative=True)
