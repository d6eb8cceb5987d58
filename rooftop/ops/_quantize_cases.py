"""The cases of `rooftop.ops.quantize`: what is timed, and what is easily got wrong."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Case, Input, case
from rooftop.formats.number_formats import FORMATS

FLOATS = ("f32", "f16", "bf16")
EIGHT = ("int8", "e4m3", "int4", "e3m2", "mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "nvfp4")  # those that are timed


def _ways(shape: tuple[int, ...], group: int = 0) -> dict[str, tuple[int, int]]:
    """Granularities of a [A, R, C] tensor as rows and columns that share a scale."""
    if group:
        return {"group": (1, group)}
    return {
        "row": (1, shape[2]), "column": (shape[1], 1), "tensor": (shape[1], shape[2]), "group": (1, 32), "down": (16, 1), "block": (16, 48)
    }


def one(
    name: str, tags: str, shape: tuple[int, ...], how: tuple[int, int], format: str, d: str = "bf16", fill: str = "normal",
    layout: str = "contiguous", why: str = "", **more: Any,
) -> Case:
    f = FORMATS[format]
    given: dict[str, Any] = {
        "x": Input(shape, d, fill, layout), "over": Input((1,), "f32") if f.kind == "nv" else None, "rows": how[0], "columns": how[1]
    }
    given |= {"format": f.element, "scales": f.scale, "symmetric": True, "rounding": "nearest", "seed": 7}
    return case(name, tags=tags, why=why, **{**given, **more})


def _bench() -> list[Case]:
    big = (1, 16384, 8192)
    found = []
    for format in EIGHT:
        f = FORMATS[format]
        ways = {f"groups of {f.group}": (1, f.group)} if f.group else {"rows": (1, 8192), "groups of 128": (1, 128), "blocks": (128, 128)}
        found += [one(f"{format} {what} 16384x8192", "bench", big, how, format) for what, how in ways.items()]
    return [
        *found,
        one("int8 tensor 16384x8192", "bench", big, (16384, 8192), "int8"),
        one("int8 columns 16384x8192", "bench", big, (16384, 1), "int8"),
        one("int8 columns 4096x32768", "bench", (1, 4096, 32768), (4096, 1), "int8"),
        one("int8 groups of 128 down 16384x8192", "bench", big, (128, 1), "int8"),
        one("e4m3 groups of 128 down 16384x8192", "bench", big, (128, 1), "e4m3"),
        one("int8 odd rows 16384x8191", "bench", (1, 16384, 8191), (1, 8191), "int8"),
        one("int8 rows stochastic 16384x8192", "bench", big, (1, 8192), "int8", rounding="stochastic"),
        one("e4m3 groups stochastic 16384x8192", "bench", big, (1, 128), "e4m3", rounding="stochastic"),
        one("int8 rows 8192x8192", "bench", (1, 8192, 8192), (1, 8192), "int8", "f32"),
        one("e4m3 groups of 128 8192x8192", "bench", (1, 8192, 8192), (1, 128), "e4m3", "f32"),
        one("int8 long rows 1024x131072", "bench", (1, 1024, 131072), (1, 131072), "int8"),
        one("uint8 rows asymmetric 16384x8192", "bench", big, (1, 8192), "uint8", symmetric=False),
    ]


def _of_format(format: str, d: str) -> list[Case]:
    f, shape = FORMATS[format], (2, 35, 96)
    found = [one(f"{format} {what}", "edge", shape, how, format, d) for what, how in _ways(shape, f.group).items()]
    found += [
        one(f"{format} odd", "edge", (1, 3, 77), (1, f.group or 77), format, d),
        one(f"{format} odd groups", "edge", (3, 2, 101), (1, f.group or 16), format, d),
        one(f"{format} one", "edge", (1, 1, 1), (1, f.group or 1), format, d),
        one(f"{format} empty", "edge", (1, 0, 64), (1, f.group or 64), format, d),
    ]
    for fill in ("large", "tiny", "nan", "inf", "-inf", "-inf rows", "-0.0", "equal"):
        found.append(one(f"{format} {fill}", "edge", (1, 7, 128), (1, f.group or 128), format, d, fill))
    for rounding in ("stochastic", "zero", "dither"):
        found += [
            one(f"{format} {rounding}", "edge", (1, 6, 256), (1, f.group or 256), format, d, rounding=rounding),
            one(f"{format} {rounding} odd", "edge", (1, 5, 67), (1, f.group or 67), format, d, rounding=rounding),
            one(f"{format} {rounding} inf", "edge", (1, 5, 64), (1, f.group or 64), format, d, "inf", rounding=rounding),
        ]
    if f.exponent:
        return found
    found += [one(f"{format} asymmetric {what}", "edge", shape, how, format, d, symmetric=False) for what, how in _ways(shape).items()]
    for fill in ("large", "tiny", "nan", "inf", "far", "-0.0"):
        found.append(one(f"{format} asymmetric {fill}", "edge", (1, 7, 64), (1, 64), format, d, fill, symmetric=False))
    return [*found, one(f"{format} asymmetric stochastic", "edge", (1, 5, 64), (1, 64), format, d, symmetric=False, rounding="stochastic")]


def cases() -> list[Case]:
    edge = [c for format in FORMATS for d in (FLOATS if format in ("int8", "e4m3") else ("bf16",)) for c in _of_format(format, d)]
    for scales in ("f16", "bf16", "e8m0", "e4m3"):
        for format in ("int8", "e4m3", "uint4", "e2m1"):
            for fill in ("normal", "large", "tiny"):
                edge.append(one(f"{format} scales {scales} {fill}", "edge", (1, 9, 64), (1, 64), format, "f32", fill, scales=scales))
    shapes = {
        (1, 64): (1, 9, 64), (1, 512): (1, 3, 512), (1, 16): (1, 9, 64), (20, 1): (2, 20, 64), (64, 64): (1, 128, 128), (9, 64): (1, 9, 64)
    }
    for how, shape in shapes.items():  # smaller than 2^-14
        for format, symmetric in (("int8", True), ("uint4", False), ("e4m3", True)):
            edge.append(
                one(
                    f"{format} scales f16 subnormal {how[0]}x{how[1]}", "edge", shape, how, format, "f16", "tiny", scales="f16",
                    symmetric=symmetric
                )
            )
    for layout in ("transposed", "sliced", "padded", "strided", "expanded", "offset"):
        for what, how in (("rows", (1, 64)), ("groups", (1, 16)), ("columns", (20, 1))):
            edge.append(one(f"{layout} {what}", "edge", (2, 20, 64), how, "int8", layout=layout))
    edge += [
        one("short rows 300x24", "edge", (1, 300, 24), (1, 24), "int8"),
        one("rows of one pack 37x8", "edge", (1, 37, 8), (1, 8), "int8"),
        one("rows 3x1000", "edge", (1, 3, 1000), (1, 1000), "int8"),
        one("rows 2x9000", "edge", (1, 2, 9000), (1, 9000), "int8"),
        one("odd rows 5x1001", "edge", (1, 5, 1001), (1, 1001), "int8"),
        one("odd rows 3x9003", "edge", (1, 3, 9003), (1, 9003), "e4m3", "f32", rounding="stochastic"),
        one("odd rows nan 4x515", "edge", (1, 4, 515), (1, 515), "uint8", "f16", "nan", symmetric=False),
        one("rows 2x40000", "edge", (1, 2, 40000), (1, 40000), "e4m3"),
        one("a row 1x150001", "edge", (1, 1, 150001), (1, 150001), "int4", "f32", why="beyond the registers of one block"),
        one("groups of 16", "edge", (1, 9, 512), (1, 16), "e4m3"),
        one("groups of 64", "edge", (1, 9, 512), (1, 64), "int4"),
        one("groups of 256", "edge", (1, 9, 512), (1, 256), "int8", "f32"),
        one("groups of 128 down", "edge", (2, 300, 72), (128, 1), "int8"),
        one("blocks of 128", "edge", (2, 200, 264), (128, 128), "e4m3"),
        one("tall columns", "edge", (1, 700, 40), (700, 1), "int8"),
    ]
    huge = one("over 2^31 elements", "edge huge", (1, 65537, 32768), (1, 32768), "int8", why="offsets need 64 bits")
    return [*_bench(), *edge, huge]
