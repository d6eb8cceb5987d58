"""The tiles of transpose__cuda_sm80.cu; and of layouts whose contiguous dimension stays contiguous, pieces of rows that are copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.expressions import aligned
from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem, instance, pow2, typed_arguments


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x, out = p["x"], p["out"]
    b1, b2, b3, rows, columns = x.shape
    s1, s2, s3, row, _ = x.strides
    last = {
        "x": ("ptr", None), "out": ("ptr", None),
        "span": ("i64", (b1 - 1) * s1 + (b2 - 1) * s2 + (b3 - 1) * s3 + (rows - 1) * row + columns),
        "x1": ("i64", s1), "x2": ("i64", s2), "x3": ("i64", s3), "xr": ("i64", row),
    }
    if out.strides[4] != 1:
        return [_tiles(p, last)]
    index = "int" if x.numel < 2**31 - 65536 else "long long"
    kernel = instance("runs", x.itemsize, columns % (16 // x.itemsize) == 0 and aligned(x, 16), index)
    args, types = typed_arguments(
        p, {"n": ("i64", x.numel), "C": ("i64", columns), "R": ("i64", rows), "B2": ("i64", b2), "B3": ("i64", b3), **last}
    )
    return [Launch(kernel, (-(-x.numel * x.itemsize // 16384),), args, types=types, block=(256,), pdl=p.device.pdl)]


def _tiles(p: Problem, last: Mapping[str, tuple[str, Any]]) -> Launch:
    """A tile is vr x vc blocks of `per` x `per` elements of vb matrices, 32 KiB. flat: R is as long as the tile, and columns of the output
    lie one after another. shift: tiles overlap by `skip` rows, so that what they write begins on 32 bytes."""
    x, out = p["x"], p["out"]
    _, b2, b3, rows, columns = x.shape
    size, batches = x.itemsize, x.shape[0] * b2 * b3
    per = 8 if size < 4 else 16 // size  # elements of a vector
    vector = per * size  # bytes: 16, or 8 of bytes
    area, side = 32768 // (vector * per), 32 if size == 8 or (size == 1 and rows % per != 0) else 16
    vr = min(pow2(-(-rows // per)), max(side, area // pow2(-(-columns // per))))
    vc = min(pow2(-(-columns // per)), max(32 if size == 8 else 16, area // vr))
    vb = max(1, min(pow2(batches), 256 // (vr * vc)))
    threads = max(32, min(256, vr * vc * vb))
    whole_x, whole_out = columns % per == 0 and aligned(x, vector), rows % per == 0 and aligned(out, vector)
    flat = not whole_out and rows <= per * vr and (columns == 1 or out.strides[4] == rows)
    shift = not whole_out and not flat and vr >= 16
    skip = per * (32 // vector) if shift else 0
    tiles = -(-(rows + max(0, skip - 1)) // (per * vr - skip)) * -(-columns // (per * vc))
    o1, o2, o3, _, oc = out.strides
    args, types = typed_arguments(
        p,
        {
            "R": ("i32", rows), "C": ("i32", columns), "B2": ("u32", b2), "B3": ("u32", b3), "batches": ("u32", batches), **last,
            "o1": ("i64", o1), "o2": ("i64", o2), "o3": ("i64", o3), "oc": ("i64", oc),
        },
    )
    kernel = instance("tile", size, vr, vc, vb, threads, whole_x, whole_out, flat, shift)
    return Launch(
        kernel, (-(-batches // vb) * tiles,), args, types=types, block=(threads,), shared=vr * vc * vb * per * vector, pdl=p.device.pdl
    )
