"""Which of the kernels of reduce__cuda_sm80.cu computes a reduction, and how the work is divided among blocks and threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, pow2

OPS = {"sum": 0, "mean": 1, "var": 2, "max": 3, "argmax": 4}
TILE = 24576  # bytes of rows that a block copies as one range
PIECE = 32768  # bytes for a block, at least, if several blocks share a result


@dataclass(frozen=True)
class _Facts:
    """x as [A, B, C, D, E], its strides in elements, and the reduction."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    align: int  # alignment of the address in bytes
    op: str

    @property
    def results(self) -> int:
        return self.shape[0] * self.shape[2] * self.shape[4]

    @property
    def rows(self) -> bool:
        return self.shape[4] == 1

    @property
    def reduced(self) -> int:
        return self.shape[1] * self.shape[3]


def _facts(p: Problem) -> _Facts:
    x = p["x"]
    return _Facts(x.shape, x.strides, x.itemsize, x.align, str(p.option("op")))


def _aligned(f: _Facts, count: int) -> bool:
    """Whether `count` neighbours from the start of any row are aligned to their size."""
    n = count * f.size
    along = 3 if f.rows else 4
    return f.align % n == 0 and all(
        step * f.size % n == 0 for i, (m, step) in enumerate(zip(f.shape, f.strides, strict=True)) if i != along and m > 1
    )


