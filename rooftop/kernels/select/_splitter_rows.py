"""How selections__splitters__cuda_sm80.cu divides rows: the sample, the capacity for entries inside the bracket, blocks per row and, if
there are several, levels of lists."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels.select import _top_k
from rooftop.kernels.select._top_k import Arguments, given, key_bytes, launch, rows_of

LEAST = 4096  # elements of a row
SAMPLES = (512, 1024, 2048, 4096, 8192, 16384)
PART = 4096  # elements of a row for a block, at least
SINGLE = 65536  # entries of a list that one block reads
BEHIND = 3  # entries a thread behind the slots, for threads that find more than the others: one or two standard deviations
WIDE, NARROW, SMALL = 1024, 512, 256  # threads of a block: one, two or four a multiprocessor


def inside(n: int, m: int) -> int:
    """An upper bound (four standard deviations) of the elements inside the bracket of a sample of m, for a k in the middle of the row,
    where a sample is least accurate."""
    width = 2 * (4 * sqrt(m / 4) + 4) + 2
    return min(n, ceil((width + 4 * sqrt(width)) * n / m))


def _room(p: Problem, threads: int) -> int:
    """Entries in the shared memory of a block."""
    return (p.device.shared_per_block // (WIDE // threads) - 2 * _top_k.RESERVED) // (key_bytes(p) + 4) // 4 * 4


def _held(p: Problem, threads: int, whole: int, part: int) -> dict[str, int] | None:
    """Sample size, slots and capacity of a block that reads `part` elements of `whole`: the sample size that minimises the sample plus the
    elements inside the bracket."""
    room, key, least, best = _room(p, threads), key_bytes(p), 0, None
    for m in SAMPLES:
        if 8 * m > whole:
            break
        most = inside(whole, m)
        slots = max(-(-most * part // (whole * threads)) + 1, ceil(m / threads))
        capacity = (slots + BEHIND) * threads
        if capacity <= room and m * key <= capacity * (key + 4) and (best is None or m + most < least):
            least, best = m + most, {"sample": m, "slots": slots, "capacity": capacity}
    return best


def plan(p: Problem) -> dict[str, Any] | None:
    """The config for any k; None if rows are short or the entries inside the bracket do not fit a block."""
    rows, n = rows_of(p)
    if n < LEAST:
        return None
    sms = p.device.sms
    splits = 1 if 2 * rows > sms else max(1, min(2 * sms // rows, n // PART))
    threads = NARROW if splits > 1 or rows > sms else WIDE
    if rows > 2 * sms and n <= 8 * LEAST:  # short rows spend most of their time at barriers, so more resident blocks help
        threads = SMALL
    if splits == 1:
        fitting = ((t, _held(p, t, n, n)) for t in (SMALL, NARROW, WIDE) if t >= threads)
        if (found := next(((t, h) for t, h in fitting if h is not None), None)) is not None:
            return {"way": "rows", **found[1], "threads": found[0], "splits": 1}
        splits = 2  # rows are too long for one block each
    while (first := _held(p, NARROW, n, -(-n // splits))) is None and n // splits > PART:
        splits *= 2
    if first is None:
        return None
    per = -(-n // (16 * splits)) * 16
    splits = -(-n // per)
    rooms = [max(LEAST, inside(n, first["sample"])), 0]
    levels = 1
    while (last := _held(p, WIDE, rooms[levels - 1], rooms[levels - 1]) if rooms[levels - 1] <= SINGLE else None) is None:
        if levels == 2:
            return None
        rooms[1] = max(LEAST, inside(rooms[0], first["sample"]))
        levels = 2
    room0, room1 = rooms
    return {
        "way": "parts", **first, "threads": NARROW, "splits": splits, "per": per, "levels": levels, "room0": room0, "room1": room1,
        **{f"last_{name}": v for name, v in last.items()},
    }


def refused(p: Problem) -> str | None:
    if (reason := _top_k.not_taken(p)) is not None:
        return reason
    return None if plan(p) is not None else f"rows of at least {LEAST} elements, whose bracket fits shared memory"


def choose(p: Problem) -> dict[str, Any]:
    config = plan(p)
    assert config is not None
    return config


def scratch(p: Problem, config: Mapping[str, Any]) -> dict[str, Meta]:
    if config["way"] == "rows":
        return {}
    (rows, _), key, levels = rows_of(p), "u64" if p["x"].dtype == "i64" else "u32", config["levels"]
    found = {"counts": Meta((levels * rows * 4,), "u32"), "ends": Meta((levels * rows * 2,), key)}
    for level in range(levels):
        many = rows * config[f"room{level}"]
        found |= {f"keys{level}": Meta((many,), key), f"indices{level}": Meta((many,), "u32")}
    return found


def zeroed(config: Mapping[str, Any]) -> tuple[str, ...]:
    return () if config["way"] == "rows" else ("counts",)


def launches(
    p: Problem, config: Mapping[str, Any], k: int, sense: int, value: str | None, index: str | None, mask: str | None
) -> list[Launch]:
    rows, n = rows_of(p)
    t, entry, threads = DTYPES[p["x"].dtype].cuda, key_bytes(p) + 4, config["threads"]
    x, lengths = given(p)
    bits: Arguments = {"bits": (max(1, (n - 1).bit_length()), "i32")}
    order: Arguments = {"sense": (sense, "u32")}
    to: Arguments = {"value": (value, "ptr"), "index": (index, "ptr"), "mask": (mask, "ptr")}
    held: Arguments = {"m": (config["sample"], "u32"), "slots": (config["slots"], "u32"), "capacity": (config["capacity"], "u32")}
    if config["way"] == "rows":
        args = {**x, **lengths, "k": (k, "u32"), **held, **bits, **order, **to}
        return [launch(p, f"bracket_rows<{t}, {threads}>", rows, threads, args, config["capacity"] * entry)]
    found, levels, splits = [], config["levels"], config["splits"]
    state: Arguments = {
        "counts": ("counts", "ptr"), "ends": ("ends", "ptr"), "rows": (rows, "u32"), "room0": (config["room0"], "u32"),
        "room1": (config["room1"], "u32"),
    }
    for level in range(levels):
        lists: Arguments = {
            "in_keys": ("keys0" if level == 1 else None, "ptr"), "in_at": ("indices0" if level == 1 else None, "ptr"),
            "out_keys": (f"keys{level}", "ptr"), "out_at": (f"indices{level}", "ptr"),
        }
        share: Arguments = {
            "level": (level, "u32"), "k": (k, "u32"), "m": (config["sample"], "u32"), "splits": (splits, "u32"),
            "per": (config["per"], "u32"), "slots": (config["slots"], "u32"), "capacity": (config["capacity"], "u32"),
        }
        args = {**x, **lengths, **lists, **state, **share, **order}
        found.append(launch(p, f"bracket_parts<{t}, {threads}>", rows * splits, threads, args, config["capacity"] * entry))
    ends: Arguments = {"in_keys": (f"keys{levels - 1}", "ptr"), "in_at": (f"indices{levels - 1}", "ptr")}
    last: Arguments = {
        "level": (levels, "u32"), "k": (k, "u32"), "m": (config["last_sample"], "u32"), "slots": (config["last_slots"], "u32"),
        "capacity": (config["last_capacity"], "u32"),
    }
    args = {**x, **lengths, **ends, **state, **last, **bits, **order, **to}
    found.append(launch(p, f"bracket_lists<{t}, {WIDE}>", rows, WIDE, args, config["last_capacity"] * entry))
    return found
