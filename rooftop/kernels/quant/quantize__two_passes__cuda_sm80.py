"""The config of quantize__two_passes__cuda_sm80.cu: the tallest tiles that still give every multiprocessor work."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Meta, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import names, packs, rounding
from rooftop.ops._quantized import groups


def _seen(p: Problem) -> tuple[Meta, int, int, int, int]:
    """x as [A, R, C]; segments are one row each."""
    x = p["x"]
    if len(x.shape) == 2:
        x = Meta((1, *x.shape), x.dtype, (0, *x.strides), x.align)
        rows, columns = 1, x.shape[2]
    else:
        rows, columns = int(p.option("rows")), int(p.option("columns"))
    return x, max(rows, 1), max(columns, 1), groups(x.shape[1], rows), groups(x.shape[2], columns)


def supports(p: Problem, head: Any) -> str | None:
    x = _seen(p)[0]
    if p["x"].shape[-1] > 1 and x.strides[2] != 1:
        return "the elements of a row must be neighbours"
    if x.shape[0] > 65535 or max(x.shape) >= 2**31:
        return "at most 65535 matrices, of fewer than 2^31 rows and columns"
    return None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    x = _seen(p)[0]
    vec, whole = packs(p, "x", x.shape[2], x.strides[1])
    whole = whole and x.strides[0] * x.itemsize % 16 == 0
    vec = vec if whole else 4
    threads = min(256, max(32, 32 * -(-x.shape[2] // (32 * vec))))
    tiles = -(-x.shape[2] // (threads * vec))
    tall = 128
    while tall > 8 and tiles * x.shape[0] * -(-x.shape[1] // tall) * threads < 2048 * p.device.sms:
        tall //= 2
    return {"vec": vec, "whole": whole, "threads": threads, "tall": tall, "down": 0}


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    n = p["scale"].numel
    return {"largest": Meta((n,), "u32"), "unclean": Meta((1,), "u32"), **({} if p.option("symmetric") else {"lowest": Meta((n,), "u32")})}


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return tuple(scratch(p, config, head))


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    x, rows, columns, down, across = _seen(p)
    vec, threads, tall, whole = (config[n] for n in ("vec", "threads", "tall", "whole"))
    symmetric = bool(p.option("symmetric"))
    narrow = across > 1 and columns % vec != 0
    tiles = -(-x.shape[2] // (threads * vec))
    common = {
        "R": ("i32", x.shape[1]), "C": ("i32", x.shape[2]), "xa": ("i64", x.strides[0]), "xs": ("i64", x.strides[1]), "x": ("ptr", 0),
        "rows": ("i32", rows), "columns": ("i32", columns), "down": ("i32", down), "across": ("i32", across), "tiles": ("i32", tiles),
    }
    grid = (tiles * -(-x.shape[1] // tall), x.shape[0])
    found = []
    for name, more in (
        ("quantize_largest", {}),
        ("quantize_encode", {"over": ("ptr", 0), "codes": ("ptr", 0), "scale": ("ptr", 0), "zero": ("ptr", 0), "seed": ("i32", "seed")}),
    ):
        args, types = typed_arguments(p, common)
        args |= {"largest": "largest", "lowest": None if symmetric else "lowest", "unclean": "unclean"}
        extra, kinds = typed_arguments(p, more)
        facts = names(p)
        kernel = (
            instance(name, facts[0], symmetric, vec, tall, threads, whole, narrow)
            if not more
            else instance(name, *facts, rounding(p), symmetric, vec, tall, threads, whole, narrow)
        )
        found.append(
            Launch(
                kernel, grid, {**args, **extra}, types=(*types, "ptr", "ptr", "ptr", *kinds), block=(threads,), pdl=p.device.arch >= 90
            )
        )
    return found
