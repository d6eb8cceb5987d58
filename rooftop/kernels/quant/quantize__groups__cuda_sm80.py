"""The config of quantize__groups__cuda_sm80.cu: 64 bytes of x per thread, fewer if the card would not be full."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import element, names, packs, rounding

WORDS = 16  # of x in a thread's registers


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    x = p["x"]
    if len(x.shape) != 2 or element(p).bits == 6:
        return "takes segments, to codes of 8 and 4 bits"
    vec, whole = packs(p, "x", x.shape[1], x.shape[1])
    lanes = x.shape[1] // vec
    if not whole or not x.contiguous or lanes not in (1, 2, 4, 8, 16, 32):
        return f"segments must lie one behind the other, each 1 to 32 packs of {vec}, a power of two of them"
    units = WORDS * 4 // (vec * x.itemsize)
    while units > 1 and x.shape[0] * lanes < units * 1024 * p.device.sms:
        units //= 2
    return {"vec": vec, "lanes": lanes, "units": units, "threads": 256}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    count = p["x"].numel // config["vec"]
    args, types = typed_arguments(
        p,
        {
            "packs": ("i64", count), "x": ("ptr", 0), "over": ("ptr", 0), "codes": ("ptr", 0), "scale": ("ptr", 0), "zero": ("ptr", 0),
            "seed": ("i32", "seed"),
        },
    )
    kernel = instance(
        "quantize_groups", *names(p), rounding(p), bool(p.option("symmetric")), config["vec"], config["lanes"], config["units"],
        config["threads"], p.get("over") is not None,
    )
    return [
        Launch(
            kernel, (-(-count // (config["threads"] * config["units"])),), args, types=types, block=(config["threads"],),
            pdl=p.device.arch >= 90
        )
    ]
