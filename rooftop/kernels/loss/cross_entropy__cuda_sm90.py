"""Which constants cross_entropy__cuda_sm90.cu gets for a row: a table for lengths that were measured, a model between them.

A multiprocessor of an H200 reads about 34 bytes a nanosecond, a load takes about 1 us, and at most half of a block's time is loading: so
about 80 KiB of rows should be resident on it. With the table alone, made for powers of two, a row of 27 KiB got a block of 512 threads, of
which two are
resident: 54 KiB, and 0.61 of a copy. So, with many rows:

    up to 56 KiB   the whole row is in registers, 4 to 8 packs a thread: the number with many resident rows and few idle slots
    from 64 KiB    the block processes the row in steps, up to 256 KiB by four blocks of 256 threads a multiprocessor: a block loads nothing
                   for about 2 us at a row's end, which is a quarter of the time of a row of 125 KB if two blocks are resident, an eighth if
                   four are
    longer         two blocks. If the last step would be less than half full, the steps are made equal"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance

KIB = 1024
THREADS = 1024  # of a multiprocessor, at 64 registers
PIECES = range(4, 9)  # packs a thread
ENOUGH = 96 * KIB // 16  # packs that should be resident on a multiprocessor


def choose(p: Problem, head: Head) -> dict[str, Any]:
    x = p["input"]
    rows, size, capped = x.shape[0], x.shape[1] * x.itemsize, float(p.option("softcap")) != 0
    table = _table(rows, x.shape[1], size, capped, p.device.sms)
    if capped or table["cluster"] > 1:
        return table
    packs = _packs(p)
    if 4 * KIB < size <= 56 * KIB and rows >= 8 * p.device.sms:  # with few rows, each needs more threads
        return _whole_row(packs)
    if 64 * KIB < size <= 256 * KIB and rows >= 8 * p.device.sms:
        return _constants(8, 256, 4)
    step = table["threads"] * table["pieces"]
    if size > 64 * KIB and 0 < packs % step < step // 2:
        return table | {"pieces": -(-packs // (table["threads"] * -(-packs // step)))}
    return table


def for_any_rows(p: Problem, head: Head) -> str:
    """Under `rooftop.invariant()`: never. Packs are counted from the last 128-byte boundary before a row."""
    return "the order of sums follows from where a row starts in its 128 bytes"


def _constants(pieces: int, threads: int, blocks: int, ahead: int = 0, cluster: int = 1, spare: int = 0) -> dict[str, int]:
    return {"pieces": pieces, "ahead": ahead, "threads": threads, "cluster": cluster, "blocks": blocks, "spare": spare}


def _table(rows: int, classes: int, size: int, capped: bool, sms: int) -> dict[str, int]:
    """Measured on an H100 and an H200."""
    if size <= 2 * KIB:
        return _constants(2, 64, 8)
    if size <= 4 * KIB:
        return _constants(4, 64, 16)
    if size <= 8 * KIB:
        return _constants(4, 128, 8)
    if size <= 16 * KIB and not capped:
        return _constants(8, 128, 8)
    if capped:
        return _constants(2, 256, 4, ahead=1, spare=1)
    if rows < 2 * sms and size >= 64 * KIB:
        return _constants(2, 256, 4, cluster=8)
    if size <= 64 * KIB and rows < 8 * sms:
        return _constants(4, 256, 4, ahead=1)
    if size <= 64 * KIB and classes % 64 == 0:
        return _constants(4, 512, 2)
    return _constants(8 if size > 64 * KIB and classes % 64 else 4, 512, 2)


def _packs(p: Problem) -> int:
    """The most packs of 16 bytes of a row, counted from the last 128-byte boundary before it."""
    x = p["input"]
    step = x.strides[0] * x.itemsize if x.shape[0] > 1 else 128
    unit = next(n for n in (128, 64, 32, 16, 8, 4, 2) if step % n == 0 and (n == 2 or x.align >= min(n, 16)))
    return int(-(-(x.shape[1] * x.itemsize + 128 - unit) // 16))


def _whole_row(packs: int) -> dict[str, int]:
    """Resident packs (more than ENOUGH gain nothing) for each slot that a row takes; among equal ones the fewest registers."""
    found = [
        (pieces, threads, min(16, THREADS // threads)) for pieces in PIECES if (threads := 32 * -(-packs // (32 * pieces))) <= THREADS // 2
    ]
    pieces, threads, blocks = max(found, key=lambda c: (min(c[2] * packs, ENOUGH) / (c[0] * c[1]), -c[0]))
    return _constants(pieces, threads, blocks)


def configs(p: Problem, head: Head) -> list[dict[str, int]]:
    """The configs for tuning; `valid` of the head takes out most of them."""
    tried = product((2, 4, 8), (32, 64, 128, 256, 512, 1024), (1, 2, 3, 4, 6, 8, 12, 16), (0, 1), (1, 2, 4, 8), (0, 1))
    return [_constants(*one) for one in tried]


def scratch(p: Problem, config: Mapping[str, int], head: Head) -> dict[str, Meta]:
    return {"found": Meta((p["input"].shape[0] if p.option("reduction") != "none" else 1,), "f32")}


def launches(p: Problem, config: Mapping[str, int], head: Head) -> list[Launch]:
    rows, cluster, added, pdl = p["input"].shape[0], config["cluster"], p.option("reduction") != "none", p.device.pdl
    args, types = head.arguments(p, config)
    args |= {
        "losses": "found" if added else "loss", "normaliser": "normaliser", "divisor": "divisor", "ignore": int(p.option("ignore_index"))
    }
    args |= {name: float(p.option(name)) for name in ("label_smoothing", "lse_square_scale", "softcap")}
    kernel = instance(
        "cross_entropy_rows", DTYPES[p["input"].dtype].cuda, config["pieces"], config["ahead"] == 1, config["threads"], cluster,
        config["blocks"],
        4 - config["spare"] if p.option("softcap") != 0 else 0, p.option("label_smoothing") != 0, rows < 2 * p.device.sms, added,
    )
    first = Launch(
        kernel, (rows * cluster,), args, types=(*types, "ptr", "ptr", "ptr", "i64", "f32", "f32", "f32"), block=(config["threads"],),
        cluster=(cluster,), pdl=pdl,
    )
    if not added:
        return [first]
    adders, threads = 1 if rows <= 32768 else 8, min(1024, max(128, (1 << (rows - 1).bit_length()) // 4))
    last = {"R": rows, "found": "found", "loss": "loss", "divisor": "divisor"}
    kernel = instance("cross_entropy_total", adders, p.option("reduction") == "mean")
    return [
        first, Launch(kernel, (adders,), last, types=("i32", "ptr", "ptr", "ptr"), block=(threads,), cluster=(adders,), pdl=pdl)
    ]
