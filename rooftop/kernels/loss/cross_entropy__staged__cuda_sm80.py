"""How cross_entropy__staged__cuda_sm80.cu divides short rows among blocks and lanes.

    lanes   of a row: the number that costs a row the fewest instructions. With more, lanes idle at a row's end and a reduction has more
            steps; with fewer, more lanes access the same banks
    pieces  vectors of 16 bytes of a row that a lane has: at most 8, 32 registers, for four resident blocks; at most 12 for two
    rows    of a stretch: about 24 KiB. A block has two stretches, one of which is in flight: four blocks keep 96 KiB of a multiprocessor in
            flight at any time
    grid    the resident blocks, so that each writes one sum and the second launch has a few hundred to add"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels._device import contiguous_rows

BLOCK, BLOCKS, PIECES = 256, 4, 12  # threads; most resident blocks of a multiprocessor; most vectors a lane
STRETCH = 24 * 1024
MOST = 6 * 1024 - 16  # bytes of a row: two blocks have four stretches of eight of them
STATIC = 5 * 1024  # bytes of shared memory of a block besides its stretches, including what the hardware reserves


def _row_bytes(p: Problem) -> int:
    return int(p["input"].shape[1] * p["input"].itemsize)


def _whole(p: Problem) -> bool:
    return _row_bytes(p) % 16 == 0


def supports(p: Problem, head: Head) -> str | None:
    x = p["input"]
    rows, columns = x.shape
    if not x.numel:
        return "there is nothing to compute"
    if _row_bytes(p) > MOST:
        return f"takes rows of up to {MOST} bytes; given {_row_bytes(p)}"
    if rows >= 2**31 - 2**16:
        return f"rows are counted in 32 bits; given {rows}"
    if float(p.option("softcap")):
        return "does not soft-cap: a tanh a logit costs more than what this kernel saves"
    if x.align < 16 or (columns > 1 and x.strides[1] != 1) or (rows > 1 and x.strides[0] != columns):
        return "rows must lie one after another, the first on 16 bytes"
    return None


def _cost(p: Problem, lanes: int) -> float:
    width = p["input"].itemsize
    return contiguous_rows.cost(_row_bytes(p), lanes, 16 // width, 5.5 if width == 2 else 13, masks=65, rest=30)


def _config(p: Problem, lanes: int, stretch: int = STRETCH) -> dict[str, Any]:
    teams = BLOCK // lanes  # at least 8, so that they process whole vectors
    rounds = max(1, min(stretch // (teams * _row_bytes(p)), lanes, -(-p["input"].shape[0] // (2 * BLOCKS * p.device.sms * teams))))
    return {"lanes": lanes, "pieces": -(-contiguous_rows.vectors(_row_bytes(p)) // lanes), "rows": teams * rounds}


def _fits(p: Problem, config: Mapping[str, Any]) -> bool:
    return config["pieces"] <= PIECES and _shared(p, config) + STATIC <= p.device.shared_per_block


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The number of lanes with the lowest cost whose stretch is about as long as it should be, or the one with the shortest stretch."""
    found = [config for lanes in (1, 2, 4, 8, 16, 32) if _fits(p, config := _config(p, lanes))]
    good = [c for c in found if c["rows"] * _row_bytes(p) <= 1.25 * STRETCH]
    return (
        min(good, key=lambda c: _cost(p, c["lanes"]) * (1.3 if c["pieces"] > 8 else 1)) if good
        else min(found, key=lambda c: int(c["rows"]))
    )


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    found = [_config(p, lanes, stretch) for lanes in (1, 2, 4, 8, 16, 32) for stretch in (16 * 1024, STRETCH, 32 * 1024)]
    return [c for k, c in enumerate(found) if _fits(p, c) and c not in found[:k]]


def _shared(p: Problem, config: Mapping[str, Any]) -> int:
    return int(2 * config["rows"] * _row_bytes(p))


def _grid(p: Problem, config: Mapping[str, Any]) -> int:
    resident = max(1, min(BLOCKS if config["pieces"] <= 8 else 2, p.device.shared_per_block // (_shared(p, config) + STATIC)))
    return min(-(-p["input"].shape[0] // config["rows"]), resident * p.device.sms)


def _added(p: Problem) -> bool:
    return p.option("reduction") != "none"


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    """A sum and a number of rows from each block."""
    return {"found": Meta((_grid(p, config), 2), "f64")} if _added(p) else {}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    grid, added, pdl = _grid(p, config), _added(p), p.device.arch >= 90
    args, types = head.arguments(p, config)
    args |= {"loss": None if added else "loss", "found": "found" if added else None, "normaliser": "normaliser", "divisor": "divisor"}
    smoothing = float(p.option("label_smoothing"))
    args |= {"ignore": int(p.option("ignore_index")), "smoothing": smoothing, "scale": float(p.option("lse_square_scale"))}
    full = _whole(p) and contiguous_rows.vectors(_row_bytes(p)) == config["lanes"] * config["pieces"]
    flags = (str(v).lower() for v in (_whole(p), full, smoothing != 0, added))
    template = (DTYPES[p["input"].dtype].cuda, config["lanes"], config["pieces"], *flags)
    types = (*types, "ptr", "ptr", "ptr", "ptr", "i64", "f32", "f32")
    shared = _shared(p, config)
    first = Launch(
        f"cross_entropy_staged<{', '.join(map(str, template))}>", (grid,), args, types=types, block=(BLOCK,), shared=shared, pdl=pdl
    )
    if not added:
        return [first]
    last = {"count": grid, "found": "found", "loss": "loss", "divisor": "divisor"}
    threads = min(1024, max(32, 32 * -(-grid // 128)))
    mean = str(p.option("reduction") == "mean").lower()
    return [
        first, Launch(f"cross_entropy_blocks<{mean}>", (1,), last, types=("i32", "ptr", "ptr", "ptr"), block=(threads,), pdl=pdl)
    ]
