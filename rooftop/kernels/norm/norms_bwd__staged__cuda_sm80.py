"""Which rows norms_bwd__staged__cuda_sm80.cu supports, and how it divides short rows among blocks and lanes; contiguous_rows.py estimates
the cost of a row.

    lanes   of a row: the number that costs a row the fewest instructions
    pieces  vectors of 16 bytes of a row that a lane has; each takes 16 registers for its sums of dweight and dbias, 8 with dweight alone
    stages  tiles of s and dy in shared memory
    rows    of a tile: a whole number for each team. All blocks of a multiprocessor have at least FLYING bytes in flight, if they fit, and
            the last round of tiles leaves few blocks idle"""

from __future__ import annotations

from collections.abc import Mapping

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels._device import contiguous_rows
from rooftop.kernels.norm import norms_bwd__cuda_sm80 as bwd_rows

ROWS = ("s", "dy", "dx")
BLOCK = 256  # threads
FLYING = 72 * 1024  # bytes that a multiprocessor has in flight while it processes a tile
ONE = 1.25  # the cost of one block of 8 warps on a multiprocessor instead of two: they hide less of each other's latencies
# of an element and a row, by bytes and CENTRE: counted
INSTRUCTIONS = {(2, True): (19, 100), (2, False): (17, 30), (4, True): (16, 130), (4, False): (8, 20)}
MASKS = 80  # instructions for rows that start within a vector
# of the estimate for odd rows: cycles of both launches, the first tile and the last; parts of the memory's time, of the instructions' and of
# the partial rows' (which are added in shared memory, written and read), fitted to timings on an H200
LAUNCHES, MEMORY, ISSUED, PARTIAL = 15000, 1.01, 0.51, 15.7
MANY = 32 << 20  # bytes of s from which the kernel is preferred for aligned rows
# vectors of an aligned float32 row that a warp cannot hold with all sums and that leave most of a second warp's lanes idle
PADDED = 129, 138


def _size(p: Problem) -> int:
    """Bytes of a row."""
    return int(p["s"].shape[1] * p["s"].itemsize)


def most_pieces(p: Problem) -> int:
    """More spill registers."""
    return 8


def resident(p: Problem, pieces: int) -> int:
    """Blocks on a multiprocessor, by registers."""
    return 2 if pieces <= (3 if p.get("dbias") is not None else 4) else 1


