"""Configs and launches of norms_bwd__cuda_sm80.cu, for any number of rows and columns; and which rows it supports.

A row is `vectors` vectors of 16 bytes of s, dy and dx each. A team processes it: a few lanes of a warp, or whole warps; a block has `teams`
teams. The kernels are persistent, with one block a multiprocessor, so that there are few partial rows of sums. The time of a block for its
rows, in cycles, is estimated as the longest of

    instructions   ELEMENT for each element, SUMS for each warp's sums; four schedulers issue one each
    latency        a warp's own instructions, and the exchange between warps
    memory         BYTES a cycle, if the ring buffer has enough bytes in flight

and the config with the lowest estimate is chosen. A vector takes 16 registers for its sums of dweight and dbias (8 if one of them is not
needed), of the 128 that a thread has in a block of 512."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem

THREADS = 512  # of a block, at most
# bytes in flight to a multiprocessor: 40 KiB saturate an H200's memory, but a row also stays in the ring while it is processed
RING = 96 * 1024
RESERVED = 2048  # bytes of shared memory of a block besides the ring: 1 KiB of the system, and the static part
BYTES = 19  # a cycle: a multiprocessor's share of an H200's 4.3 TB/s at 1.7 GHz
OVERLAP = 0.25  # the fraction of the shorter times that is not hidden behind the longest
ELEMENT, SUMS, EXCHANGE = 20, 120, 600  # instructions of an element, and of a warp's sums; cycles of a barrier and the sums after it
TENSORS = ("s", "dy", "dx", "ds", "weight")


@dataclass(frozen=True)
class Rows:
    """What the choice depends on."""

    count: int
    columns: int
    vectors: int  # of a row
    aligned: bool  # whether all rows are whole vectors on 16 bytes, so that there are no single elements
    period: int  # rows this far apart have the same offset from a 16-byte boundary
    tensors: int  # tensors that are read: 3 with ds
    weight: bool
    sums: int  # how many of dweight and dbias are computed; at least 1
    itemsize: int
    sms: int
    shared: int  # bytes of shared memory that a block may have

    @property
    def least(self) -> int:
        """Threads of a team: single elements are one a thread."""
        return 1 if self.aligned else 32 // self.itemsize

    @property
    def pitch(self) -> int:
        """Elements of a partial row, as pitch_of in _bwd_rows.cuh."""
        return self.columns if self.aligned else (self.columns + 32 // self.itemsize) // 4 * 4


@lru_cache(maxsize=16)
def of(p: Problem) -> Rows:
    s = p["s"]
    per = 16 // s.itemsize
    rows, columns = s.shape
    aligned = columns % per == 0 and all(_aligned(m) for name in TENSORS if (m := p.get(name)) is not None)
    period = 1 if aligned or rows == 1 else 16 // gcd(16, s.strides[0] * s.itemsize)
    tensors = 2 if p.get("ds") is None else 3
    sums = max(1, (p.get("dweight") is not None) + (p.get("dbias") is not None))
    weight, card = p.get("weight") is not None, p.device
    return Rows(rows, columns, max(1, columns // per), aligned, period, tensors, weight, sums, s.itemsize, card.sms, card.shared_per_block)


def _aligned(m: Meta) -> bool:
    return m.align >= 16 and all(m.strides[d] * m.itemsize % 16 == 0 for d in range(len(m.shape) - 1) if m.shape[d] > 1)


def _ring(r: Rows, threads: int, vectors: int, stages: int) -> int:
    """Bytes: the rows, the weight, the singles."""
    return threads * (16 * vectors * (stages * r.tensors + r.weight) + (0 if r.aligned else 4 * stages * r.tensors))


def _config(r: Rows, team: int, teams: int, vectors: int) -> dict[str, int] | None:
    """With the given number of rows in the ring buffer, or as many as fit; None if the minimum does not fit."""
    threads, fewest = team * teams, 2 if team <= 32 else 3
    wanted = fewest - 1 + -(-RING // (threads * vectors * 16 * r.tensors))
    for stages in range(min(wanted, 8), fewest - 1, -1):
        if _ring(r, threads, vectors, stages) + RESERVED <= r.shared + 1024:
            return {"team": team, "teams": teams, "vectors": vectors, "stages": stages}
    return None


def _candidates(r: Rows) -> Iterator[dict[str, int]]:
    most = (4 if r.sums == 2 else 6) if r.aligned else (3 if r.sums == 2 else 4)  # more spill registers
    for vectors in range(1, most + 1):
        lanes = max(r.least, min(8, r.vectors), -(-r.vectors // vectors))  # 8: a line of 128 bytes
        lanes = 1 << (lanes - 1).bit_length()
        warps = -(-r.vectors // (32 * vectors))
        for threads in (64, 128, 256, 512):
            if lanes <= 32 and (vectors == 1 or r.vectors > lanes) and (c := _config(r, lanes, threads // lanes, vectors)):
                yield c
        for teams in range(1, 17):
            # on sm_80; longer rows have no other config
            spills = vectors == 4 and r.itemsize == 4 and r.sums == 2 and r.vectors <= 3 * THREADS
            if r.vectors > 32 and warps > 1 and warps * teams <= 16 and not spills and (c := _config(r, 32 * warps, teams, vectors)):
                yield c


def _cycles(r: Rows, c: Mapping[str, int]) -> float:
    """The estimated cycles: those of the block with the most rows, plus those of its partial row."""
    team, teams, vectors = c["team"], c["teams"], c["vectors"]
    elements = vectors * 16 // r.itemsize
    per_warp = elements * ELEMENT + SUMS
    rounds = -(-r.count // (r.sms * teams))
    row = r.vectors * 16 * (r.tensors + 1)
    at_once = teams * row * min(1.0, (c["stages"] - 1) * teams * row * r.tensors / (r.tensors + 1) / 40960)
    issue = team * teams / 32 * per_warp / 4
    latency = 2 * per_warp + (EXCHANGE if team > 32 else 0)
    partial = blocks(r, c) * r.columns * 8 * r.sums / r.sms
    memory = teams * row / BYTES * (teams * row / at_once)
    return rounds * (max(issue, latency, memory) + OVERLAP * (issue + latency + memory)) + partial / BYTES


def choose(p: Problem, head: Head | None = None) -> dict[str, int]:
    return dict(_fastest(of(p)))


@lru_cache(maxsize=16)
def _fastest(r: Rows) -> dict[str, int]:
    return min(_candidates(r), key=lambda c: _cycles(r, c))


def configs(p: Problem, head: Head | None = None) -> list[dict[str, int]]:
    """The configs for tuning: the best sixteen by the estimate."""
    r = of(p)
    return sorted(_candidates(r), key=lambda c: _cycles(r, c))[:16]


def supports(p: Problem, head: Head) -> str | None:
    return without_a_pivot(p) or refuses(p)


def without_a_pivot(p: Problem) -> str | None:
    """16-bit statistics are computed in one pass about a pivot, an element of the row's first vector of 16 bytes. A row without a whole
    vector would have the
    pivot zero: if its elements are far from zero, cancellation would lose the digits of their spread."""
    s = p["s"]
    if p.op.startswith("layer_norm") and s.itemsize == 2 and s.shape[1] < 15 and not of(p).aligned:
        return f"a row off 16 bytes must have at least 15 elements of 16 bits, a whole vector wherever it starts; given {s.shape[1]}"
    return None


def refuses(p: Problem) -> str | None:
    r = of(p)
    if not r.count or not r.columns:
        return "there must be a row"
    if r.count >= 2**31 - 2**20:
        return f"rows are counted in 32 bits; given {r.count}"
    if next(_candidates(r), None) is None:
        return f"a row must fit one block's registers and shared memory; given {r.columns * r.itemsize} bytes"
    return None


def blocks(r: Rows, c: Mapping[str, int]) -> int:
    """Blocks of the grid: one a multiprocessor, no more than have a row, a multiple of the period."""
    rounds = -(-r.count // (r.sms * c["teams"]))
    wanted = -(-r.count // (rounds * c["teams"]))
    return max(1, min(r.sms, wanted + r.period - 1) // r.period) * r.period


def partial_rows(p: Problem, count: int) -> dict[str, Meta]:
    partial = Meta((count, of(p).pitch), "f32")
    return {name: partial for name, of_rows in (("pw", "dweight"), ("pb", "dbias")) if p.get(of_rows) is not None}


def scratch(p: Problem, config: Mapping[str, int], head: Head | None = None) -> dict[str, Meta]:
    return partial_rows(p, blocks(of(p), config))


def flags(p: Problem, made: Mapping[str, Meta]) -> str:
    """The last template arguments of the kernels: ALIGNED, CENTRE, SECOND, WEIGHT, BIAS."""
    r, centre = of(p), p.op.startswith("layer_norm")
    return ", ".join(str(v).lower() for v in (r.aligned, centre, r.tensors == 3, r.weight, "pb" in made))


def arguments(p: Problem, config: Mapping[str, int], head: Head, made: Mapping[str, Meta]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The first arguments of all kernels, and their types."""
    args, types = head.arguments(p, config)
    partial = {name: name if name in made else None for name in ("pw", "pb")}
    return {**args, "period": of(p).period, **partial}, (*types, "i32", "ptr", "ptr")


