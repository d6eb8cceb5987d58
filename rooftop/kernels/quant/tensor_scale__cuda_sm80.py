"""The config of tensor_scale__cuda_sm80.cu: eight blocks a multiprocessor, fewer where there are not so many pieces."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance, typed_arguments

PIECE = 256 * 8 * 16  # bytes
RESIDENT = 8  # blocks of 256 threads that a multiprocessor holds


def _pieces(p: Problem) -> tuple[int, int]:
    """All pieces, and those of a row."""
    rows, columns = p["x"].shape
    across = -(-columns * p["x"].itemsize // PIECE)
    return rows * across, across


def supports(p: Problem, head: Any) -> str | None:
    x = p["x"]
    if len(x.shape) != 2 or (x.shape[1] > 1 and x.strides[1] != 1):
        return "the elements of a row must be neighbours"
    return None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    x = p["x"]
    rows = x.shape[0] == 1 or x.strides[0] * x.itemsize % 16 == 0
    whole = x.align >= 16 and rows and x.shape[1] * x.itemsize % 16 == 0
    return {"whole": whole, "blocks": max(1, min(RESIDENT * p.device.sms, _pieces(p)[0]))}


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return {"parts": Meta((config["blocks"],), "u32")}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    x, (pieces, across), pdl = p["x"], _pieces(p), p.device.arch >= 90
    args, types = typed_arguments(
        p,
        {
            "pieces": ("i64", pieces), "across": ("i64", max(across, 1)), "L": ("i64", x.shape[1]), "xs": ("i64", x.strides[0]),
            "x": ("ptr", 0),
        },
    )
    kernel = instance("largest_of_pieces", DTYPES[x.dtype].cuda, config["whole"])
    first = Launch(
        kernel, (config["blocks"],), {**args, "parts": "parts"}, types=(*types, "ptr"), block=(256,), pdl=pdl
    )
    args = {"count": config["blocks"], "largest": float(p.option("largest")), "parts": "parts", "scale": "scale"}
    return [first, Launch("largest_of_all", (1,), args, types=("i32", "f32", "ptr", "ptr"), block=(256,), pdl=pdl)]
