"""The config of dequantize__segments__cuda_sm80.cu: 32 to 64 bytes of floats per thread."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import names, packs


def choose(p: Problem, head: Any) -> dict[str, Any]:
    length = p["x"].shape[1]
    vec, whole = packs(p, "x", length, length)
    if whole and p["x"].itemsize == 4:
        vec = 4  # 16 bytes of floats: neighbouring threads then write neighbouring 16 bytes
    words = vec * p["x"].itemsize // 4
    count = max(1, -(-length // vec))
    lanes = min(128 if vec == 16 else 256, 1 << (count - 1).bit_length())
    # 6 bits: three words of a pack from the same lines, which fewer threads keep in the L1
    pieces = 1 if vec == 16 else min(-(-count // lanes), max(1, 16 // words))
    units = 2 if pieces == 1 and lanes < 256 and words <= 8 else 1
    return {
        "vec": vec, "lanes": lanes, "pieces": pieces, "units": units, "threads": 256, "chunks": -(-count // (lanes * pieces)),
        "whole": whole
    }


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    n, length = p["x"].shape
    args, types = typed_arguments(
        p,
        {
            "N": ("i64", n), "L": ("i32", length), "chunks": ("i32", config["chunks"]), "codes": ("ptr", 0), "scale": ("ptr", 0),
            "zero": ("ptr", 0), "over": ("ptr", 0), "x": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )
    kernel = instance(
        "dequantize_segments", *names(p), bool(p.option("dither")), config["vec"], config["lanes"], config["pieces"], config["units"],
        config["threads"], config["whole"],
    )
    each = config["threads"] // config["lanes"] * config["units"]
    return [Launch(kernel, (-(-n // each) * config["chunks"],), args, types=types, block=(config["threads"],), pdl=p.device.arch >= 90)]
