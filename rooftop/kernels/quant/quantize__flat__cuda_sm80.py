"""The config of quantize__flat__cuda_sm80.cu: 12 or 16 words of x per thread, 32 for the longest rows."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import element, names, packs, rounding


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    x = p["x"]
    if len(x.shape) != 2 or element(p).bits != 8:
        return "takes segments, to codes of 8 bits"
    if not x.contiguous or x.align < 16 or p["codes"].align < 16 or x.shape[0] >= 2**31:
        return "x must be contiguous, tensors start on 16 bytes, and rows be fewer than 2^31"
    if x.shape[1] < 256 or packs(p, "x", x.shape[1], x.strides[0])[1]:
        return "takes rows of 256 elements or more that are no whole packs"
    count = -(-x.shape[1] // (16 // x.itemsize)) + 1  # packs that a row touches
    found = [(pieces, 32 * max(1, -(-count // (32 * pieces)))) for pieces in (4, 3, 8)]
    fitting = [f for f in found[:2] if f[1] <= 512] or [f for f in found[2:] if f[1] <= 1024]
    if not fitting:
        return "a row must fit the registers of one block"
    threads = min(fitting, key=lambda f: f[0] * f[1])[1]  # the choice that leaves the fewest threads without a piece
    return {"threads": threads, "pieces": max(1, -(-count // threads))}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    n, length = p["x"].shape
    args, types = typed_arguments(
        p,
        {
            "N": ("i64", n), "L": ("i32", length), "x": ("ptr", 0), "over": ("ptr", 0), "codes": ("ptr", 0), "scale": ("ptr", 0),
            "zero": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )
    kernel = instance("quantize_flat", *names(p), rounding(p), bool(p.option("symmetric")), config["pieces"], config["threads"])
    return [Launch(kernel, (n,), args, types=types, block=(config["threads"],), pdl=p.device.arch >= 90)]
