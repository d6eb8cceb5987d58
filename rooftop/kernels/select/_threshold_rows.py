"""How pivot_rows, pivot_parts and pivot_lists (selections__cuda_sm80.cu) divide rows: the sample, entries in shared
memory, blocks per row."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels.select import _top_k
from rooftop.kernels.select._top_k import Arguments, given, key_bytes, launch, rows_of

LEAST = 4096  # elements of a row
SAMPLES = (1024, 2048, 4096, 8192)
COUNTED = 448  # entries sorted by counting, a few less than in _threshold_rows.cuh
LISTS = 512  # of a row, at most: as in _threshold_rows.cuh
PART = 4096  # elements of a row for a block, at least
WIDE, NARROW = 1024, 512  # threads of a block: one or two a multiprocessor


def place(k: int, n: int, m: int) -> int:
    """pivot_place of _threshold_rows.cuh."""
    mean = k * m / n
    return min(m, int(mean + 4 * sqrt(mean)) + 4)


def reaching(k: int, n: int, m: int) -> int:
    """An upper bound of the elements that reach the pivot: four standard deviations above the expected number."""
    r = place(k, n, m)
    return min(n, ceil((r + 4 * sqrt(r)) * n / m))


def sample(k: int, n: int, room: int) -> int:
    """The smallest sample after which entries can be sorted by counting, or are hardly more than k; else the largest that is a small part
    of the row."""
    fitting = [m for m in SAMPLES if 4 * m <= n]
    few = [m for m in fitting if 16 * m <= n and place(k, n, m) * n <= max(COUNTED, 1.8 * k) * m]
    held = [m for m in fitting if 32 * m <= n and reaching(k, n, m) <= room]
    return few[0] if few else held[-1] if held else next((m for m in fitting if reaching(k, n, m) <= room), fitting[-1])


def _even(n: int) -> int:
    return -(-n // 4) * 4  # keys and indices start on 16 bytes


def plan(p: Problem, k: int) -> dict[str, Any] | None:
    """The config for the first k of each row; None if another kernel is better."""
    rows, n = rows_of(p)
    if n < LEAST or not 1 <= k <= _top_k.MOST or 3 * k > n or (k <= _top_k.SHORT and _top_k.short(p) is not None):
        return None
    sms, key = p.device.sms, key_bytes(p)
    each = 16 // DTYPES[p["x"].dtype].bytes  # elements of a pack
    splits = 1 if 2 * rows > sms else max(1, min(2 * sms // rows, n // PART, LISTS))
    threads = WIDE if splits == 1 and rows <= sms else NARROW
    room = (p.device.shared_per_block // (1 if threads == WIDE else 2) - 2 * _top_k.RESERVED) // (key + 4) // 4 * 4
    whole = (p.device.shared_per_block - 3 * _top_k.RESERVED) // (key + 4) // 4 * 4
    m = sample(k, n, room if splits == 1 else whole)
    least = _even(max(_top_k.pow2(k), k + threads * each, -(-m * key // (key + 4)), threads))
    if least > room:
        return None
    capacity = min(room, max(least, _even(reaching(k, n, m)))) if splits == 1 else least
    found: dict[str, Any] = {"way": "pivot", "threads": threads, "capacity": capacity, "splits": splits, "per": n, "sample": m}
    if splits > 1:
        least = _even(max(_top_k.pow2(k), k + WIDE * each))
        if least > whole:
            return None
        per = 16 * ceil(n / splits / 16)
        found |= {"per": per, "splits": -(-n // per), "list_capacity": min(whole, max(least, _even(reaching(k, n, m))))}
    return found


def choose(p: Problem, k: int) -> dict[str, Any] | None:
    """The config for the first k of each row, here or in _top_k.py; None if no block holds them."""
    return plan(p, k) or _top_k.plan(p, k)


def scratch(p: Problem, config: Mapping[str, Any], k: int) -> dict[str, Meta]:
    if config["way"] != "pivot":
        return _top_k.scratch(p, config, k)
    if config["splits"] == 1:
        return {}
    lists = rows_of(p)[0] * config["splits"]
    return {
        "keys0": Meta((lists * k,), "u64" if p["x"].dtype == "i64" else "u32"), "indices0": Meta((lists * k,), "u32"),
        "counts0": Meta((lists,), "u32")
    }


def launches(p: Problem, config: Mapping[str, Any], k: int, sense: int, tie: int, to: Arguments) -> list[Launch]:
    """Writes the first k of each row in order, from place `to["first"]` on."""
    if config["way"] != "pivot":
        return _top_k.launches(p, config, k, sense, tie, to)
    rows, n = rows_of(p)
    t, entry, splits, threads = DTYPES[p["x"].dtype].cuda, key_bytes(p) + 4, config["splits"], config["threads"]
    x, lengths = given(p)
    taken: Arguments = {"k": (k, "u32"), "m": (config["sample"], "u32")}
    bits: Arguments = {"bits": (31 if tie else max(1, (n - 1).bit_length()), "i32"), "sense": (sense, "u32"), "tie": (tie, "u32")}
    held: Arguments = {"capacity": (config["capacity"], "u32"), **bits}
    if splits == 1:
        return [
            launch(p, f"pivot_rows<{t}, {threads}>", rows, threads, {**x, **lengths, **taken, **held, **to}, config["capacity"] * entry)
        ]
    lists: Arguments = {"keys": ("keys0", "ptr"), "at": ("indices0", "ptr"), "counts": ("counts0", "ptr")}
    share: Arguments = {"splits": (splits, "u32"), "per": (config["per"], "u32")}
    held_lists: Arguments = {"k": (k, "u32"), "capacity": (config["list_capacity"], "u32"), **bits}
    return [
        launch(
            p, f"pivot_parts<{t}, {threads}>", rows * splits, threads, {**x, **lengths, **taken, **share, **held, **lists},
            config["capacity"] * entry
        ),
        launch(
            p, f"pivot_lists<{t}, {WIDE}>", rows, WIDE, {**lists, "splits": (splits, "u32"), **x, **lengths, **held_lists, **to},
            config["list_capacity"] * entry,
        ),
    ]
