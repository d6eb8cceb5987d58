"""How prune_24__cuda_sm80.cu divides a matrix among blocks."""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem

WAVES = 8  # of blocks, at most


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """The fewest rounds of a multiprocessor; of equal ones two rounds a tile, whose columns are written in lines of 128 bytes."""
    resident = (4 if p.device.arch >= 90 else 3) * p.device.sms
    wide = -(-p["w"].shape[1] // 256) * 2

    def rounds(c: dict[str, Any]) -> int:
        return -(-wide * c["blocks"] // resident) * -(-_tall(p, c["rounds"]) // c["blocks"]) * c["rounds"]

    return min(configs(p, head), key=rounds)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    """As many blocks of each column as fit a few waves."""
    resident = (4 if p.device.arch >= 90 else 3) * p.device.sms
    wide = -(-p["w"].shape[1] // 256) * 2
    found = []
    for rounds in (2, 1):
        tall = _tall(p, rounds)
        found += [{"rounds": rounds, "blocks": n} for n in dict.fromkeys(min(tall, max(1, waves * resident // wide)) for waves in range(1, WAVES + 1))]
    return found


def _tall(p: Problem, rounds: int) -> int:
    """Tiles of a column; metadata is padded to 256 rows."""
    return -(-p["w"].shape[0] // 256) * (4 // rounds)
