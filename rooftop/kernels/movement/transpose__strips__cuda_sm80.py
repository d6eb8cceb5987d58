"""The strips of transpose__strips__cuda_sm80.cu: how wide, how many rows a step, how many steps a block."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem, instance, typed_arguments

SYSTEM = 1024  # bytes of shared memory that a block takes besides its own
THREADS = 2048  # of a multiprocessor
DOWN = 16  # rows that are equally far from 16 bytes, whatever their stride


class Layout(NamedTuple):
    """What the kernel's template arguments of these names are: no two lanes of a warp may meet in a bank of shared memory."""

    left: int
    gap: int
    lanes: int
    apart: int
    turned: bool


def _layout(p: Problem) -> Layout:
    """`lanes` packs of a column are N rows of the ring each: 16 bytes modulo 32 apart for eight lanes, else 32 modulo 64 for four, by the
    pitch or with a gap. So a warp's columns must lie in different words of these 16 or 32 bytes. The next row of a column lies `left`
    further, and the next column `skew`: its packs begin as many rows before as its address says. Where no distance between columns helps,
    each begins with another word of its packs."""
    x, out = p["x"], p["out"]
    size = x.itemsize
    left = x.strides[3] * size % 32
    pack = 16 // size * left
    skew = (size - out.strides[4] * left) % 8
    if pack % 32 == 16:
        return Layout(left, 0, 8, {4: 1, 2: 2, 6: 2, 0: 1}.get(skew, 4), skew == 0 and size < 8)
    return Layout(left, 0 if pack % 64 == 32 else 32, 4, max(1, 4 // size), False)


def _shared(size: int, of: Layout, c: Mapping[str, int]) -> int:
    per, pitch, line = 16 // size, c["wide"] + of.left + (32 if of.left < 16 else 0), c["line"] // size
    ring = -(-line // DOWN) * DOWN + (1 + c["ahead"]) * c["step"]
    return ring // per * (per * pitch + of.gap) + per * pitch + 32


def _blocks(p: Problem, c: Mapping[str, int]) -> int:
    """Resident on a multiprocessor."""
    used = _shared(p["x"].itemsize, _layout(p), c) + SYSTEM
    return min((p.device.shared_per_block + SYSTEM) // used, THREADS // c["wide"])


def _config(size: int, wide: int, ahead: int, line: int, steps: int = 6) -> dict[str, int]:
    return {"wide": wide, "step": max(DOWN, 128 // size), "ahead": ahead, "line": line, "steps": steps}


def choose(p: Problem, head: Head) -> dict[str, int]:
    """A line of each column a step. The widest strips that fit: fewer streams of memory, each of longer pieces. Few steps a block: blocks
    that begin when others end even out what the multiprocessors get of the memory."""
    x = p["x"]
    needed = x.shape[4] * x.itemsize
    of_size = (512, 2, 128) if x.itemsize > 1 else (512, 1, 32), (256, 1, 128) if x.itemsize > 1 else (256, 1, 32), (128, 1, 32)
    fitting = [c for shape in of_size if _blocks(p, c := _config(x.itemsize, *shape))]
    return next((c for c in fitting if c["wide"] <= max(needed, 256)), fitting[-1])


def configs(p: Problem, head: Head) -> list[dict[str, int]]:
    shapes = ((128, 1, 32), (256, 1, 32), (256, 1, 128), (256, 2, 128), (512, 1, 32), (512, 1, 128), (512, 2, 128), (1024, 1, 128))
    found = [_config(p["x"].itemsize, *shape, steps) for shape, steps in product(shapes, (6, 12, 24))]
    return [c for c in found if _blocks(p, c) > 0]


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, out = p["x"], p["out"]
    b1, b2, b3, rows, columns = x.shape
    s1, s2, s3, row, _ = x.strides
    o1, o2, o3, _, oc = out.strides
    of = _layout(p)
    strips = -(-columns * x.itemsize // config["wide"])
    of_strip = -(-(rows + config["line"] // x.itemsize - 1) // config["step"])
    segments = -(-of_strip // config["steps"])
    steps = -(-of_strip // segments)
    args, types = typed_arguments(
        p,
        {
            "R": ("i32", rows), "C": ("i32", columns), "strips_c": ("u32", strips), "segments": ("u32", segments), "steps": ("i32", steps),
            "B2": ("u32", b2), "B3": ("u32", b3), "x": ("ptr", None), "out": ("ptr", None),
            "span": ("i64", (b1 - 1) * s1 + (b2 - 1) * s2 + (b3 - 1) * s3 + (rows - 1) * row + columns),
            "x1": ("i64", s1), "x2": ("i64", s2), "x3": ("i64", s3), "xr": ("i64", row),
            "o1": ("i64", o1), "o2": ("i64", o2), "o3": ("i64", o3), "oc": ("i64", oc),
        },
    )
    kernel = instance(
        "strips", x.itemsize, of.left, of.gap, *(config[n] for n in ("wide", "step", "ahead", "line")), of.lanes, of.apart, of.turned
    )
    return [
        Launch(
            kernel, (strips * segments * b1 * b2 * b3,), args, types=types, block=(config["wide"],),
            shared=_shared(x.itemsize, of, config), pdl=p.device.pdl,
        )
    ]
