"""Short rows that many are copied of to shared memory at once (contiguous_rows.cuh): which are taken, and which team processes a row: how
many lanes, and how many vectors of 16 bytes a lane."""

from __future__ import annotations

from math import gcd

from rooftop.core.spec import Meta, Problem


def vectors(size: int) -> int:
    """The most vectors that contain elements of a row of `size` bytes: one more if rows may start within a vector."""
    return -(-(size + 16 - gcd(16, size)) // 16)


def cost(size: int, lanes: int, elements: int, element: float, masks: int, rest: int) -> float:
    """Issue slots of a warp for a row of `size` bytes on so many lanes: `element` for each of the `elements` of a vector; `masks` for rows
    that start within a vector; two shuffles and two operations for each step of a reduction; and the rest. Bank conflicts: for each lane of
    a quarter-warp that accesses the same bank as another, a shared-memory load takes as long as 16 more instructions, half of which are
    hidden."""
    banks = [(team * size // 16 + lane) % 8 for team in range(-(-8 // lanes)) for lane in range(min(lanes, 8))]  # a quarter of a warp
    of_vector = elements * element + 8 * max(map(banks.count, banks))
    return lanes / 32 * (-(-vectors(size) // lanes) * of_vector + (masks if size % 16 else 0) + 4 * (lanes.bit_length() - 1) + rest)


def refuses(p: Problem, names: tuple[str, ...], most: int) -> str | None:
    """Why the rows are not supported, or None. `names`: the row tensors, all of one shape; `most`: the most elements of a row."""
    x = p[names[0]]
    rows, columns = x.shape[:2]
    if not x.numel:
        return "there is nothing to compute"
    if columns > most:
        return f"takes rows of up to {most} elements; given {columns}"
    if len(x.shape) == 3 and x.shape[2] != 1:
        return "the dimension must be the last"
    if rows >= 2**31 - 2**16:
        return f"rows are counted in 32 bits; given {rows}"
    if any(not _one_after_another(m) for name in names if (m := p.get(name)) is not None):
        return "rows must lie one after another, the first on 16 bytes"
    return None


def _one_after_another(m: Meta) -> bool:
    rows, columns = m.shape[:2]
    return m.align >= 16 and (columns == 1 or m.strides[1] == 1) and (rows == 1 or m.strides[0] == columns)
