"""Shared by the kernels of rooftop/kernels/quant: template arguments of formats, and the scales, whose type depends on the problem."""

from __future__ import annotations

from rooftop.core.spec import DTYPES, Problem
from rooftop.formats.number_formats import ELEMENTS, ROUNDINGS, SCALES, Format

IDS = {name: i for i, name in enumerate(("int8", "uint8", "int4", "uint4", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"))}  # _quantized.cuh


def element(p: Problem) -> Format:
    return ELEMENTS[str(p.option("format"))]


def names(p: Problem, x: str = "x") -> tuple[str, int, int]:
    """The C++ type of the elements, and the numbers of the format and of the scale's type in _quantized.cuh."""
    return DTYPES[p[x].dtype].cuda, IDS[element(p).name], SCALES.index(str(p.option("scales")))


def rounding(p: Problem) -> int:
    """The number of the rounding in _quantized.cuh. Floats with noise added are rounded like stochastic ones."""
    name = str(p.option("rounding"))
    return ROUNDINGS.index("stochastic" if name == "dither" and element(p).exponent else name)


def packs(p: Problem, x: str, length: int, stride: int) -> tuple[int, bool]:
    """Elements that a thread processes at once, and whether segments of `length` are whole multiples of them at addresses aligned to 16
    bytes: so many that their codes are a multiple of 4 bytes."""
    f, size, m = element(p), p[x].itemsize, p[x]
    vec = 16 if f.bits == 6 else max(16 // size, 32 // f.bits)
    whole = length % vec == 0 and m.align >= 16 and stride * size % 16 == 0 and p["codes"].align >= 16
    return (vec, True) if whole else (4, False)
