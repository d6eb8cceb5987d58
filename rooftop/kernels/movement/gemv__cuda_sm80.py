"""Which of the kernels of gemv__cuda_sm80.cu computes a product, and how K is divided."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, typed


def _along(p: Problem) -> bool:
    """Whether the rows of a are contiguous along K."""
    _, down, along = p["a"].strides
    return along == 1 and not (down == 1 and p["a"].shape[2] == 1)


def _together(p: Problem) -> bool:
    """Whether packs of 16 bytes along K are aligned in both operands."""
    n = 16 // p["a"].itemsize
    return p["a"].shape[2] % n == 0 and all(
        m.align % 16 == 0 and all(step % n == 0 for extent, step in zip(m.shape[:2], m.strides[:2], strict=True) if extent > 1)
        for m in (p["a"], p["x"])
    )


def supports(p: Problem, head: Head) -> str | None:
    a, x = p["a"], p["x"]
    if x.dtype != a.dtype:
        return f"takes operands of one dtype; given {a.dtype} and {x.dtype}"
    if a.numel == 0:
        return "there is nothing to multiply"
    if a.shape[0] > 65535:
        return f"takes at most 65535 matrices; given {a.shape[0]}"
    if max(a.shape[1:]) >= 2**31 - 2**16:
        return "takes matrices of fewer than 2**31 - 2**16 rows and columns"
    if not _along(p) and a.shape[1] > 1 and a.strides[1] != 1:
        return "rows or columns of a must be neighbours in memory"
    if _along(p) and x.strides[2] != 1 and x.shape[2] > 1:
        return "the elements of a vector must be neighbours, where the rows of a are read along K"
    return None


def _wide(p: Problem) -> int:
    """Neighbouring rows of y of a thread if columns are contiguous: at most 16 bytes of a, and 64 accumulators."""
    a = p["a"]
    wide = gcd(16 // a.itemsize, a.shape[1])
    while a.align % (wide * a.itemsize) or any(a.strides[i] % wide for i in (0, 2) if a.shape[i] > 1) or wide * p["x"].shape[1] > 64:
        wide //= 2
    return wide


SKINNY = {True: 4, False: 2}  # by alignment of packs: the number of float32 vectors from which tiles in shared memory pay
TILE, DEPTH = 128, 64  # rows of a, elements along K, of a tile


def _skinny(p: Problem) -> Mapping[str, Any]:
    """Tiles in a ring buffer of three stages, or of two if a multiprocessor has 100 KiB. Split-K fills the waves of blocks: a wave takes
    its share of K, and about three more tiles of latency for its first tile."""
    b, m, k = p["a"].shape
    small = p.device.arch in (86, 89)
    blocks, slots = b * -(-m // TILE), p.device.sms * (1 if small else 2)
    splits = min(range(1, max(1, min(k // 512, 64)) + 1), key=lambda s: -(-blocks * s // slots) * (k / s + 3 * DEPTH))
    per = -(-k // (splits * DEPTH)) * DEPTH
    return {"copy": 16 if _together(p) else 4, "stages": 2 if small else 3, "per": per, "splits": -(-k // per)}


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    """Two waves of blocks or more for rows, with split-K if there are few; one wave for columns, with split-K."""
    b, m, k = p["a"].shape
    r, sms = p["x"].shape[1], p.device.sms
    if _along(p):
        if p["a"].dtype == "f32" and r >= SKINNY[_together(p)] and m >= TILE:
            return _skinny(p)
        rows = (
            2 if r == 1 else 8 if 2 < r <= 4 and _together(p) and p["a"].itemsize == 4 else 4 if r <= 8 else 3 if p["a"].itemsize == 4
            else 2
        )
        unroll = 2 if r == 1 else 1
        blocks = b * -(-m // (8 * rows))
        step = 32 * (16 // p["a"].itemsize if _together(p) else 4) * unroll
        wanted = (4 if r == 1 else 2) * sms
        splits = 1 if blocks >= wanted else max(1, min(-(-wanted // blocks), k // (4 * step), 65535))
        per = -(-k // (splits * step)) * step
        return {"rows": rows, "unroll": unroll, "together": _together(p), "per": per, "splits": -(-k // per)}
    wide = _wide(p)
    units = -(-m // wide)
    tx = min(units, 256)
    blocks = b * -(-units // tx)
    splits = max(1, min(2 * sms // blocks, k // (16 * (256 // tx)), 65535))
    per = -(-k // splits)
    return {"wide": wide, "tx": tx, "per": per, "splits": -(-k // per)}


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return {"parts": Meta((config["splits"], p["y"].numel), "f32")} if config["splits"] > 1 else {}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    a, x, y = p["a"], p["x"], p["y"]
    b, m, k = a.shape
    r, splits, t, early = x.shape[1], config["splits"], DTYPES[a.dtype].cuda, p.device.arch >= 90

    def launch(name: str, grid: tuple[int, ...], args: Mapping[str, tuple[Any, str]], shared: int = 0) -> Launch:
        return Launch(name, grid, **typed(args, value_first=True), block=(256,), shared=shared, pdl=early)

    args: dict[str, tuple[Any, str]] = {"a": ("a", "ptr"), "x": ("x", "ptr"), "y": ("parts" if splits > 1 else "y", "ptr"), "M": (m, "i32"),
                                        "K": (k, "i32"), "per": (config["per"], "i32")}
    plane, ab, xb, xr = (y.numel, "i64"), (a.strides[0], "i64"), (x.strides[0], "i64"), (x.strides[1], "i64")
    if "copy" in config:
        args |= {"plane": plane, "ab": ab, "am": (a.strides[1], "i64"), "xb": xb, "xr": xr}
        tile = (TILE + -(-r // 2) * 2) * DEPTH * 4
        first = launch(f"skinny<{r}, {config['copy']}, {config['stages']}>", (-(-m // TILE), splits, b), args, config["stages"] * tile)
    elif "rows" in config:
        args |= {"plane": plane, "ab": ab, "am": (a.strides[1], "i64"), "xb": xb, "xr": xr}
        name = f"rows<{t}, {r}, {config['rows']}, {config['unroll']}, {str(config['together']).lower()}>"
        first = launch(name, (-(-m // (8 * config["rows"])), splits, b), args)
    else:
        tx = config["tx"]
        args |= {"tx": (tx, "i32"), "ty": (256 // tx, "i32"), "plane": plane, "ab": ab, "ak": (a.strides[2], "i64"), "xb": xb, "xr": xr,
                 "xk": (x.strides[2], "i64")}
        first = launch(f"columns<{t}, {r}, {config['wide']}>", (-(-m // (tx * config["wide"])), splits, b), args)
    if splits == 1:
        return [first]
    last = {"parts": ("parts", "ptr"), "y": ("y", "ptr"), "n": plane, "splits": (splits, "i32")}
    return [first, launch(f"add_parts<{t}>", (-(-y.numel // 32),), last)]
