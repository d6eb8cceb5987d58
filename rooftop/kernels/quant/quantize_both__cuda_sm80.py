"""The config of quantize_both__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import element, names, rounding
from rooftop.ops._quantized import groups

TILE = 128


def _vec(p: Problem) -> int:
    return 16 if element(p).bits == 6 else 8


def supports(p: Problem, head: Any) -> str | None:
    x, vec = p["x"], _vec(p)
    if x.shape[1] > 1 and x.strides[1] != 1:
        return "neighbours of a row must be neighbours in memory"
    if (
        x.shape[0] % vec or x.shape[1] % vec or x.align < 16 or x.strides[0] * x.itemsize % 16
        or min(p["codes"].align, p["turned"].align) < 16
    ):
        return f"rows and columns must be whole packs of {vec}, rows on 16-byte boundaries"
    return (
        None if max(x.shape) < 2**31 - TILE and groups(x.shape[0], TILE) < 65536 else "fewer than 2^31 columns, and 65535 tiles of 128 rows"
    )


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return {"vec": _vec(p), "threads": 256}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    x = p["x"]
    r, c = x.shape
    args, types = typed_arguments(
        p,
        {
            "R": ("i32", r), "C": ("i32", c), "x": ("ptr", 0), "xs": ("i64", x.strides[0]), "over": ("ptr", 0), "codes": ("ptr", 0),
            "scale": ("ptr", 0), "turned": ("ptr", 0), "turned_scale": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )
    kernel = instance("quantize_both", *names(p), rounding(p), config["vec"], int(p.option("group")), config["threads"])
    grid, shared = (groups(c, TILE), groups(r, TILE)), TILE * (TILE * x.itemsize + 16 + TILE * element(p).bits // 8 + 16)
    return [Launch(kernel, grid, args, types=types, block=(config["threads"],), shared=shared, pdl=p.device.arch >= 90)]
