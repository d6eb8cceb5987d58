"""Launches of the kernels that synchronise ranks: one device that plays all ranks, or one rank of several GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance, typed
from rooftop.formats.wire import WIRES, message_bytes, stripe

# CHUNK: elements that a warp processes at a time; BLOCKS, RANKS: the most for which there are flags
THREADS, CHUNK, BLOCKS, RANKS = 512, 1024, 256, 16
WARPS = 4  # warps of a block that have a chunk before another block is used: small tensors use several blocks
FLAGS = BLOCKS * RANKS * 8  # bytes
PATIENCE = 20_000_000_000  # nanoseconds
KINDS = {"bf16": 0, "fp8": 1, "int8": 2, "int4": 3}
LINK, FLAG_US = 357e3, 12.0  # bytes a microsecond that a GPU sends to its peers; microseconds of a slab's flag that nothing hides


def blocks(count: int, most: int) -> int:
    """Blocks: so many that WARPS of each have a chunk, at most `most`."""
    return max(1, min(most, -(-count // (CHUNK * WARPS))))


def kernel(name: str, dtype: str, wire: str, group: int, rotated: bool, stochastic: bool, here: bool) -> str:
    said = (DTYPES[dtype].cuda, KINDS[wire], group, rotated, stochastic, here)
    return f"{name}<{', '.join(str(s).lower() if isinstance(s, bool) else str(s) for s in said)}>"


@dataclass(frozen=True)
class Geometry:
    """How an all-reduce is shared out. A room has, behind its flags, `parts` parts: of one shot four quarters, in turn for a slab; of two
    the halves for codes and for sums. A part has a message of `held` elements from each rank."""

    size: int  # elements of the tensor (one shot) or of a stripe, in whole groups
    blocks: int
    threads: int
    each: int  # chunks of a warp in a slab
    held: int
    part: int  # bytes
    whole: int  # bytes of all parts


def geometry(shots: int, count: int, ranks: int, wire: str, group: int, most: int, each: int = 0, threads: int = 0) -> Geometry:
    """`most`: blocks. `threads` 0: as many warps as a block has chunks, at most THREADS. `each` 0: by the pipeline's cost. Its first slab
    leaves the link idle (of two shots the last one too), each slab costs a flag: of R chunks a warp, in R / n slabs, that is least with n =
    sqrt(R FLAG_US / time of a chunk on the link)."""
    size = stripe(count, ranks, group) * (ranks if shots == 1 else 1)
    grid = min(BLOCKS, blocks(size, most))
    threads = threads or min(THREADS, 32 * -(-size // (CHUNK * grid)))
    round = grid * (threads // 32)  # chunks at a time
    if not each:
        sent = message_bytes(WIRES[wire], group, CHUNK) * round * (ranks - 1) * shots
        each = max(1, int(sqrt(size / (CHUNK * round) * FLAG_US * LINK / max(sent, 1)) + 0.5))
    held = min(size, each * round * CHUNK) if shots == 1 else size
    part = ranks * message_bytes(WIRES[wire], group, held)
    return Geometry(size, grid, threads, each, held, part, part * (4 if shots == 1 else 2))


def launch(
    shots: int, count: int, ranks: int, dtype: str, wire: str, group: int, rotated: bool, stochastic: bool, most: int, *,
    rank: int | None = None, room: int = 0, call: int = 1, seed: Any = "seed", patience: int = PATIENCE, each: int = 0,
    threads: int = 0,
) -> Launch:
    """`rank`: for several GPUs, whose rooms are in `table`; None: this device plays all ranks. `room`: bytes behind the flags, if more than
    `geometry` has: where its parts begin follows from it alone."""
    g, here = geometry(shots, count, ranks, wire, group, most, each, threads), rank is None
    part = room // (4 if shots == 1 else 2) or g.part
    args: dict[str, tuple[str, Any]] = {
        "ranks": ("i32", ranks), "first": ("i32", rank or 0), "count": ("i64", count), "size": ("i64", g.size), "each": ("i32", g.each),
        "x": ("ptr", "x"), "out": ("ptr", "out"), "room": ("ptr", "room" if here else None), "table": ("ptr", None if here else "table"),
        "bytes": ("i64", FLAGS + (room or g.whole)), "part": ("i64", part if shots == 1 else FLAGS + part),
        "epochs": ("ptr", "epochs"), "fault": ("ptr", "fault"), "call": ("u32", call), "seed": ("i32", seed), "patience": ("i64", patience),
    }
    name = kernel("one_shot" if shots == 1 else "two_shot", dtype, wire, group, rotated, stochastic, here)
    return Launch(name, (g.blocks, ranks if here else 1), **typed(args), block=(g.threads,), cooperative=True)


@dataclass(frozen=True)
class How:
    """The wire format as template arguments."""

    wire: str
    group: int
    rotated: bool
    stochastic: bool


def _launch(name: str, said: tuple[Any, ...], grid: tuple[int, ...], args: dict[str, tuple[str, Any]]) -> Launch:
    return Launch(instance(name, *said), grid, **typed(args), block=(THREADS,))


def encode_rows(
    how: How, dtype: str, rows: int, count: int, most: int, size: int, blocks_most: int, *, x: str, messages: str, tensors: int = 1,
    start: int = 0, seed: Any = "seed",
) -> Launch:
    """Encodes tensors of `most` elements, in `rows` rows of `count`, as messages of `size` elements each."""
    args = {
        "count": ("i64", count), "most": ("i64", most), "size": ("i64", size), "x": ("ptr", x), "messages": ("ptr", messages),
        "seed": ("i32", seed)
    }
    said = (DTYPES[dtype].cuda, KINDS[how.wire], how.group, how.rotated, how.stochastic)
    return _launch("encode_rows", said, (blocks(size, blocks_most), rows, tensors), {**args, "start": ("i64", start)})


def add_messages(
    how: How, ranks: int, size: int, stride: int, blocks_most: int, *, messages: str, sums: str, rows: int = 1, start: int = 0,
    seed: Any = "seed"
) -> Launch:
    """For each of `rows` messages: adds the messages of `ranks` ranks, `stride` bytes apart, and encodes the sum as a message."""
    args: dict[str, tuple[str, Any]] = {
        "ranks": ("i32", ranks), "size": ("i64", size), "stride": ("i64", stride), "messages": ("ptr", messages), "sums": ("ptr", sums),
        "seed": ("i32", seed),
    }
    return _launch(
        "add_messages", (KINDS[how.wire], how.group, how.stochastic), (blocks(size, blocks_most), rows), {**args, "start": ("i64", start)}
    )


def decode_rows(
    how: How, dtype: str, ranks: int, rows: int, count: int, most: int, size: int, stride: int, blocks_most: int, *, messages: str,
    out: str, tensors: int = 1
) -> Launch:
    """Decodes tensors of `most` elements, in `rows` rows of `count`: each row is the sum of `ranks` messages of `size` elements, `stride`
    bytes apart."""
    args = {
        "ranks": ("i32", ranks), "count": ("i64", count), "most": ("i64", most), "size": ("i64", size), "stride": ("i64", stride),
        "messages": ("ptr", messages), "out": ("ptr", out),
    }
    return _launch(
        "decode_rows", (DTYPES[dtype].cuda, KINDS[how.wire], how.group, how.rotated), (blocks(size, blocks_most), rows, tensors), args
    )


def problem_supported(p: Problem, shots: int) -> str | None:
    ranks, count = p["x"].shape
    if p.option("shots") != shots:
        return f"{shots} shot{'s' * (shots - 1)} alone"
    if count == 0 or ranks == 1:
        return "nothing to send"
    return None


def problem_launches(p: Problem, shots: int) -> list[Launch]:
    ranks, count = p["x"].shape
    wire, group = str(p.option("wire")), int(p.option("group"))
    flags = bool(p.option("hadamard")), bool(p.option("stochastic"))
    return [launch(shots, count, ranks, p["x"].dtype, wire, group, *flags, max(1, p.device.sms // ranks))]


def problem_scratch(p: Problem, shots: int) -> dict[str, Meta]:
    ranks, count = p["x"].shape
    wire, group = str(p.option("wire")), int(p.option("group"))
    whole = geometry(shots, count, ranks, wire, group, max(1, p.device.sms // ranks)).whole
    return {"room": Meta((ranks, FLAGS + whole), "u8"), "epochs": Meta((ranks, BLOCKS), "u32"), "fault": Meta((4,), "i32")}


def public(options: Mapping[str, Any]) -> dict[str, Any]:
    """A case's options as the functions of rooftop.comm have them."""
    names = {"wire": "wire", "group": "group_size", "hadamard": "hadamard", "stochastic": "stochastic", "seed": "seed", "shots": "shots"}
    return {names[n]: v for n, v in options.items() if n in names}