def launches(p: Problem, config: Mapping[str, int], head: Head) -> list[Launch]:
    r, made = of(p), scratch(p, config)
    team, teams, vectors, stages = (config[name] for name in ("team", "teams", "vectors", "stages"))
    args, types = arguments(p, config, head, made)
    element = DTYPES[p["s"].dtype].cuda
    if team <= 32:
        kernel = f"norm_bwd_warp<{element}, {team}, {vectors}, {stages}, {flags(p, made)}>"
    else:
        kernel = f"norm_bwd_block<{element}, {vectors}, {stages}, {flags(p, made)}>"
        args["teams"], types = teams, (*types, "i32")
    together = team * teams // 32 if team <= 32 else teams  # partial rows that a block adds in shared memory
    grid, shared = blocks(r, config), max(_ring(r, team * teams, vectors, stages), 8 * r.pitch * together if made and together > 1 else 0)
    first = Launch(kernel, (grid,), args, types=types, block=(team * teams,), shared=shared, chained=p.device.arch >= 90)
    return [first, *column_sums(p, grid, made)]


def column_sums(p: Problem, count: int, made: Mapping[str, Meta], together: bool = False) -> list[Launch]:
    """The launch that adds `count` partial rows; none if no sum is computed. `together`: they have C elements and no gaps, whatever the
    alignment."""
    pw, pb = "pw" in made, "pb" in made
    if not (pw or pb):
        return []
    r = of(p)
    height = max(8, min(32, 1 << (-(-count // 4) - 1).bit_length()))
    deep = min(8, 1 << (-(-count // height) - 1).bit_length())
    args: dict[str, tuple[str, Any]] = {
        "count": ("i32", count), "C": ("i32", r.columns), "pw": ("ptr", "pw" if pw else None),
        "dweight": ("ptr", "dweight" if pw else None), "pb": ("ptr", "pb" if pb else None), "dbias": ("ptr", "dbias" if pb else None),
        "s": ("ptr", "s"), "ss": ("i64", p["s"].strides[0]), "period": ("i32", r.period),
    }
    return [
        Launch(
            f"norm_bwd_columns<{DTYPES[p['s'].dtype].cuda}, {height}, {deep}, {str(r.aligned or together).lower()}>",
            (-(-r.columns // 32), pw + pb), {n: v for n, (_, v) in args.items()}, types=tuple(t for t, _ in args.values()),
            block=(32, height), chained=p.device.arch >= 90,
        )
    ]
