"""The config of quantize__tiles__cuda_sm80.cu: 128 bytes of x per thread, and enough columns for 256 bytes of a row or more."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import names, packs, rounding
from rooftop.ops._quantized import groups

WORDS = 32  # of x in a thread's registers


def _power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    x, rows, columns = p["x"], int(p.option("rows")), int(p.option("columns"))
    if len(x.shape) != 3:
        return "segments have a kernel of their own"
    vec, whole = packs(p, "x", x.shape[2], x.strides[1])
    if not whole or x.strides[0] * x.itemsize % 16 or (x.strides[2] != 1 and x.shape[2] > 1):
        return "rows must be whole packs on 16-byte boundaries"
    steps = WORDS * 4 // (vec * x.itemsize)
    if columns == 1:
        count = max(16, 1 << max(0, (128 * steps // max(rows, 1)).bit_length() - 1)) if rows > 1 else 0
        count = min(count, 64)
    else:
        count = columns // vec if columns % vec == 0 else 0
    if not _power(count):
        return "columns of a block must be a power of two of packs"
    cluster = 1
    # a tall column: at least 32 bytes of codes of each row, and several blocks
    if columns == 1 and rows * 16 > 512 * steps and p.device.arch >= 90:
        count = max(4, 32 // vec)
        cluster = next((k for k in (2, 4, 8) if -(-rows * count // steps) <= k * 512), 8)
    # a multiprocessor holds 32 blocks: with one warp each they are half of its warps
    least = 64 if columns > 1 and rows * count >= 128 else 32
    threads = max(least, count, 1 << max(0, -(-rows * count // (steps * cluster)) - 1).bit_length())
    if threads > 1024 or rows * count > threads * steps * cluster:
        return "a block must fit the registers of one block of threads, columns those of a cluster of eight"
    if x.shape[0] > 65535 or max(x.shape) >= 2**31:
        return "at most 65535 matrices, of fewer than 2^31 rows and columns"
    return {"vec": vec, "packs": count, "steps": max(1, -(-rows * count // (threads * cluster))), "threads": threads, "cluster": cluster}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    outer, tall, wide = p["x"].shape
    rows, columns = int(p.option("rows")), int(p.option("columns"))
    down, across = groups(tall, rows), groups(wide, columns)
    args, types = typed_arguments(
        p,
        {
            "R": ("i32", tall), "C": ("i32", wide), "xa": ("i64", p["x"].strides[0]), "xs": ("i64", p["x"].strides[1]), "x": ("ptr", 0),
            "rows": ("i32", rows), "down": ("i32", down), "across": ("i32", across), "over": ("ptr", 0), "codes": ("ptr", 0),
            "scale": ("ptr", 0), "zero": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )
    kernel = instance(
        "quantize_tiles", *names(p), rounding(p), bool(p.option("symmetric")), config["vec"], config["packs"], config["steps"],
        config["threads"], columns == 1, config["cluster"],
    )
    cluster = config["cluster"]
    grid = (down * groups(wide, config["packs"] * config["vec"]) * cluster, outer)
    shape = (cluster,) if cluster > 1 else ()
    return [Launch(kernel, grid, args, types=types, block=(config["threads"],), cluster=shape, pdl=p.device.arch >= 90)]