def supports(p: Problem, head: Head) -> str | None:
    f = _facts(p)
    if p["x"].numel == 0:
        return "there is nothing to reduce"
    along = 3 if f.rows else 4
    if f.shape[along] > 1 and f.strides[along] != 1:
        return "the elements of a row, or of neighbouring columns, must be neighbours in memory"
    if not f.rows and f.shape[1] > 1 and f.reduced >= 2**31:
        return "takes fewer than 2**31 rows, where they are those of two dimensions"
    if f.reduced >= 2**40:
        return "takes fewer than 2**40 elements for one result"
    config = choose(p, head)
    if config["blocks"] >= 2**28:
        return "more blocks than one launch may have"
    return None


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    """kernel, its constants, blocks along the results, and `splits` of each result."""
    f, sms = _facts(p), p.device.sms
    a, b, c, d, _ = f.shape
    m, vector = f.results, 16 // f.size
    if not f.rows:
        return _columns(f, sms)
    if b == 1 and d % vector == 0 and d <= 32 * vector and _aligned(f, vector):
        lanes = pow2(d // vector)
        return {"kernel": "packed_rows", "lanes": lanes, "blocks": -(-m // (4 * 256 // lanes)), "splits": 1}
    contiguous = (a == 1 or f.strides[0] == c * d) and (c == 1 or f.strides[2] == d)
    if b == 1 and d * f.size <= 1024 and contiguous:
        lanes = min(32, pow2(-(-d // 16)))
        step = 256 // lanes
        tile = max(1, TILE // (d * f.size * step)) * step
        while tile > step and -(-m // tile) < 8 * sms:
            tile //= 2
        tile = max(step, tile // step * step)
        return {"kernel": "spanned_rows", "lanes": lanes, "tile": tile, "blocks": -(-m // tile), "splits": 1}
    if m >= 32 * sms and d * f.size * b <= PIECE:
        return {"kernel": "rows", "team": 32, "each": d, "pieces": 1, "per": b, "blocks": -(-m // 8), "splits": 1}
    # blocks of a multiprocessor; packs in flight
    resident, each = (3, 4 if f.size == 4 and f.op == "var" else 6) if f.op in ("var", "argmax") else (4, 4)
    splits = max(1, min(-(-8 * resident * sms // m), b * d * f.size // PIECE))
    if splits == 1:
        return {"kernel": "rows", "team": 256, "each": d, "pieces": 1, "per": b, "blocks": m, "splits": 1}
    round_ = each * 256 * vector
    pieces = 1 if b >= splits else min(-(-splits // b), max(1, d // round_))
    each = d if pieces == 1 else -(-d // (pieces * round_)) * round_
    pieces = -(-d // each)
    per = -(-b * pieces // splits)
    splits = -(-b * pieces // per)
    return {"kernel": "rows", "team": 256, "each": each, "pieces": pieces, "per": per, "blocks": m * splits, "splits": splits}


def _columns(f: _Facts, sms: int) -> Mapping[str, Any]:
    a, _, c, _, e = f.shape
    wide = gcd(16 // f.size, e)
    while not _aligned(f, wide):
        wide //= 2
    if f.op in ("var", "argmax"):
        wide = min(wide, 4)  # the state of a column takes three registers
    units = e // wide
    tx = units if units <= 128 else min((128, 96, 112, 80), key=lambda t: -(-units // t) * t)
    ty = 256 // tx
    tiles = -(-units // tx)
    blocks = a * c * tiles
    splits = max(1, min(-(-8 * sms // blocks), f.reduced * tx * wide * f.size // PIECE, 65535))
    per = -(-f.reduced // splits)
    per = max(ty, -(-per // ty) * ty) if splits > 1 else f.reduced
    return {
        "kernel": "columns", "wide": wide, "tx": tx, "ty": ty, "tiles": tiles, "per": per, "blocks": blocks, "splits": -(-f.reduced // per)
    }


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    """State of each part: a value of 4 or 8 bytes, four floats of a variance, a place and a value of 8 bytes each."""
    if config["splits"] == 1:
        return {}
    op = str(p.option("op"))
    words = 4 if op in ("var", "argmax") else 1 if p["x"].dtype in ("f32", "f16", "bf16") else 2
    dtype, count = ("i64", words // 2) if words % 2 == 0 else ("f32", words)
    return {"parts": Meta((config["splits"], p["out"].numel, count), dtype)}


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    f, out = _facts(p), p["out"]
    op, kernel, splits = OPS[f.op], config["kernel"], config["splits"]
    t = DTYPES[p["x"].dtype].cuda
    _, b, c, d, e = f.shape
    xa, xb, xc, xd, _ = f.strides
    results = {"out": ("out", "ptr"), "C": (c, "i64"), "E": (e, "i64"), "oa": (out.strides[0], "i64"), "oc": (out.strides[2], "i64"),
               "oe": (out.strides[4], "i64"), "count": (float(f.reduced), "f32"),
               "freedom": (float(max(f.reduced - int(p.option("correction")), 0)), "f32")}

    def launch(name: str, grid: tuple[int, ...], args: Mapping[str, tuple[Any, str]], shared: int = 0) -> Launch:
        every = {**args, **results}
        return Launch(name, grid, {n: value for n, (value, _) in every.items()}, types=tuple(kind for _, kind in every.values()),
                      block=(256,), shared=shared, pdl=p.device.arch >= 90)

    parts = ("parts" if splits > 1 else None, "ptr")
    m = f.results
    if kernel == "packed_rows":
        args = {"x": ("x", "ptr"), "M": (m, "i64"), "packs": (d * f.size // 16, "i32"), "xa": (xa, "i64"), "xc": (xc, "i64")}
        return [launch(f"packed_rows<{t}, {op}, {config['lanes']}>", (config["blocks"],), args)]
    if kernel == "spanned_rows":
        args = {"x": ("x", "ptr"), "M": (m, "i64"), "D": (d, "i32"), "tile": (config["tile"], "i32")}
        return [
            launch(
                f"spanned_rows<{t}, {op}, {config['lanes']}>", (config["blocks"],), args, (config["tile"] * d * f.size + 15) // 16 * 16 + 32
            )
        ]
    if kernel == "rows":
        args = {"x": ("x", "ptr"), "parts": parts, "M": (m, "i64"), "B": (b, "i64"), "D": (d, "i64"), "each": (config["each"], "i64"),
                "pieces": (config["pieces"], "i64"), "per": (config["per"], "i64"), "splits": (splits, "u32"), "xa": (xa, "i64"),
                "xb": (xb, "i64"), "xc": (xc, "i64")}
        first = launch(f"rows<{t}, {op}, {config['team']}>", (config["blocks"],), args)
    else:
        args = {"x": ("x", "ptr"), "parts": parts, "M": (m, "i64"), "D": (d if b > 1 else 0, "u32"), "R": (f.reduced, "i64"),
                "per": (config["per"], "i64"), "tx": (config["tx"], "i32"), "ty": (config["ty"], "i32"), "tiles": (config["tiles"], "u32"),
                "xa": (xa, "i64"), "xb": (xb, "i64"), "xc": (xc, "i64"), "xd": (xd, "i64")}
        first = launch(f"columns<{t}, {op}, {config['wide']}, {str(b > 1).lower()}>", (config["blocks"], splits), args)
    if splits == 1:
        return [first]
    tx = min(32, pow2(m))
    args = {"parts": ("parts", "ptr"), "M": (m, "i64"), "splits": (splits, "i32"), "tx": (tx, "i32")}
    return [first, launch(f"fold_parts<{t}, {op}>", (-(-m // tx),), args)]
