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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from math import gcd, inf
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance

THREADS = 512  # of a block, at most
# bytes in flight to a multiprocessor: 40 KiB saturate an H200's memory, but a row also stays in the ring while it is processed
RING = 96 * 1024
RESERVED = 2048  # bytes of shared memory of a block besides the ring: 1 KiB of the system, and the static part
BYTES = 19  # a cycle: a multiprocessor's share of an H200's 4.3 TB/s at 1.7 GHz
OVERLAP = 0.25  # the fraction of the shorter times that is not hidden behind the longest
LAUNCHES, ODD = 13100, 1.21  # cycles of both launches, and how many times the estimate odd rows took on an H200
ELEMENT, SUMS, EXCHANGE = 20, 120, 600  # instructions of an element, and of a warp's sums; cycles of a barrier and the sums after it


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
    pitch: int  # elements of a partial row, as pitch_of in _bwd_rows.cuh

    @cached_property
    def by_cycles(self) -> list[dict[str, int]]:
        """All configs, those with the lowest estimate first."""
        cycles = _cycles(self, found := _candidates(self))
        return [found[i] for i in sorted(range(len(found)), key=cycles.__getitem__)]


@lru_cache(maxsize=16)
def of(p: Problem) -> Rows:
    s, get = p["s"], p.get
    itemsize, (rows, columns), card = s.itemsize, s.shape, p.device
    per, aligned = 16 // itemsize, columns * itemsize % 16 == 0
    for m in (s, get("dy"), get("dx"), get("ds"), get("weight")) if aligned else ():
        if m is not None and (m.align < 16 or (len(m.shape) > 1 and m.shape[0] > 1 and m.strides[0] * itemsize % 16)):
            aligned = False
    period = 1 if aligned or rows == 1 else 16 // gcd(16, s.strides[0] * itemsize)
    return Rows(
        rows, columns, max(1, columns // per), aligned, period, 2 if get("ds") is None else 3, get("weight") is not None,
        max(1, (get("dweight") is not None) + (get("dbias") is not None)), itemsize, card.sms, card.shared_per_block,
        columns if aligned else (columns + 2 * per) // 4 * 4,
    )


def _candidates(r: Rows) -> list[dict[str, int]]:
    """For each division of the threads among rows: a ring of RING bytes, or of as many rows as fit."""
    most = (4 if r.sums == 2 else 6) if r.aligned else (3 if r.sums == 2 else 4)  # more spill registers
    least = 1 if r.aligned else 32 // r.itemsize  # threads of a team: single elements are one a thread
    divided: list[tuple[int, int, int]] = []  # team, teams, vectors
    for vectors in range(1, most + 1):
        lanes = 1 << (max(least, min(8, r.vectors), -(-r.vectors // vectors)) - 1).bit_length()  # 8: a line of 128 bytes
        warps = -(-r.vectors // (32 * vectors))
        if lanes <= 32 and (vectors == 1 or r.vectors > lanes):
            divided += (lanes, 64 // lanes, vectors), (lanes, 128 // lanes, vectors), (lanes, 256 // lanes, vectors), (lanes, 512 // lanes, vectors)
        # on sm_80; longer rows have no other config
        spills = vectors == 4 and r.itemsize == 4 and r.sums == 2 and r.vectors <= 3 * THREADS
        if r.vectors > 32 and warps > 1 and not spills:
            divided += zip(repeat(32 * warps), range(1, 16 // warps + 1), repeat(vectors))
    found = []
    for team, teams, vectors in divided:
        threads, fewest = team * teams, 2 if team <= 32 else 3
        vector = 16 * threads * vectors  # bytes of a tensor in a row of the ring, without its singles
        wanted = fewest - 1 + -(-RING // (vector * r.tensors))
        stages = min(wanted, 8, (r.shared + 1024 - RESERVED - vector * r.weight) // (r.tensors * (vector + (0 if r.aligned else 4 * threads))))
        if stages >= fewest:
            found.append({"team": team, "teams": teams, "vectors": vectors, "stages": stages})
    return found


def _cycles(r: Rows, found: Sequence[Mapping[str, int]]) -> list[float]:
    """The estimated cycles of these configs: those of the block with the most rows, plus those of its partial row."""
    cycles, known = [], {teams: blocks(r, teams) for teams in {c["teams"] for c in found}}
    for c in found:
        team, teams, vectors = c["team"], c["teams"], c["vectors"]
        per_warp = vectors * 16 // r.itemsize * ELEMENT + SUMS
        rounds = -(-r.count // (r.sms * teams))
        row = r.vectors * 16 * (r.tensors + 1)
        at_once = teams * row * min(1.0, (c["stages"] - 1) * teams * row * r.tensors / (r.tensors + 1) / 40960)
        issue = team * teams / 32 * per_warp / 4
        latency = 2 * per_warp + (EXCHANGE if team > 32 else 0)
        sums = known[teams] * r.columns * 8 * r.sums / r.sms
        memory = teams * row / BYTES * (teams * row / at_once)
        cycles.append(rounds * (max(issue, latency, memory) + OVERLAP * (issue + latency + memory)) + sums / BYTES)
    return cycles


def cycles(p: Problem) -> float:
    """The estimated cycles of a call, of odd rows: within 20 % of what they took on an H200."""
    r = of(p)
    return LAUNCHES + ODD * _cycles(r, r.by_cycles[:1])[0] if r.by_cycles else inf


def choose(p: Problem, head: Head | None = None) -> dict[str, int]:
    return dict(of(p).by_cycles[0])


def configs(p: Problem, head: Head | None = None) -> list[dict[str, int]]:
    """The configs for tuning: the best sixteen by the estimate."""
    return list(map(dict, of(p).by_cycles[:16]))


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
    if not r.by_cycles:
        return f"a row must fit one block's registers and shared memory; given {r.columns * r.itemsize} bytes"
    return None


def blocks(r: Rows, teams: int) -> int:
    """Blocks of the grid: one a multiprocessor, no more than have a row, a multiple of the period."""
    rounds = -(-r.count // (r.sms * teams))
    wanted = -(-r.count // (rounds * teams))
    return max(1, min(r.sms, wanted + r.period - 1) // r.period) * r.period


def partial_rows(p: Problem, count: int, pitch: int) -> dict[str, Meta]:
    rows = Meta((count, pitch), "f32")
    found = {} if p.get("dweight") is None else {"pw": rows}
    return found if p.get("dbias") is None else {**found, "pb": rows}


def scratch(p: Problem, config: Mapping[str, int], head: Head | None = None) -> dict[str, Meta]:
    r = of(p)
    return partial_rows(p, blocks(r, config["teams"]), r.pitch)


def flags(p: Problem, r: Rows, made: Mapping[str, Meta]) -> tuple[bool, ...]:
    """The last template arguments of the kernels: ALIGNED, CENTRE, SECOND, WEIGHT, BIAS."""
    return r.aligned, p.op.startswith("layer_norm"), r.tensors == 3, r.weight, "pb" in made


def arguments(
    p: Problem, r: Rows, config: Mapping[str, int], head: Head, made: Mapping[str, Meta]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The first arguments of all kernels, and their types."""
    args, types = head.arguments(p, config)
    more = {"period": r.period, "pw": "pw" if "pw" in made else None, "pb": "pb" if "pb" in made else None}
    return {**args, **more}, (*types, "i32", "ptr", "ptr")


def launches(p: Problem, config: Mapping[str, int], head: Head) -> list[Launch]:
    r = of(p)
    grid = blocks(r, config["teams"])
    made = partial_rows(p, grid, r.pitch)
    team, teams, vectors, stages = config["team"], config["teams"], config["vectors"], config["stages"]
    args, types = arguments(p, r, config, head, made)
    element = DTYPES[p["s"].dtype].cuda
    if team <= 32:
        kernel = instance("norm_bwd_warp", element, team, vectors, stages, *flags(p, r, made))
    else:
        kernel = instance("norm_bwd_block", element, vectors, stages, *flags(p, r, made))
        args["teams"], types = teams, (*types, "i32")
    together = team * teams // 32 if team <= 32 else teams  # partial rows that a block adds in shared memory
    # the rows with their singles, and the weight
    ring = team * teams * (16 * vectors * (stages * r.tensors + r.weight) + (0 if r.aligned else 4 * stages * r.tensors))
    shared = max(ring, 8 * r.pitch * together if made and together > 1 else 0)
    first = Launch(kernel, (grid,), args, types=types, block=(team * teams,), shared=shared, pdl=p.device.arch >= 90)
    return [first, *column_sums(p, r, grid, made)]


def column_sums(p: Problem, r: Rows, count: int, made: Mapping[str, Meta], together: bool = False) -> list[Launch]:
    """The launch that adds `count` partial rows; none if no sum is computed. `together`: they have C elements and no gaps, whatever the
    alignment."""
    pw, pb = "pw" in made, "pb" in made
    if not (pw or pb):
        return []
    height = max(8, min(32, 1 << (-(-count // 4) - 1).bit_length()))
    deep = min(8, 1 << (-(-count // height) - 1).bit_length())
    s = p["s"]
    args = {
        "count": count, "C": r.columns, "pw": "pw" if pw else None, "dweight": "dweight" if pw else None, "pb": "pb" if pb else None,
        "dbias": "dbias" if pb else None, "s": "s", "ss": s.strides[0], "period": r.period,
    }
    return [
        Launch(
            instance("norm_bwd_columns", DTYPES[s.dtype].cuda, height, deep, r.aligned or together), (-(-r.columns // 32), pw + pb), args,
            types=("i32", "i32", "ptr", "ptr", "ptr", "ptr", "ptr", "i64", "i32"), block=(32, height), pdl=p.device.arch >= 90,
        )
    ]
