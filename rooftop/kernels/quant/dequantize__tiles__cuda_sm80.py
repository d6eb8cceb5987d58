"""The config of dequantize__tiles__cuda_sm80.cu: the tallest tiles that still give every multiprocessor work."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import names, packs
from rooftop.ops._quantized import groups


def supports(p: Problem, head: Any) -> str | None:
    shape = p["x"].shape
    if len(shape) != 3:
        return "segments have a kernel of their own"
    if shape[0] > 65535 or max(shape) >= 2**31:
        return "at most 65535 matrices, of fewer than 2^31 rows and columns"
    return None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    outer, tall, wide = p["x"].shape
    vec, whole = packs(p, "x", wide, wide)
    vec = 8 if whole and vec == 16 else vec  # 6 bits: with 8 elements neighbouring threads write neighbouring 16 bytes
    threads = min(256, max(32, 32 * -(-wide // (32 * vec))))
    # where each column has its own scale, a thread loads as many as it has columns: they serve more rows
    tiles, height = -(-wide // (threads * vec)), 16 if int(p.option("columns")) == 1 else 8
    while height > 4 and tiles * outer * -(-tall // height) * threads < 2048 * p.device.sms:
        height //= 2
    return {"vec": vec, "whole": whole, "threads": threads, "tall": height}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    outer, tall, wide = p["x"].shape
    rows, columns = max(int(p.option("rows")), 1), max(int(p.option("columns")), 1)
    across = groups(wide, columns)
    vec, threads = config["vec"], config["threads"]
    tiles = -(-wide // (threads * vec))
    args, types = typed_arguments(
        p,
        {
            "R": ("i32", tall), "C": ("i32", wide), "rows": ("i32", rows), "columns": ("i32", columns), "down": ("i32", groups(tall, rows)),
            "across": ("i32", across), "tiles": ("i32", tiles), "codes": ("ptr", 0), "scale": ("ptr", 0), "zero": ("ptr", 0),
            "over": ("ptr", 0), "x": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )
    zero = p.get("zero")
    single = columns == 1 and config["whole"] and p["scale"].align >= 16 and (zero is None or zero.align >= 16)
    shared = "WIDE" if across == 1 or columns % vec == 0 else "SINGLE" if single else "NARROW"
    kernel = instance("dequantize_tiles", *names(p), bool(p.option("dither")), vec, config["tall"], threads, config["whole"], shared)
    grid = (tiles * -(-tall // config["tall"]), outer)
    return [Launch(kernel, grid, args, types=types, block=(threads,), pdl=p.device.arch >= 90)]
