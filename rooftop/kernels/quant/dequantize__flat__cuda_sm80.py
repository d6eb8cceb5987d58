"""The config of dequantize__flat__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import element, names, packs


def supports(p: Problem, head: Any) -> str | None:
    x = p["x"]
    if len(x.shape) != 2 or element(p).bits != 8:
        return "takes segments of codes of 8 bits"
    if x.shape[1] < 8 or p["codes"].align < 16 or x.align < 16 or packs(p, "x", x.shape[1], x.shape[1])[1]:
        return "takes segments of 8 elements or more that are no whole packs, and tensors that start on 16 bytes"
    return None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return {"pieces": 4}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    n, length = p["x"].shape
    args, types = typed_arguments(
        p,
        {
            "N": ("i64", n), "L": ("i32", length), "codes": ("ptr", 0), "scale": ("ptr", 0), "zero": ("ptr", 0), "over": ("ptr", 0),
            "x": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )
    kernel = instance("dequantize_flat", *names(p), bool(p.option("dither")), config["pieces"])
    span = 256 * config["pieces"] * (16 // p["x"].itemsize)
    return [Launch(kernel, (-(-n * length // span),), args, types=types, block=(256,), pdl=p.device.arch >= 90)]
