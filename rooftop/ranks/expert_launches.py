"""Launches of expert_rows_ranks__cuda_sm80.cu: one device that plays all ranks, or one rank of several GPUs."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, typed
from rooftop.formats.wire import WIRES, message_bytes
from rooftop.ranks.rank_launches import BLOCKS, CHUNK, FLAGS, KINDS, PATIENCE, THREADS, blocks

EXPERTS = 1024  # of all ranks, at most: their counts lie in shared memory


def unable(ranks: int, tokens: int, columns: int, experts: int, capacity: int) -> str | None:
    """Why the kernel cannot take the rows, whose chunks it counts in 31 bits; or None."""
    if experts > EXPERTS:
        return f"{experts} experts; at most {EXPERTS}"
    return "2^31 chunks of rows, or more" if max(ranks * tokens, capacity) * -(-columns // CHUNK) >= 2**31 else None


def grid_of(tokens: int, columns: int, most: int) -> int:
    """Blocks of a rank."""
    return min(BLOCKS, blocks(tokens * -(-columns // CHUNK) * CHUNK, most))


def sizes(tokens: int, columns: int, experts: int, ranks: int, wire: str, group: int, blocks: int) -> tuple[int, int]:
    """(bytes of each of the two halves of a room behind its flags, bytes of both). A half has a slot for each rank: the counts, for each
    block, and a message for each row."""
    head = -(-4 * (experts // ranks) // 16) * 16
    half = ranks * (blocks * head + tokens * message_bytes(WIRES[wire], group, columns))
    return half, 2 * half


def launch(
    tokens: int, columns: int, experts: int, capacity: int, ranks: int, dtype: str, wire: str, group: int, most: int, *, back: bool,
    rank: int | None = None, half: int = 0, room: int = 0, call: int = 1, patience: int = PATIENCE,
) -> Launch:
    """`rank`: for several GPUs, whose rooms are in `table`; None: this device plays all ranks. `half`, `room`: of a larger room than
    `sizes` gives. `experts`: of all ranks. `back`: from the experts to the ranks that the rows came from."""
    here, grid = rank is None, grid_of(tokens, columns, most)
    least, whole = sizes(tokens, columns, experts, ranks, wire, group, grid)
    args: dict[str, tuple[str, Any]] = {
        "ranks": ("i32", ranks), "first": ("i32", rank or 0), "tokens": ("i32", tokens), "columns": ("i32", columns),
        "experts": ("i32", experts // ranks), "capacity": ("i32", capacity), "counts": ("ptr", "counts"),
        "received": ("ptr", "routes" if here and back else "received"),
        "ends": ("ptr", None if back else "ends"), "x": ("ptr", "x"), "out": ("ptr", "out"), "room": ("ptr", "room" if here else None),
        "table": ("ptr", None if here else "table"), "bytes": ("i64", room or FLAGS + whole), "half": ("i64", half or least),
        "epochs": ("ptr", "epochs"), "fault": ("ptr", "fault"), "call": ("u32", call), "patience": ("i64", patience),
    }
    name = f"expert_rows<{DTYPES[dtype].cuda}, {KINDS[wire]}, {group}, {str(back).lower()}, {str(here).lower()}>"
    return Launch(name, (grid, ranks if here else 1), **typed(args), block=(THREADS,), cooperative=True)
