"""How cross_entropy_bwd__cuda_sm80.cu divides its rows among threads, for any number of rows and classes.

A row is `vectors` vectors of 16 bytes. The work is elementwise: every thread should have about four vectors in flight, and short rows
should not leave threads idle. Short 16-bit rows are bound by instructions: a vector takes a lane about 127, and what all lanes of a row
compute (the terms of the slope) takes 100. So a row of 320 16-bit classes costs 35 instructions a class with 32 lanes and 24 with 16; a
copy leaves time for 28."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem

BLOCK, MOST = 256, 4  # threads; vectors a thread
OF_VECTOR, OF_ROW = 127, 100  # instructions of a lane, from `rooftop inspect`
EXACT, SHORT, FEW = 1, 2, 1024  # soft cap; below so many classes a gradient shows the error of SHORT


def supports(p: Problem, head: Head) -> str | None:
    x = p["input"]
    if not x.numel:
        return "there is nothing to compute"
    if max(x.shape) >= 2**31 - 2**14 or launches(p, choose(p, head), head)[0].grid[0] >= 2**31:
        return f"takes fewer than 2**31 - 2**14 rows and classes, and 2**31 blocks; given {x.shape}"
    return None


def _aligned(p: Problem) -> bool:
    x = p["input"]
    of_vector = 16 // x.itemsize
    return x.shape[1] % of_vector == 0 and all(
        m.align >= 16 and (x.shape[0] == 1 or m.strides[0] % of_vector == 0) for m in (x, p["dinput"])
    )


def _vectors(p: Problem) -> int:
    return max(1, p["input"].shape[1] * p["input"].itemsize // 16)


def _least(p: Problem) -> int:
    """Threads of a row; unaligned rows have one single element a thread."""
    return 1 if _aligned(p) else 32 // p["input"].itemsize


def _warp(p: Problem, lanes: int, vectors: int) -> dict[str, Any]:
    rows = max(1, MOST // vectors if _aligned(p) else 2 // vectors)
    while rows > 1 and p["input"].shape[0] * lanes < rows * 512 * p.device.sms:
        rows //= 2  # more warps are better than more rows a warp
    return {"lanes": lanes, "vectors": vectors, "rows": rows}


def _block(p: Problem, vectors: int) -> dict[str, Any]:
    return {"lanes": 0, "vectors": vectors, "rows": 1}


def choose(p: Problem, head: Head) -> dict[str, Any]:
    vectors = _vectors(p)
    if vectors <= 32 * MOST:
        lanes = min(32, max(_least(p), 1 << (vectors - 1).bit_length()))
        if p["input"].shape[0] * 8 >= 512 * p.device.sms:  # enough warps with eight lanes a row, which read whole lines
            fewer = [n for n in (8, 16, 32) if _least(p) <= n <= lanes and vectors <= MOST * n]
            lanes = min(fewer, key=lambda n: n * (OF_ROW + OF_VECTOR * -(-vectors // n)), default=lanes)
        return _warp(p, lanes, -(-vectors // lanes))
    return _block(p, MOST)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    vectors = _vectors(p)
    warps = [_warp(p, lanes, -(-vectors // lanes)) for lanes in (1, 2, 4, 8, 16, 32) if lanes >= _least(p) and -(-vectors // lanes) <= MOST]
    return warps + [_block(p, each) for each in (1, 2, 3, 4, 6)]


def _bound(p: Problem) -> int:
    cap, x = float(p.option("softcap")), p["input"]
    return 0 if cap == 0 else EXACT if x.itemsize >= 4 or x.shape[1] < FEW or not 1e-30 < cap <= 70 else SHORT


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, dloss = p["input"], p["dloss"]
    rows, columns = x.shape
    args: dict[str, tuple[str, Any]] = {
        "R": ("i32", rows), "C": ("i32", columns), "dloss": ("ptr", "dloss"), "gs": ("i64", dloss.strides[0] if dloss.shape else 0),
        "x": ("ptr", "input"), "xs": ("i64", x.strides[0]), "target": ("ptr", "target"), "normaliser": ("ptr", "normaliser"),
        "divisor": ("ptr", "divisor"), "dx": ("ptr", "dinput"), "ds": ("i64", p["dinput"].strides[0]),
        "ignore": ("i64", int(p.option("ignore_index"))), "smoothing": ("f32", float(p.option("label_smoothing"))),
        "scale": ("f32", float(p.option("lse_square_scale"))), "cap": ("f32", float(p.option("softcap"))),
    }
    lanes, vectors, abreast = config["lanes"], config["vectors"], config["rows"]
    last = f"{str(_aligned(p)).lower()}, {_bound(p)}>"
    element = DTYPES[x.dtype].cuda
    if lanes:
        grid, threads = -(-rows // (abreast * (BLOCK // lanes))), BLOCK
        kernel = f"cross_entropy_bwd_warp<{element}, {lanes}, {vectors}, {abreast}, {last}"
    else:
        parts = -(-_vectors(p) // (BLOCK * vectors))
        grid, threads = rows * parts, max(64, 32 * -(-_vectors(p) // (32 * vectors * parts)))
        args["parts"] = ("i32", parts)
        kernel = f"cross_entropy_bwd_block<{element}, {vectors}, {last}"
    types = tuple(kind for kind, _ in args.values())
    return [Launch(kernel, (grid,), {n: v for n, (_, v) in args.items()}, types=types, block=(threads,), chained=p.device.arch >= 90)]
