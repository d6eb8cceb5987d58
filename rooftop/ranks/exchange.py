"""Launches of exchange_ranks__cuda_sm80.cu: one device that plays all ranks, or one rank of several GPUs."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, typed
from rooftop.formats.wire import WIRES, message_bytes, padded
from rooftop.ranks.rank_launches import BLOCKS, FLAGS, PATIENCE, THREADS, blocks, kernel

KINDS = {"reduce_scatter": 0, "all_gather": 1, "all_to_all": 2}

__all__ = ["BLOCKS", "FLAGS", "KINDS", "launch", "sizes"]


def sizes(count: int, ranks: int, wire: str, group: int) -> tuple[int, int, int]:
    """(elements of a message, bytes of each of the two halves of a room behind its flags, bytes of both)."""
    size = padded(count, group)
    half = ranks * message_bytes(WIRES[wire], group, size)
    return size, half, 2 * half


def launch(
    kind: str, count: int, ranks: int, dtype: str, wire: str, group: int, rotated: bool, stochastic: bool, most: int, *,
    rank: int | None = None, half: int = 0, room: int = 0, call: int = 1, seed: Any = "seed", patience: int = PATIENCE,
) -> Launch:
    """`count`: elements of a row. `rank`: for several GPUs, whose rooms are in `table`; None: this device plays all ranks. `half`, `room`:
    bytes of a half and of a room, if larger than `sizes` gives."""
    size, least, whole = sizes(count, ranks, wire, group)
    here = rank is None
    args: dict[str, tuple[str, Any]] = {
        "ranks": ("i32", ranks), "first": ("i32", rank or 0), "count": ("i64", count), "size": ("i64", size), "x": ("ptr", "x"),
        "out": ("ptr", "out"), "room": ("ptr", "room" if here else None), "table": ("ptr", None if here else "table"),
        "bytes": ("i64", room or FLAGS + whole), "half": ("i64", half or least), "epochs": ("ptr", "epochs"), "fault": ("ptr", "fault"),
        "call": ("u32", call), "seed": ("i32", seed), "patience": ("i64", patience),
    }
    name = f"{kernel('exchange', dtype, wire, group, rotated, stochastic, here)[:-1]}, {KINDS[kind]}>"
    rows = 1 if kind == "all_gather" else ranks
    grid = (min(BLOCKS, blocks(size * rows, most)), ranks if here else 1)
    return Launch(name, grid, **typed(args), block=(THREADS,), cooperative=True)
