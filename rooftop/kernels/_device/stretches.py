"""Which team takes a row of a stretch (stretch.cuh): how many lanes, and how many vectors of 16 bytes a lane."""

from __future__ import annotations

from math import gcd


def vectors(size: int) -> int:
    """Vectors that have elements of a row of `size` bytes, at most: one more where rows start within one."""
    return -(-(size + 16 - gcd(16, size)) // 16)


def cost(size: int, lanes: int, elements: int, element: float, masks: int, rest: int) -> float:
    """Issue slots of a warp for a row of `size` bytes on so many lanes: `element` for each of the `elements` of a vector; `masks` for rows that start within a
    vector; two shuffles and two operations a step of the reductions; and the rest. A load of shared memory takes as long as 16 instructions for each lane of a
    quarter of a warp that meets another in a bank; half of that hides."""
    banks = [(team * size // 16 + lane) % 8 for team in range(-(-8 // lanes)) for lane in range(min(lanes, 8))]  # a quarter of a warp
    of_vector = elements * element + 8 * max(map(banks.count, banks))
    return lanes / 32 * (-(-vectors(size) // lanes) * of_vector + (masks if size % 16 else 0) + 4 * (lanes.bit_length() - 1) + rest)
