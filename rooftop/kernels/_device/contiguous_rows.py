"""Which team processes a row of a stretch (contiguous_rows.cuh): how many lanes, and how many vectors of 16 bytes a lane."""

from __future__ import annotations

from math import gcd


def vectors(size: int) -> int:
    """The most vectors that contain elements of a row of `size` bytes: one more if rows may start within a vector."""
    return -(-(size + 16 - gcd(16, size)) // 16)


def cost(size: int, lanes: int, elements: int, element: float, masks: int, rest: int) -> float:
    """Issue slots of a warp for a row of `size` bytes on so many lanes: `element` for each of the `elements` of a vector; `masks` for rows that start within a
    vector; two shuffles and two operations for each step of a reduction; and the rest. Bank conflicts: for each lane of a quarter-warp that accesses the same
    bank as another, a shared-memory load takes as long as 16 more instructions, half of which are hidden."""
    banks = [(team * size // 16 + lane) % 8 for team in range(-(-8 // lanes)) for lane in range(min(lanes, 8))]  # a quarter of a warp
    of_vector = elements * element + 8 * max(map(banks.count, banks))
    return lanes / 32 * (-(-vectors(size) // lanes) * of_vector + (masks if size % 16 else 0) + 4 * (lanes.bit_length() - 1) + rest)
