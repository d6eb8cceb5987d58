"""The part of attention_mask__cuda_sm80.cu's head that needs Python: how rows are divided among threads, lengths of 32 or 64 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Problem

THREADS = 256


def _units(p: Problem, part: int) -> tuple[int, int]:
    """Parts of a row (one more if a row may start in the middle of a line), and parts in all."""
    b, h, r, k = p["mask"].shape
    size = p["mask"].itemsize
    parts = -(-(k * size + 128 - size) // part)
    return parts, b * h * r * parts


def supports(p: Problem, head: Any) -> str | None:
    if p["mask"].numel == 0:
        return "there is nothing to write"
    if max(p["mask"].shape[2:]) >= 2**30 or _units(p, 65536)[1] >= 2**31 - THREADS:
        return "takes fewer than 2**30 queries and keys, and 2**31 rows"
    return None


def choose(p: Problem, head: Any) -> Mapping[str, Any]:
    """As many lanes as a row has packs, up to a warp; long rows in parts so that the card is filled."""
    k = p["mask"].shape[3] * p["mask"].itemsize
    lanes = 4
    while lanes < 32 and 16 * lanes < k:
        lanes *= 2
    rows = p["mask"].numel // p["mask"].shape[3]
    part = 65536 if rows * lanes >= 2048 * p.device.sms or rows >= 2**26 else 2048
    return {"lanes": lanes, "part": part}


def launches(p: Problem, config: Mapping[str, Any], head: Any) -> list[Launch]:
    lanes, part = int(config["lanes"]), int(config["part"])
    parts, units = _units(p, part)
    args, types = head.arguments(p, config)
    wide = sum(1 << i for i, n in enumerate(("lengths", "q_lengths")) if (m := p.get(n)) is not None and m.dtype == "i64")
    args |= {"units": units, "parts": parts} | {n: int(p.option(n)) for n in ("group", "left", "right")}
    args |= {n: n if p.get(n) is not None else None for n in ("lengths", "q_lengths")} | {"wide": wide}
    kind = p["mask"].dtype
    return [
        Launch(
            f"attention_mask<{DTYPES[kind].cuda}, {str(kind == 'bool').lower()}, {lanes}, {part}>", (-(-units * lanes // THREADS),), args,
            types=(*types, *("i32",) * 5, "ptr", "ptr", "i32"), block=(THREADS,), pdl=p.device.arch >= 90,
        )
    ]
