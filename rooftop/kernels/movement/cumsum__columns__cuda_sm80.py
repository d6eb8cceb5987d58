"""How cumsum__columns__cuda_sm80.cu divides columns into tiles."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, pow2, typed

THREADS = 256
WIDE = 128  # bytes of a strip; twice that if rows are not aligned to 16, so that fewer of its sectors belong to two strips
PASS = 5 << 20  # bytes that a copy reads while a running sum passes from one group to the next (about 1.2 µs), twice
HELD = 224  # bytes of loads of a thread


def _vector(p: Problem) -> int:
    """Neighbouring columns of one load: at most 16 bytes, aligned to their size in every row of both tensors."""
    n = gcd(16 // p["x"].itemsize, p["x"].shape[2])
    for m in (p["x"], p["out"]):
        while m.align % (n * m.itemsize) or any(step % n for extent, step in zip(m.shape[:2], m.strides[:2], strict=True) if extent > 1):
            n //= 2
    return n


def _shares(p: Problem, config: Mapping[str, Any]) -> tuple[int, int]:
    """Strips of a matrix, and tiles of a strip."""
    _, along, inner = p["x"].shape
    tx = int(config["tx"])
    return -(-inner // (tx * int(config["vector"]))), -(-along // (THREADS // tx * int(config["rows"])))


def supports(p: Problem, head: Head) -> str | None:
    x, out = p["x"], p["out"]
    if x.numel == 0:
        return "there is nothing to add"
    if x.shape[2] == 1:
        return "takes columns, not rows"
    if x.strides[2] != 1 or out.strides[2] != 1:
        return "neighbouring columns must be neighbours in memory"
    strips, tiles = _shares(p, choose(p, head))
    if x.shape[0] * strips * tiles >= 2**31 or max(x.shape[1:]) >= 2**31 - 2**16:
        return "takes fewer than 2**31 - 2**16 rows, columns and tiles"
    return None


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    """Strips of 128 or 256 bytes; 160 or 224 bytes of loads in flight for each thread, fewer if the columns are short. Groups: of as many
    tiles as are read while a running sum passes on, at most eight words for each thread that waits."""
    x = p["x"]
    vector = _vector(p)
    wide = WIDE if vector * x.itemsize == 16 else 2 * WIDE
    tx = max(1, min(x.shape[2], wide // x.itemsize, THREADS) // vector)
    down = THREADS // tx
    rows = min(32, HELD // (vector * x.itemsize))
    while rows > 1 and down * rows >= 2 * x.shape[1]:
        rows //= 2
    each = -(-x.shape[2] // (tx * vector)) * x.shape[0] * down * rows * tx * vector * x.itemsize  # bytes of one tile of each chain
    group = min(pow2(-(-PASS // each)), 8 * max(1, down // vector))
    return {"vector": vector, "tx": tx, "rows": rows, "group": max(8, group)}


def configs(p: Problem, head: Head) -> list[Mapping[str, Any]]:
    first = choose(p, head)
    return [{**first, "rows": r, "group": g} for r in (first["rows"], first["rows"] // 2) for g in (8, 16, 32, 64) if r > 0]


def _words(p: Problem, config: Mapping[str, Any]) -> int:
    strips, tiles = _shares(p, config)
    groups = -(-tiles // int(config["group"]))
    return 0 if tiles == 1 else 1 + p["x"].shape[0] * strips * (tiles + groups) * int(config["tx"]) * int(config["vector"])


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return {"words": Meta((n,), "i64")} if (n := _words(p, config)) else {}


def zeroed(p: Problem, config: Mapping[str, Any], head: Head) -> tuple[str, ...]:
    return ("words",) if _words(p, config) else ()


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, out = p["x"], p["out"]
    outer, along, inner = x.shape
    strips, tiles = _shares(p, config)
    back = bool(p.option("reverse"))
    args: dict[str, tuple[Any, str]] = {
        "x": ("x", "ptr"), "out": ("out", "ptr"), "words": (None if tiles == 1 else "words", "ptr"), "N": (along, "i32"),
        "I": (inner, "i32"), "tx": (config["tx"], "i32"), "strips": (strips, "i32"), "chains": (outer * strips, "i32"),
        "tiles": (tiles, "i32"), "group": (config["group"], "i32"), "xo": (x.strides[0], "i64"),
        "xn": (-x.strides[1] if back else x.strides[1], "i64"), "xb": ((along - 1) * x.strides[1] if back else 0, "i64"),
        "oo": (out.strides[0], "i64"), "on": (-out.strides[1] if back else out.strides[1], "i64"),
        "ob": ((along - 1) * out.strides[1] if back else 0, "i64"),
    }
    name = f"columns<{DTYPES[x.dtype].cuda}, {config['vector']}, {config['rows']}, {str(tiles == 1).lower()}>"
    return [
        Launch(name, (outer * strips * tiles,), **typed(args, value_first=True),
               block=(THREADS,), pdl=p.device.arch >= 90)
    ]
