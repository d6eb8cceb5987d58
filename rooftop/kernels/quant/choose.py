"""Which kernels quantise and dequantise, by what shares a scale: segments of rows (x is [N, L]) or blocks of rows and columns (x is [A, R,
C])."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Meta, Problem
from rooftop.kernels.quant._formats import packs

REGISTERS = 8 * 512 * 128  # bytes of columns that fill all registers of a multiprocessor: nothing would be loaded while codes are stored


def quantize(p: Problem, named: str = "") -> Chosen | str:
    segments = len(p["x"].shape) == 2
    if segments:
        order = [
            ("quantize__groups__cuda_sm80", "short groups: several a warp"),
            ("quantize__flat__cuda_sm80", "rows that are no whole packs: a block a row"),
            ("quantize__segments__cuda_sm80", "a segment in the registers of its lanes"),
        ]
    else:
        order = [
            ("quantize__columns__cuda_sm80", "whole columns, a cluster a strip of them"),
            ("quantize__panels__cuda_sm80", "blocks of few rows: panels of them"),
            ("quantize__tiles__cuda_sm80", "a block in the registers of its threads"),
        ]
    two_passes = ("quantize__two_passes__cuda_sm80", "shares that no registers hold: the largest first, then the codes")
    order.insert(2, two_passes) if _columns_too_tall(p) else order.append(two_passes)
    return in_order(p, named, (*order, ("quantize__triton", "what the others do not take")))


def _columns_too_tall(p: Problem) -> bool:
    x = p["x"]
    if len(x.shape) == 2:
        x, columns = Meta((1, *x.shape), x.dtype, (0, *x.strides), x.align), x.shape[1]
    else:
        columns = max(int(p.option("columns")), 1)
    if columns != 1 or x.shape[2] <= 1:
        return False
    vec, _ = packs(p, "x", x.shape[2], x.strides[1])
    return x.shape[1] * max(4, 32 // vec) * vec * x.itemsize > REGISTERS


def dequantize(p: Problem, named: str = "") -> Chosen | str:
    if len(p["x"].shape) == 2:
        order = (
            ("dequantize__flat__cuda_sm80", "packs of codes, wherever a segment begins"), ("dequantize__segments__cuda_sm80", "segments")
        )
    else:
        order = (("dequantize__tiles__cuda_sm80", "tiles of rows and columns"),)
    return in_order(p, named, order)
