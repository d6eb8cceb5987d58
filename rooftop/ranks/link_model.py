"""How long an all-reduce takes by each way on the GPUs of one host: launch, synchronisations, link and work. The number of shots follows
from it, and whether torch's own, unquantised, is faster; a measured table of sizes comes before it.

    shots:  MEET_US and, of codes, CODE_US a shot; then the longer of the bytes that leave over the link and the work on the elements
    plain:  a ring of 2 (W - 1) steps, STEP_US each, and 2 (W - 1) / W of the tensor over the link at RING"""

from __future__ import annotations

from functools import lru_cache

from rooftop.formats.wire import WIRES, message_bytes
from rooftop.ranks.rank_launches import LINK

# two and four H200, torch 2.11, NCCL 2.28.9: microseconds; bytes a microsecond
MEET_US, CODE_US, STEP_US, RING = 7.5, 2.5, 5.5, 300e3
# microseconds an element: of two shots; of one, and for each rank's message that it reads
TWO_BF16, TWO_CODES, ONE_BF16, ONE_CODES = 5.2e-6, 3.9e-6, (2.3e-6, 2.2e-6), (1.6e-6, 1.4e-6)


@lru_cache(4096)
def microseconds(way: str, count: int, width: int, ranks: int, wire: str, group: int = 128) -> float:
    """Of `count` elements of `width` bytes. `way`: "1", "2" (shots on the symmetric path) or "plain"."""
    tensor, message = count * width, message_bytes(WIRES[wire], group, count)
    others = (ranks - 1) / ranks
    if way == "plain":
        return 2 * (ranks - 1) * STEP_US + 2 * others * tensor / RING
    shots = int(way)
    sent = (ranks - 1) * message if shots == 1 else 2 * others * message
    coded = wire != "bf16"
    once, each = ONE_CODES if coded else ONE_BF16
    work = count * (once + each * ranks if shots == 1 else TWO_CODES if coded else TWO_BF16)
    return shots * (MEET_US + CODE_US * coded) + max(sent / LINK, work)


def shots(count: int, width: int, ranks: int, wire: str, group: int = 128) -> int:
    """1 or 2, the faster. Two ranks send the same bytes either way: there one shot is the faster until reading every code costs more than
    a second synchronisation."""
    one, two = (microseconds(way, count, width, ranks, wire, group) for way in ("1", "2"))
    return 1 if one <= two else 2


def plain(count: int, width: int, ranks: int, wire: str, shots: int, group: int = 128) -> str:
    """Why torch's own is faster than that many shots, or nothing."""
    ours, theirs = (microseconds(way, count, width, ranks, wire, group) for way in (str(shots), "plain"))
    return f"plain {theirs:.1f} us, {wire} {ours:.1f} us by the model of link and launch" if theirs < ours else ""
