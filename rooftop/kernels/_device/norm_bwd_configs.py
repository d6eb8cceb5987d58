"""Launches and configs of the backward of rms_norm and layer_norm (norm_rows_bwd.cuh), for any number of rows and columns.

A row is `vectors` of 16 bytes of s, dy and dx each, taken by a team: a few lanes of a warp, or a block. The kernels are persistent, so what counts is a
multiprocessor: 512 threads of up to 128 registers. What is weighed:

    registers         a vector takes 16 for its sums of dweight and dbias (8 where one is not wanted), so a thread holds 4 at most
    bytes in flight   the ring holds as many rows as leave RING bytes a multiprocessor on their way, of which 40 KiB keep an H200 busy
    padding           threads that hold fewer vectors than the others wait for them
    partial rows      a block leaves one: 8 bytes a column, written and read once more. With few rows a block, larger teams: fewer blocks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem

THREADS = 512  # of a multiprocessor
WARP_KERNEL_THREADS = 256
MOST = 4  # vectors a thread
RING = 96 * 1024
RESERVED = 2048  # bytes of shared memory that a block takes beside the ring: 1 KiB of the system, and its own static part
TENSORS = ("s", "dy", "dx", "ds", "weight")


@dataclass(frozen=True)
class Rows:
    """What decides."""

    count: int
    columns: int
    vectors: int  # of a row
    aligned: bool  # no singles: all rows are whole vectors on 16 bytes
    period: int  # rows so far apart lie equally far from a 16-byte boundary
    tensors: int  # read: 3 with ds
    weight: bool
    itemsize: int
    sms: int
    shared: int  # bytes a block may have

    @property
    def least(self) -> int:
        """Threads of a team: singles are one a thread."""
        return 1 if self.aligned else 32 // self.itemsize

    @property
    def pitch(self) -> int:
        """Elements of a partial row, as pitch_of in norm_rows_bwd.cuh."""
        return self.columns if self.aligned else (self.columns + 32 // self.itemsize) // 4 * 4


def of(p: Problem) -> Rows:
    s = p["s"]
    per = 16 // s.itemsize
    rows, columns = s.shape
    aligned = columns % per == 0 and all(_aligned(m) for name in TENSORS if (m := p.get(name)) is not None)
    period = 1 if aligned or rows == 1 else 16 // gcd(16, s.strides[0] * s.itemsize)
    tensors = 2 if p.get("ds") is None else 3
    return Rows(rows, columns, max(1, columns // per), aligned, period, tensors, p.get("weight") is not None, s.itemsize, p.device.sms, p.device.shared_per_block)


def _aligned(m: Meta) -> bool:
    return m.align >= 16 and all(m.strides[d] * m.itemsize % 16 == 0 for d in range(len(m.shape) - 1) if m.shape[d] > 1)


def _stages(r: Rows, threads: int, vectors: int) -> int | None:
    """Rows of the ring; None where the shared memory of a multiprocessor does not hold two."""
    blocks = THREADS // threads
    wanted = 1 + -(-RING // (blocks * threads * vectors * 16 * r.tensors))
    return next((n for n in range(min(wanted, 8), 1, -1) if _ring(r, threads, vectors, n) + RESERVED <= (r.shared + 1024) // blocks), None)


def _ring(r: Rows, threads: int, vectors: int, stages: int) -> int:
    """Bytes: the rows, the weight, the singles."""
    return threads * (16 * vectors * (stages * r.tensors + r.weight) + (0 if r.aligned else 4 * stages * r.tensors))


def _config(r: Rows, lanes: int, threads: int, vectors: int) -> dict[str, int] | None:
    stages = _stages(r, WARP_KERNEL_THREADS if lanes else threads, vectors)
    return {"lanes": lanes, "threads": threads, "vectors": vectors, "stages": stages} if stages else None


def _choices(r: Rows) -> list[dict[str, int]]:
    found = []
    for vectors in range(1, MOST + 1):
        lanes = max(r.least, 1 << max(0, -(-r.vectors // vectors) - 1).bit_length())
        if lanes <= 32 and (vectors == 1 or r.vectors > lanes):
            found.append(_config(r, lanes, WARP_KERNEL_THREADS, vectors))
        threads = max(64, 32 * -(-r.vectors // (32 * vectors)))
        if threads <= THREADS and r.vectors > 32:
            found.append(_config(r, 0, threads, vectors))
    return [c for c in found if c is not None]


def _padding(r: Rows, c: Mapping[str, int]) -> float:
    return (c["lanes"] or c["threads"]) * c["vectors"] / r.vectors - 1


def choose(p: Problem) -> dict[str, int]:
    r = of(p)
    found = _choices(r)
    warps = [c for c in found if c["lanes"]]
    if warps:  # a row fits a warp: no barrier
        return min(warps, key=lambda c: (round(_padding(r, c), 1), abs(c["vectors"] - 2)))
    few = r.count < 16 * r.sms  # rather one row at a time on a multiprocessor than twice the partial rows
    return min(found, key=lambda c: (_padding(r, c) > 0.15, (-c["threads"] if few else abs(c["vectors"] - 2)), _padding(r, c)))


def configs(p: Problem) -> list[dict[str, int]]:
    r = of(p)
    return [{**c, "stages": stages} for c in _choices(r) for stages in range(2, c["stages"] + 1)]


def refuses(p: Problem) -> str | None:
    r = of(p)
    if not r.count or not r.columns:
        return "there must be a row"
    if not _choices(r):
        return f"a row must fit one block's registers and shared memory; given {r.columns * r.itemsize} bytes"
    return None


def blocks(r: Rows, c: Mapping[str, int]) -> int:
    """Of the grid: no more than run at once, and no more than have a row, in whole periods."""
    threads = WARP_KERNEL_THREADS if c["lanes"] else c["threads"]
    teams = threads // c["lanes"] if c["lanes"] else 1
    resident = r.sms * (THREADS // threads)
    rows_each = -(-r.count // (resident * teams))  # of a team
    wanted = -(-r.count // (rows_each * teams))
    return max(1, min(resident, wanted + r.period - 1) // r.period) * r.period


def partial_rows(p: Problem, count: int) -> dict[str, Meta]:
    partial = Meta((count, of(p).pitch), "f32")
    return {name: partial for name, of_rows in (("pw", "dweight"), ("pb", "dbias")) if p.get(of_rows) is not None}


def scratch(p: Problem, config: Mapping[str, int]) -> dict[str, Meta]:
    return partial_rows(p, blocks(of(p), config))


def flags(r: Rows, centre: bool, made: Mapping[str, Meta]) -> str:
    """The last template arguments of the kernels: ALIGNED, CENTRE, SECOND, WEIGHT, BIAS."""
    return ", ".join(str(v).lower() for v in (r.aligned, centre, r.tensors == 3, r.weight, "pb" in made))


def arguments(p: Problem, config: Mapping[str, int], head: Head, made: Mapping[str, Meta]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What all kernels take first, and its types."""
    args, types = head.arguments(p, config)
    partial = {name: name if name in made else None for name in ("pw", "pb")}
    return {**args, "period": of(p).period, **partial}, (*types, "i32", "ptr", "ptr")