def _shared(p: Problem, c: Mapping[str, int]) -> int:
    """Bytes of shared memory of a block: the tiles, the weight, and in their place the sums of all teams."""
    tile, weight = c["rows"] * _size(p), p.get("weight") is not None
    tiles = tile * (2 * c["stages"] + (0 if _size(p) % 16 == 0 else 1))
    sums = sum(p.get(name) is not None for name in ("dweight", "dbias"))
    return max(tiles + 16 * BLOCK * c["pieces"] * weight, 4 * sums * BLOCK // c["lanes"] * p["s"].shape[1])


def _fits(p: Problem, c: Mapping[str, int]) -> bool:
    return c["pieces"] <= most_pieces(p) and resident(p, c["pieces"]) * (_shared(p, c) + 1024) <= p.device.shared_per_block + 1024


def _flying(p: Problem, c: Mapping[str, int]) -> int:
    return resident(p, c["pieces"]) * (c["stages"] - 1) * 2 * c["rows"] * _size(p)


def blocks(p: Problem, c: Mapping[str, int]) -> int:
    """All that are resident at once, but no more than there are tiles."""
    return int(min(p.device.sms * resident(p, c["pieces"]), -(-p["s"].shape[0] // c["rows"])))


def _candidates(p: Problem, lanes: int) -> list[dict[str, int]]:
    teams, pieces = BLOCK // lanes, -(-contiguous_rows.vectors(_size(p)) // lanes)
    found = (
        {"lanes": lanes, "pieces": pieces, "stages": stages, "rows": teams * k} for stages in (2, 3, 4)
        for k in (*range(1, 9), 12, 16, 24, 32, 64)
    )
    return [c for c in found if _fits(p, c)]


def _idle(p: Problem, c: Mapping[str, int]) -> float:
    """How much longer the busiest block works than the mean, and how many of the bytes in flight are missing; many short tiles cost
    barriers."""
    tiles, count = -(-p["s"].shape[0] // c["rows"]), blocks(p, c)
    rounds = c["rows"] * c["lanes"] // BLOCK
    return -(-tiles // count) * count / tiles * max(1.0, FLYING / _flying(p, c)) * (1 + 0.1 / rounds) + 0.01 * c["stages"]


def supports(p: Problem, head: Head | None = None) -> str | None:
    width = p["s"].itemsize
    if found := contiguous_rows.refuses(p, ROWS, 32 * most_pieces(p) * 16 // width - 16 // width):
        return found
    if not any(_candidates(p, lanes) for lanes in (1, 2, 4, 8, 16, 32)):
        return "two tiles of s and dy must fit shared memory"
    return None


def choose(p: Problem, head: Head | None = None) -> dict[str, int]:
    best = [min(found, key=lambda c: _idle(p, c)) for lanes in (1, 2, 4, 8, 16, 32) if (found := _candidates(p, lanes))]
    return min(best, key=lambda c: _issued(p, c) * _idle(p, c))


def _issued(p: Problem, c: Mapping[str, int]) -> float:
    """Issue slots of a row."""
    width = p["s"].itemsize
    element, rest = INSTRUCTIONS[width, p.op.startswith("layer_norm")]
    slots = contiguous_rows.cost(_size(p), c["lanes"], 16 // width, element, MASKS, rest)
    return slots * (1 if resident(p, c["pieces"]) == 2 else ONE)


def cycles(p: Problem) -> float:
    """The estimated cycles of a call, of odd rows: within 10 % of what they took on an H200."""
    c, (rows, columns), sms = choose(p), p["s"].shape, p.device.sms
    tiles, count = -(-rows // c["rows"]), blocks(p, c)
    sums = sum(p.get(name) is not None for name in ("dweight", "dbias"))
    moved = MEMORY * 3 * rows * _size(p) / bwd_rows.BYTES + ISSUED * rows * _issued(p, c) / 4  # four schedulers
    return LAUNCHES + (-(-tiles // count) * count / tiles * moved + PARTIAL * count * columns * 4 * sums / bwd_rows.BYTES) / sms


def configs(p: Problem, head: Head) -> list[dict[str, int]]:
    """The configs for tuning: for each number of lanes and stages the tile that leaves the fewest blocks idle."""
    found = [c for lanes in (1, 2, 4, 8, 16, 32) for c in _candidates(p, lanes)]
    kinds = sorted({(c["lanes"], c["stages"]) for c in found})
    return [min((c for c in found if (c["lanes"], c["stages"]) == kind), key=lambda c: _idle(p, c)) for kind in kinds]


def scratch(p: Problem, c: Mapping[str, int], head: Head) -> dict[str, Meta]:
    partial = Meta((blocks(p, c), p["s"].shape[1]), "f32")
    return {name: partial for name, of_rows in (("pw", "dweight"), ("pb", "dbias")) if p.get(of_rows) is not None}


def launches(p: Problem, c: Mapping[str, int], head: Head) -> list[Launch]:
    made, (args, types) = scratch(p, c, head), head.arguments(p, c)
    size, lanes, pieces = _size(p), c["lanes"], c["pieces"]
    whole = size % 16 == 0
    tails = 2 if not whole and (contiguous_rows.vectors(size) - 1) % lanes == 0 else 1
    flags = [whole, whole and lanes * pieces * 16 == size, p.op.startswith("layer_norm"), p.get("weight") is not None, "pb" in made]
    numbers = [lanes, pieces, c["stages"], resident(p, pieces), tails]
    kernel = f"norm_staged_bwd<{', '.join([DTYPES[p['s'].dtype].cuda, *map(str, numbers), *(str(f).lower() for f in flags)])}>"
    args, types = {**args, **{name: name if name in made else None for name in ("pw", "pb")}}, (*types, "ptr", "ptr")
    count = blocks(p, c)
    first = Launch(kernel, (count,), args, types=types, block=(BLOCK,), shared=_shared(p, c), pdl=p.device.arch >= 90)
    return [first, *bwd_rows.column_sums(p, bwd_rows.of(p), count, made, together=True)]
