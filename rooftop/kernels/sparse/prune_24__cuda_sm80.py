"""How many rows a block of prune_24__cuda_sm80.cu prunes."""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem

BLOCKS, WAVES = 4, 4  # of a multiprocessor; of blocks of 128 rows, from which the first loads and the last stores are a small part of the time


def choose(p: Problem, head: Head) -> dict[str, Any]:
    """128 rows, whose second half is loaded while the first is searched; 64 where that makes few waves."""
    m, k = p["w"].shape
    return {"rounds": 1 if -(-m // 128) * -(-k // 128) < WAVES * BLOCKS * p.device.sms else 2}


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return [{"rounds": 1}, {"rounds": 2}]
