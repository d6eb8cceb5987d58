"""Which rows norms__staged__cuda_sm80.cu supports, and how it divides short rows among blocks and lanes; contiguous_rows.py estimates the
cost of a row.

    lanes   of a row: the number that costs a row the fewest instructions
    pieces  vectors of 16 bytes of a row that a lane holds, as float32
    rows    of a block: a multiprocessor has 96 KiB in flight, in computation or in store, divided among the blocks that registers allow; a
            whole number of rows for each team; and a few blocks a multiprocessor"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, inf
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem, instance
from rooftop.kernels._device import contiguous_rows

ROWS = ("x", "y")
BLOCK = 256  # threads
PIECES = {2: 8, 4: 16}  # most vectors a lane, by bytes of an element
RESIDENT = 96 * 1024  # bytes of rows of all blocks on a multiprocessor
MOST = 64 * 1024  # bytes of rows of a block
TWO = 1.3  # the cost of two blocks instead of three: 16 warps hide less of each other's latencies than 24


def row_bytes(p: Problem) -> int:
    return int(p["x"].shape[1] * p["x"].itemsize)


def _blocks(p: Problem, width: int, pieces: int) -> int:
    """Blocks on a multiprocessor, by registers: the launch bounds of norms__staged__cuda_sm80.cu."""
    return 3 if pieces <= (5 if width == 2 else 7 if p.op.startswith("layer_norm") else 8) else 2


def _config(p: Problem, lanes: int, resident: int = RESIDENT) -> dict[str, Any] | None:
    """None if a lane cannot hold its part of a row, or the range of rows is too long."""
    x = p["x"]
    teams, size = BLOCK // lanes, x.shape[1] * x.itemsize  # 8 teams at least, so that they take whole vectors
    pieces = -(-contiguous_rows.vectors(size) // lanes)
    if pieces > PIECES[x.itemsize]:
        return None
    blocks = _blocks(p, x.itemsize, pieces)
    rounds = max(1, min(round(resident / (blocks * teams * size)), -(-x.shape[0] // (blocks * p.device.sms * teams))))
    return {"lanes": lanes, "pieces": pieces, "rows": teams * rounds} if teams * rounds * size <= MOST else None


def supports(p: Problem, head: Head) -> str | None:
    width = p["x"].itemsize
    if found := contiguous_rows.refuses(p, ROWS, 32 * PIECES[width] * 16 // width - 16 // width):
        return found
    if any(m.align < 16 for name in ("weight", "bias") if (m := p.get(name)) is not None):
        return "weight and bias must start on 16 bytes"
    return None


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The number of lanes with the lowest cost whose range of rows is not too long. Instructions as counted in the machine code."""
    x = p["x"]
    width, size = x.itemsize, x.shape[1] * x.itemsize
    element = 9 if p.op.startswith("layer_norm") else 6 if width == 2 else 5
    best, least = {}, inf
    for lanes in (1, 2, 4, 8, 16, 32):
        if c := _config(p, lanes):
            issued = contiguous_rows.cost(size, lanes, 16 // width, element, masks=85, rest=75)
            if (cost := issued * (1 if _blocks(p, width, c["pieces"]) == 3 else TWO)) < least:
                best, least = c, cost
    return best


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    resident = (48 * 1024, 64 * 1024, RESIDENT, 128 * 1024)
    found = [c for lanes in (1, 2, 4, 8, 16, 32) for n in resident if (c := _config(p, lanes, n))]
    return [c for k, c in enumerate(found) if c not in found[:k]]


def launches(p: Problem, config: Mapping[str, int], head: Head) -> list[Launch]:
    """In shared memory: the rows; weight and bias; and if rows start within a vector, and there is room, both shifted to each place where a
    row may start (`tabled`)."""
    size, rows, lanes, pieces = row_bytes(p), config["rows"], config["lanes"], config["pieces"]
    args, types = head.arguments(p, config)
    weight, bias = (p.get(name) is not None for name in ("weight", "bias"))
    whole, vectors, kept = size % 16 == 0, contiguous_rows.vectors(size), 16 * (weight + bias)
    table = kept * lanes * pieces * (16 // gcd(16, size))
    tabled = not whole and rows * size + table <= 65536
    tails = 2 if not whole and (vectors - 1) % lanes == 0 else 1
    kernel = instance(
        "norm_staged", DTYPES[p["x"].dtype].cuda, lanes, pieces, tails, tabled, whole, whole and lanes * pieces * 16 == size,
        p.op == "layer_norm", weight, bias,
    )
    shared = rows * size + kept * (-(-size // 16) + 2) + (table if tabled else 0)
    return [Launch(kernel, (-(-p["x"].shape[0] // rows),), args, types=types, block=(BLOCK,), shared=shared, pdl=p.device.pdl)]
