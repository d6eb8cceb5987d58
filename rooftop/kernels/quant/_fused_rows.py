"""Shared by the launches of kernels that quantise rows they have computed (_fused_rows.cuh): some lanes, a warp or a block process a row,
in packs of 8 elements (16 for 6 bits, 4 if rows are not whole packs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooftop.core.spec import Launch, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import element, names, rounding

VALUES = 32  # of a row in a thread's registers


def layout(p: Problem, x: str, read: Sequence[str], turned: int = 0) -> dict[str, Any] | str:
    """vec, lanes, pieces, threads, group, whole for rows [N, L] of `x`; or the reason why they are not supported. read: the tensors with
    the shape of `x`.
    turned: neighbours that are computed together."""
    n, length = p[x].shape
    f = element(p)
    whole = f.bytes(length) * 8 == length * f.bits and length % (16 if f.bits == 6 else 8) == 0 and p["codes"].align >= 16
    for name in read:
        if (m := p.get(name)) is not None:
            if m.shape[1] > 1 and m.strides[1] != 1:
                return f"the elements of a row must be neighbours in {name}"
            whole = whole and m.align >= 16 and m.strides[0] * m.itemsize % 16 == 0
    vec = (16 if f.bits == 6 else 8) if whole else 4
    group = int(p.option("group"))
    if group and not 1 <= group // vec <= 32:
        return f"groups of {group} are not 1 to 32 packs of {vec}, which rows that are no whole packs on 16 bytes lie in"
    if n >= 2**31 or length >= 2**31:
        return "fewer than 2^31 rows and columns"
    if turned // vec > 32:
        return f"a rotation of {turned} must be 1 to 32 packs of {vec}, which rows that are no whole packs on 16 bytes lie in"
    count = max(1, -(-length // vec))
    most = VALUES // vec
    lanes = 32 if group or turned else 1
    while lanes < 32 and lanes * most < count:
        lanes *= 2
    if lanes * most < count:  # a block: a whole number of warps
        lanes = 32 * -(-count // (32 * most))
    if lanes > 1024:
        return f"rows of at most {1024 * VALUES} elements"
    threads = lanes if lanes > 32 else 256
    return {"vec": vec, "lanes": lanes, "pieces": -(-count // lanes), "threads": threads, "group": group // vec, "whole": whole}


def launched(p: Problem, name: str, x: str, config: Any, before: dict[str, tuple[str, Any]], more: Sequence[Any] = ()) -> list[Launch]:
    """The launch of `name<T, format, scale, rounding, vec, pieces, lanes, threads, group, whole, *more>`. before: the arguments between L
    and `over`."""
    n, length = p[x].shape
    args, types = typed_arguments(
        p,
        {
            "N": ("i64", n), "L": ("i32", length), **before, "over": ("ptr", 0), "codes": ("ptr", 0), "scale": ("ptr", 0),
            "seed": ("i32", "seed"),
        },
    )
    kernel = instance(
        name, *names(p, x), rounding(p), config["vec"], config["pieces"], config["lanes"], config["threads"], config["group"],
        config["whole"], *more
    )
    rows = config["threads"] // config["lanes"]
    return [Launch(kernel, (-(-n // rows),), args, types=types, block=(config["threads"],), pdl=p.device.arch >= 90)]
