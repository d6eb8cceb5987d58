"""The config of quantize__columns__cuda_sm80.cu: strips of 128 bytes of each row, wider for short groups, and as many blocks per
multiprocessor as its shared memory holds."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import names, packs, rounding
from rooftop.ops._quantized import groups

LINE = 128  # bytes of a row that a block reads, at least: a cache line
SHORT, LONG, TALL = 16 << 10, 68 << 10, 96 << 10  # bytes of a strip: for a group of few rows; so that three fit a multiprocessor; at most


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    x, rows, columns = p["x"], int(p.option("rows")), int(p.option("columns"))
    if len(x.shape) != 3 or columns != 1:
        return "takes groups of single columns"
    vec, whole = packs(p, "x", x.shape[2], x.strides[1])
    if not whole or x.strides[0] * x.itemsize % 16 or (x.strides[2] != 1 and x.shape[2] > 1):
        return "rows must be whole packs on 16-byte boundaries"
    if x.shape[0] > 65535 or max(x.shape) >= 2**31:
        return "at most 65535 matrices, of fewer than 2^31 rows and columns"
    pack, rows = vec * x.itemsize, max(1, min(rows, x.shape[1]))
    count = max(1, (2 * LINE if vec == 16 else LINE) // pack)
    while count < 64 and 2 * count * pack * rows <= SHORT and count * vec < x.shape[2]:
        count *= 2
    most = min(TALL, p.device.shared_per_block - (16 << 10))
    cluster = next(
        (
            k for k in ((1, 2, 4, 8) if p.device.arch >= 90 else (1,))
            if count * pack * -(-rows // k) <= (most if k == 8 else min(LONG, most))
        ), 0
    )
    if cluster == 0 and p.device.arch < 90 and count * pack * rows <= most:
        cluster = 1
    if cluster == 0:
        return "a strip of 128 bytes of each row must fit the shared memory of a block, or of a cluster of eight"
    share = -(-rows // cluster)
    size = share * count * pack
    threads = max(128 if size <= SHORT and vec < 16 else 256 if size <= LONG else 512, count)
    blocks = max(1, min((640 if vec == 16 else 1024) // threads, (p.device.shared_per_block - 2048) // (size + 3072)))
    return {"vec": vec, "packs": count, "threads": threads, "share": share, "cluster": cluster, "blocks": blocks}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    x = p["x"]
    outer, tall, wide = x.shape
    rows = int(p.option("rows"))
    down, share, cluster = groups(tall, rows), config["share"], config["cluster"]
    args, types = typed_arguments(
        p,
        {
            "R": ("i32", tall), "C": ("i32", wide), "xa": ("i64", x.strides[0]), "xs": ("i64", x.strides[1]), "x": ("ptr", 0),
            "rows": ("i32", rows), "share": ("i32", share), "down": ("i32", down), "across": ("i32", wide), "over": ("ptr", 0),
            "codes": ("ptr", 0), "scale": ("ptr", 0), "zero": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )
    kernel = instance(
        "quantize_columns", *names(p), rounding(p), bool(p.option("symmetric")), config["vec"], config["packs"], config["threads"], cluster,
        config["blocks"]
    )
    strip = config["packs"] * config["vec"]
    return [
        Launch(
            kernel, (down * groups(wide, strip) * cluster, outer), args, types=types, block=(config["threads"],),
            cluster=(cluster,) if cluster > 1 else (), shared=share * strip * x.itemsize, pdl=p.device.arch >= 90,
        )
    ]
