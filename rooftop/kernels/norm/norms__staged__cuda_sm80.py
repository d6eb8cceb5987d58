"""Which rows norms__staged__cuda_sm80.cu supports, and how it divides short rows among blocks and lanes; contiguous_rows.py estimates the
cost of a row.

    lanes   of a row: the number that costs a row the fewest instructions
    pieces  vectors of 16 bytes of a row that a lane holds, as float32
    rows    of a stretch: the two stretches of all resident blocks of a multiprocessor are 96 KiB, half of them in flight; a whole number of
            rows for each team, so that all blocks have equally many stretches
    grid    the resident blocks: each shifts weight and bias once"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, inf
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem, instance
from rooftop.kernels._device import contiguous_rows

ROWS = ("x", "y")
BLOCK = 256  # threads
PIECES = 8  # most vectors a lane
RESIDENT = 96 * 1024  # bytes of the stretches of all blocks on a multiprocessor, half of which are in flight
SYSTEM = 1024  # bytes of shared memory that a block takes besides its own
FEWER = {3: 1, 2: 1.3, 1: 2}  # the cost of two blocks, or one, instead of three: 16 warps hide less of each other's latencies than 24


def row_bytes(p: Problem) -> int:
    return int(p["x"].shape[1] * p["x"].itemsize)


def _whole(p: Problem) -> bool:
    return row_bytes(p) % 16 == 0


def _shared(p: Problem, rows: int, lanes: int, pieces: int, tabled: bool) -> int:
    """Bytes of a block: two stretches; weight and bias; and with `tabled` both shifted to each place within a vector where a row may start."""
    size, given = row_bytes(p), sum(p.get(name) is not None for name in ("weight", "bias"))
    return 2 * rows * size + 16 * given * (-(-size // 16) + 2 + (lanes * pieces * (16 // gcd(16, size)) if tabled else 0))


def _blocks(p: Problem, c: Mapping[str, Any], tabled: bool) -> int:
    """Blocks on a multiprocessor, by registers (the launch bounds of norms__staged__cuda_sm80.cu) and by shared memory."""
    most = 3 if c["pieces"] <= (5 if p["x"].itemsize == 2 else 7 if p.op.startswith("layer_norm") else 8) else 2
    shared = _shared(p, c["rows"], c["lanes"], c["pieces"], tabled)
    return min(most, (p.device.shared_per_block + SYSTEM) // (shared + SYSTEM))


def _tabled(p: Problem, c: Mapping[str, Any]) -> bool:
    """Whether weight and bias are shifted once a block and not once a row, which takes five times the cycles of the shared memory: where two
    blocks hold the table."""
    return not _whole(p) and _blocks(p, c, True) >= min(2, _blocks(p, c, False))


def _config(p: Problem, lanes: int, resident: int = RESIDENT) -> dict[str, Any] | None:
    """None if a lane cannot hold its part of a row, or shared memory two stretches. All blocks have equally many stretches."""
    x = p["x"]
    teams, size = BLOCK // lanes, x.shape[1] * x.itemsize  # 8 teams at least, so that they take whole vectors
    found = {"lanes": lanes, "pieces": -(-contiguous_rows.vectors(size) // lanes), "rows": teams}
    if found["pieces"] > PIECES or not _blocks(p, found, False):
        return None
    blocks = _blocks(p, found, _tabled(p, found))
    most, places = max(1, round(resident / (2 * blocks * teams * size))), blocks * p.device.sms * teams
    while most > 1 and _blocks(p, {**found, "rows": teams * most}, _tabled(p, found)) < blocks:
        most -= 1
    each = max(1, -(-x.shape[0] // (places * most)))
    return {**found, "rows": teams * -(-x.shape[0] // (places * each))}


def supports(p: Problem, head: Head) -> str | None:
    width = p["x"].itemsize
    if found := contiguous_rows.refuses(p, ROWS, (32 * PIECES - 1) * 16 // width + 1):  # of which the first may end a vector
        return found
    if any(m.align < 16 for name in ("weight", "bias") if (m := p.get(name)) is not None):
        return "weight and bias must start on 16 bytes"
    return None


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The number of lanes with the lowest cost. Instructions as counted in the machine code."""
    x = p["x"]
    width, size = x.itemsize, x.shape[1] * x.itemsize
    element = 9 if p.op.startswith("layer_norm") else 6 if width == 2 else 5
    best, least = {}, inf
    for lanes in (1, 2, 4, 8, 16, 32):
        if c := _config(p, lanes):
            issued = contiguous_rows.cost(size, lanes, 16 // width, element, masks=85, rest=75)
            if (cost := issued * FEWER[_blocks(p, c, _tabled(p, c))]) < least:
                best, least = c, cost
    return best


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    resident = (48 * 1024, 64 * 1024, RESIDENT, 128 * 1024)
    found = [c for lanes in (1, 2, 4, 8, 16, 32) for n in resident if (c := _config(p, lanes, n))]
    return [c for k, c in enumerate(found) if c not in found[:k]]


def grid(p: Problem, config: Mapping[str, int]) -> int:
    """Blocks: those that are resident at once, where there are stretches for all."""
    return min(-(-p["x"].shape[0] // config["rows"]), _blocks(p, config, _tabled(p, config)) * p.device.sms)


def launches(p: Problem, config: Mapping[str, int], head: Head) -> list[Launch]:
    size, rows, lanes, pieces = row_bytes(p), config["rows"], config["lanes"], config["pieces"]
    args, types = head.arguments(p, config)
    weight, bias = (p.get(name) is not None for name in ("weight", "bias"))
    whole, tabled = _whole(p), _tabled(p, config)
    tails = 2 if not whole and (contiguous_rows.vectors(size) - 1) % lanes == 0 else 1
    kernel = instance(
        "norm_staged", DTYPES[p["x"].dtype].cuda, lanes, pieces, tails, tabled, whole, whole and lanes * pieces * 16 == size,
        p.op == "layer_norm", weight, bias,
    )
    return [Launch(kernel, (grid(p, config),), args, types=types, block=(BLOCK,), shared=_shared(p, rows, lanes, pieces, tabled), pdl=p.device.pdl)]
