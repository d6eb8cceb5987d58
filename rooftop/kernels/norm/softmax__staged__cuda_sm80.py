"""Which rows softmax__staged__cuda_sm80.cu supports, and how they are divided among blocks and lanes; contiguous_rows.py estimates the cost
of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels._device import contiguous_rows

ROWS = ("x", "y")
BLOCK = 256  # threads
BLOCKS = 3  # resident on a multiprocessor, which leaves a thread 80 registers
PIECES = {2: 5, 4: 10}  # most vectors a lane, by bytes of an element; their elements are held in float32
STRETCH = 32 * 1024  # bytes of a block: 96 KiB of a multiprocessor are being loaded, computed or stored


def supports(p: Problem, head: Head) -> str | None:
    return contiguous_rows.refuses(p, ROWS, 512)


def _row_bytes(p: Problem) -> int:
    return int(p["x"].shape[1] * p["x"].itemsize)


def _config(p: Problem, lanes: int, stretch: int = STRETCH) -> dict[str, Any]:
    teams, size = BLOCK // lanes, _row_bytes(p)  # 8 teams at least, so that they take whole vectors
    rounds = max(1, min(round(stretch / (teams * size)), -(-p["x"].shape[0] // (BLOCKS * p.device.sms * teams))))
    return {"lanes": lanes, "pieces": -(-contiguous_rows.vectors(size) // lanes), "rows": teams * rounds}


def _fits(p: Problem, c: Mapping[str, Any]) -> bool:
    return bool(c["pieces"] <= PIECES[p["x"].itemsize]) and c["rows"] * _row_bytes(p) <= 48 * 1024


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The number of lanes with the lowest cost whose range of rows is not too long."""
    width = p["x"].itemsize
    found = [c for lanes in (1, 2, 4, 8, 16, 32) if _fits(p, c := _config(p, lanes))]
    return min(
        found, key=lambda c: contiguous_rows.cost(_row_bytes(p), c["lanes"], 16 // width, 7.5 if width == 2 else 17, masks=150, rest=50)
    )


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    found = [
        c for lanes in (1, 2, 4, 8, 16, 32) for stretch in (16 * 1024, 24 * 1024, STRETCH) if _fits(p, c := _config(p, lanes, stretch))
    ]
    return [c for k, c in enumerate(found) if c not in found[:k]]