def launches(p: Problem, config: Mapping[str, int], head: Head, centre: bool) -> list[Launch]:
    r, made = of(p), scratch(p, config)
    lanes, threads, vectors, stages = (config[name] for name in ("lanes", "threads", "vectors", "stages"))
    block = WARP_KERNEL_THREADS if lanes else threads
    args, types = arguments(p, config, head, made)
    sums = 8 * r.pitch * (block // 32) if made and lanes else 0  # of the warps, at the end
    kernel = "norm_bwd_" + ("warp" if lanes else "block") + f"<{', '.join(str(v) for v in (DTYPES[p['s'].dtype].cuda, *([lanes] if lanes else []), vectors, stages))}, {flags(r, centre, made)}>"
    grid, shared = blocks(r, config), max(_ring(r, block, vectors, stages), sums)
    first = Launch(kernel, (grid,), args, types=types, block=(block,), shared=shared, chained=p.device.arch >= 90)
    return [first, *column_sums(p, grid, made)]


def column_sums(p: Problem, count: int, made: Mapping[str, Meta]) -> list[Launch]:
    """The launch that adds `count` partial rows up; none where no sum is wanted."""
    pw, pb = "pw" in made, "pb" in made
    if not (pw or pb):
        return []
    r = of(p)
    height = max(8, min(32, 1 << (-(-count // 4) - 1).bit_length()))
    deep = min(8, 1 << (-(-count // height) - 1).bit_length())
    args: dict[str, tuple[str, Any]] = {
        "count": ("i32", count), "C": ("i32", r.columns), "pw": ("ptr", "pw" if pw else None), "dweight": ("ptr", "dweight" if pw else None),
        "pb": ("ptr", "pb" if pb else None), "dbias": ("ptr", "dbias" if pb else None), "s": ("ptr", "s"), "ss": ("i64", p["s"].strides[0]),
        "period": ("i32", r.period),
    }  # fmt: skip
    return [
        Launch(
            f"norm_bwd_columns<{DTYPES[p['s'].dtype].cuda}, {height}, {deep}, {str(r.aligned).lower()}>", (-(-r.columns // 32), pw + pb),
            {n: v for n, (_, v) in args.items()}, types=tuple(t for t, _ in args.values()), block=(32, height), chained=p.device.arch >= 90,
        )
    ]  # fmt: skip
