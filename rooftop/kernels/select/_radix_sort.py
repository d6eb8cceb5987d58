"""How the kernels of _radix_sort.cuh divide rows: one block a row, or tiles of a row in three launches for each digit of 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels.select import _top_k
from rooftop.kernels.select._top_k import Arguments, given, key_bytes, launch, rows_of

THREADS = 512


def items(p: Problem) -> int:
    """The most elements of a thread: keys and places are in its registers, 64 of them; 128 for int64 with more than 6 elements."""
    return 8 if p["x"].dtype == "i64" else 12


def plan(p: Problem) -> dict[str, Any]:
    """The config for sorting whole rows."""
    rows, n = rows_of(p)
    if n <= _top_k.WARP:
        return {"way": "warp", "each": max(1, _top_k.pow2(-(-n // 32)))}
    each = items(p)
    for threads in (64, 128, 256, 512, 1024):
        wide = max(4, -(-n // (2 * threads)) * 2)
        if wide <= (6 if each == 8 and threads == 1024 else each) and shared_of(p, threads, wide) <= p.device.shared_per_block:
            return {"way": "block", "threads": threads, "each": wide, "tiles": 1}
    if each == 8:
        return {"way": "tiles", "threads": 384, "each": 12, "tiles": -(-n // (384 * 12))}
    # few rows: small tiles, so that all multiprocessors have one
    each = next((e for e in (12, 8) if rows * -(-n // (THREADS * e)) >= 2 * p.device.sms), 4)
    return {"way": "tiles", "threads": THREADS, "each": each, "tiles": -(-n // (THREADS * each))}


def shared_of(p: Problem, threads: int, each: int) -> int:
    """Bytes of shared memory of a block that sorts a row: keys and 16-bit indices, and the histograms."""
    return threads * each * (key_bytes(p) + 2) + threads // 32 * 1024 + 2048


def not_taken(p: Problem) -> str | None:
    if (reason := _top_k.not_taken(p)) is not None:
        return reason
    rows, _ = rows_of(p)
    if rows * max(plan(p).get("tiles", 1), 256) >= 2**31:
        return "more blocks than one launch may have"
    return None


def scratch(p: Problem, config: Mapping[str, Any]) -> dict[str, Meta]:
    if config["way"] != "tiles":
        return {}
    rows, n = rows_of(p)
    key = "u64" if p["x"].dtype == "i64" else "u32"
    passes = DTYPES[p["x"].dtype].bytes
    found = {"counts": Meta((rows, 256, config["tiles"]), "u32"), "totals": Meta((rows, 256), "u32")}
    for i in range(min(2, passes - 1)):
        found |= {f"keys{i}": Meta((rows, n), key), f"indices{i}": Meta((rows, n), "u32")}
    return found


def launches(p: Problem, config: Mapping[str, Any], sense: int, to: Arguments, rest: bool) -> list[Launch]:
    """Sorts rows; places `to["first"]` to `to["first"] + to["count"]` are written. `rest`: elements past a row's length stay in place."""
    if config["way"] == "warp":
        return _top_k.launches(p, config, 0, sense, 0, to, rest)
    rows, _ = rows_of(p)
    t, each, threads, tiles = DTYPES[p["x"].dtype].cuda, config["each"], config["threads"], config["tiles"]
    x, lengths = given(p)
    shared = threads * each * (key_bytes(p) + 4)
    last: Arguments = {**to, "rest": (int(rest), "i32")}
    if config["way"] == "block":
        args = {**x, **lengths, "sense": (sense, "u32"), **last}
        return [launch(p, f"sort_rows<{t}, {threads}, {each}>", rows, threads, args, threads * each * (key_bytes(p) + 2))]
    found = []
    digits = DTYPES[p["x"].dtype].bytes
    for digit in range(digits):
        first, final = digit == 0, digit == digits - 1
        source, target = (digit - 1) % 2, digit % 2
        common = {**x, **lengths, "sense": (sense, "u32"), "shift": (8 * digit, "i32"), "tiles": (tiles, "u32")}
        keys_in: Arguments = {"keys_in": (None if first else f"keys{source}", "ptr")}
        kind = f"{t}, {str(first).lower()}"
        found.append(
            launch(p, f"radix_count<{kind}, {threads}, {each}>", rows * tiles, threads, {**common, **keys_in, "counts": ("counts", "ptr")})
        )
        scanned: Arguments = {
            "counts": ("counts", "ptr"), "lists": (rows * 256, "u32"), "tiles": (tiles, "u32"), "totals": ("totals", "ptr")
        }
        found.append(launch(p, "radix_scan", rows * 32, 256, scanned))
        moved: Arguments = {
            **keys_in, "indices_in": (None if first else f"indices{source}", "ptr"), "counts": ("counts", "ptr"),
            "totals": ("totals", "ptr"), "keys_out": (None if final else f"keys{target}", "ptr"),
            "indices_out": (None if final else f"indices{target}", "ptr"),
        }
        name = f"radix_scatter<{kind}, {str(final).lower()}, {threads}, {each}>"
        found.append(launch(p, name, rows * tiles, threads, {**common, **moved, **last}, shared))
    return found
