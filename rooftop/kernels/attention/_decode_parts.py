"""The time of decode by the number of parts of the keys. Unit of the result: what a multiprocessor reads of a tile while all read.

The constants are fitted to 180 times at 23 sizes on an H200: 4 % root mean square off, and the choice 1 % slower than the best on average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

UNEVEN = 0.065  # of a block's time, by which the last ends late where several are on a multiprocessor
ADDED = 2.05  # the time for a byte of parts, of that for a byte of keys
LAUNCH, START = 66 * 1024, 82 * 1024  # bytes that a multiprocessor reads during the second launch, and while a block starts and ends


@dataclass(frozen=True)
class Rates:
    """What a multiprocessor reads with one block, and with several at most, of its share while all read."""

    alone: float
    several: float


SIXTEEN_BITS, EIGHT_BITS = Rates(1.36, float("inf")), Rates(1.08, float("inf"))
TWO_HEADS = Rates(0.91, 1.22)  # of 8 bits: codes are converted, and half of the products are of no use


def times(tiles: float, sequences: int, tile: int, written: int, resident: int, sms: int, rates: Rates) -> Callable[[int], float]:
    """By the number of parts: the time for `tiles` (of `tile` bytes) of each of `sequences`, with `written` bytes for each part, which are read again.

    Full waves of blocks read as fast as memory allows, unless they are so short that they mostly start and end. The last wave takes as long as
    its blocks alone need, or several on one multiprocessor. Parts cost a launch and their bytes."""
    start, launch, added = START / tile, LAUNCH / tile, ADDED * written / (sms * tile)

    def time(parts: int) -> float:
        blocks, each = sequences * parts, -(-tiles // parts)
        waves, last = divmod(blocks, resident * sms)
        read = tiles / parts / sms  # of a block, shared out to all multiprocessors
        found = max((blocks - last) * read, waves * (start + each / rates.alone))
        if last:
            found += start + max(last * read, each / rates.alone, -(-last // sms) * each / rates.several)
        if blocks > sms:
            found += UNEVEN * each * min(resident, blocks / sms)
        return found + (launch + added * parts if parts > 1 else 0)

    return time
