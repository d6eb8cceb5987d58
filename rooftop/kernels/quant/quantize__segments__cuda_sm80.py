"""The config of quantize__segments__cuda_sm80.cu, from the length of a segment: so many bytes in flight a thread, no more registers than two blocks leave."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device.quantised import arguments, names, packs, rounding, text

REGISTERS = 32  # words of x that a thread may hold


def _shape(p: Problem) -> dict[str, Any] | None:
    length = p["x"].shape[1]
    vec, whole = packs(p, "x", length, p["x"].strides[0])
    words = vec * p["x"].itemsize // 4
    count = max(1, -(-length // vec))
    if count <= 32 * min(4, REGISTERS // words):
        lanes = min(32, 1 << (count - 1).bit_length())
        pieces = -(-count // lanes)
        return {"vec": vec, "lanes": lanes, "pieces": pieces, "units": 2 if pieces * words <= 4 else 1, "threads": 256, "whole": whole}
    for pieces, most in ((min(4, REGISTERS // words), 512), (REGISTERS // words, 1024)):
        threads = 32 * -(-count // (32 * pieces))
        if threads <= most:
            return {"vec": vec, "lanes": threads, "pieces": -(-count // threads), "units": 1, "threads": threads, "whole": whole}
    return None


def supports(p: Problem, head: Any) -> str | None:
    return "a segment must fit the registers of one block" if _shape(p) is None else None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    found = _shape(p)
    assert found is not None
    return found


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    n, length = p["x"].shape
    args, types = arguments(
        p,
        {
            "N": ("i64", n), "L": ("i32", length), "x": ("ptr", 0), "xs": ("i64", p["x"].strides[0]), "over": ("ptr", 0), "codes": ("ptr", 0),
            "scale": ("ptr", 0), "zero": ("ptr", 0), "seed": ("i32", "seed"),
        },
    )  # fmt: skip
    kernel = text(
        "quantize_segments", *names(p), rounding(p), bool(p.option("symmetric")), config["vec"], config["lanes"], config["pieces"], config["units"],
        config["threads"], config["whole"],
    )  # fmt: skip
    each = config["threads"] // config["lanes"] * config["units"]
    return [Launch(kernel, (-(-n // each),), args, types=types, block=(config["threads"],), chained=p.device.arch >= 90)]
