"""How long an all-reduce takes by each way on the GPUs of one host: launch, synchronisations, link and memory. The number of shots follows from
it, and whether torch's own, unquantised, is faster; a measured table of sizes comes before it.

    shots:  MEET_US and, of codes, CODE_US a shot; then the longer of the bytes that leave over the link and those that cross the memory
    plain:  a ring of 2 (W - 1) steps, STEP_US each, and 2 (W - 1) / W of the tensor over the link at RING"""

from __future__ import annotations

from functools import lru_cache

from rooftop.formats.wire import WIRES, message_bytes
from rooftop.ranks.rank_launches import LINK

# two and four H200, torch 2.11, NCCL 2.28.9: microseconds, bytes a microsecond
MEET_US, CODE_US, MEMORY = 7.5, 2.5, 3.5e6
STEP_US, RING = 5.5, 300e3


@lru_cache(4096)
def microseconds(way: str, count: int, width: int, ranks: int, wire: str, group: int = 128) -> float:
    """Of `count` elements of `width` bytes. `way`: "1", "2" (shots on the symmetric path) or "plain"."""
    tensor, message = count * width, message_bytes(WIRES[wire], group, count)
    others = (ranks - 1) / ranks
    if way == "plain":
        return 2 * (ranks - 1) * STEP_US + 2 * others * tensor / RING
    shots = int(way)
    sent = (ranks - 1) * message if shots == 1 else 2 * others * message
    # x and the result once; codes written and read, in two shots of the others alone
    crossing = 2 * tensor + 2 * (ranks * message if shots == 1 else 2 * others * message)
    fixed = shots * (MEET_US + (CODE_US if wire != "bf16" else 0))
    return fixed + max(sent / LINK, crossing / MEMORY)


def shots(count: int, width: int, ranks: int, wire: str, group: int = 128) -> int:
    """1 or 2, the faster. Two ranks send the same bytes either way, so one shot is the faster unless reading every code costs more."""
    one, two = (microseconds(way, count, width, ranks, wire, group) for way in ("1", "2"))
    return 1 if one <= two else 2


def plain(count: int, width: int, ranks: int, wire: str, shots: int, group: int = 128) -> str:
    """Why torch's own is faster than that many shots, or nothing."""
    ours, theirs = (microseconds(way, count, width, ranks, wire, group) for way in (str(shots), "plain"))
    return f"plain {theirs:.1f} us, {wire} {ours:.1f} us by the model of link and launch" if theirs < ours else ""
