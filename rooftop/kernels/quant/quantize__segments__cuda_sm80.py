"""The config of quantize__segments__cuda_sm80.cu, from the length of a segment: enough bytes in flight per thread, and few enough registers
for two blocks per multiprocessor."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import element, names, packs, rounding

REGISTERS = 32  # words of x that a thread may hold


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    length = p["x"].shape[1]
    vec, whole = packs(p, "x", length, p["x"].strides[0])
    if whole and element(p).bits == 4 and length == 16:
        vec = 16  # one group a thread
    words = vec * p["x"].itemsize // 4
    count = max(1, -(-length // vec))
    found = {"vec": vec, "units": 1, "threads": 256, "whole": whole, "cluster": 1}
    # lanes of one warp: 16 words a thread, over which the cost of a scale is spread, in steps of 32 bytes at least
    if count * words <= 512:
        lanes = min(32, 1 << (max(1, -(-count * words // 16)) - 1).bit_length())
        lanes = min(32, max(lanes, min(count, 2)))
        if whole and p["x"].itemsize == 4:  # a warp then reads 512 contiguous bytes, and writes whole lines of codes
            lanes = min(32, count)
        lanes = 1 << (lanes - 1).bit_length()
        pieces = -(-count // lanes)
        return {
            **found, "lanes": lanes, "pieces": pieces,
            "units": 4 if lanes == 32 and pieces * words <= 4 else 2 if pieces * words <= 8 else 1
        }
    few, all_ = min(4, REGISTERS // words), REGISTERS // words
    # three resident blocks before two
    shared = [(k, pieces, 512) for pieces in (few, all_) for k in (2, 4, 8)] if p.device.arch >= 90 else []
    for cluster, pieces, most in ((1, few, 512), (1, all_, 512), *shared, (8 if shared else 1, all_, 1024)):
        threads = 32 * -(-count // (32 * pieces * cluster))
        if threads <= most:
            return {**found, "lanes": threads, "pieces": -(-count // (threads * cluster)), "threads": threads, "cluster": cluster}
    return "a segment must fit the registers of one block, or of a cluster of eight"


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    n, length = p["x"].shape
    args, types = typed_arguments(
        p,
        {
            "N": ("i64", n), "L": ("i32", length), "x": ("ptr", 0), "xs": ("i64", p["x"].strides[0]), "over": ("ptr", 0),
            "codes": ("ptr", 0), "scale": ("ptr", 0), "zero": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )
    kernel = instance(
        "quantize_segments", *names(p), rounding(p), bool(p.option("symmetric")), config["vec"], config["lanes"], config["pieces"],
        config["units"], config["threads"], config["whole"], config["cluster"],
    )
    each = config["threads"] // config["lanes"] * config["units"]
    cluster = config["cluster"]
    return [
        Launch(
            kernel, (-(-n // each) * cluster,), args, types=types, block=(config["threads"],), cluster=(cluster,) if cluster > 1 else (),
            pdl=p.device.arch >= 90,
        )
    ]
