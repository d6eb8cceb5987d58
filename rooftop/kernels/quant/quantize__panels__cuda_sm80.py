"""The config of quantize__panels__cuda_sm80.cu: panels much smaller than L2 (half of it for very tall columns), and a lag of as many panels
as must be in flight."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Meta, Problem, instance, typed_arguments
from rooftop.kernels.quant._formats import names, packs, rounding
from rooftop.ops._quantized import groups

UNDER_WAY = 10 << 20  # bytes of x between the two passes over an item: more than the resident blocks of a card hold


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    x, rows, columns = p["x"], int(p.option("rows")), int(p.option("columns"))
    if len(x.shape) != 3 or columns != 1:
        return "takes groups of single columns"
    vec, whole = packs(p, "x", x.shape[2], x.strides[1])
    if not whole or x.strides[0] * x.itemsize % 16 or (x.strides[2] != 1 and x.shape[2] > 1):
        return "rows must be whole packs on 16-byte boundaries"
    rows = max(1, min(rows, x.shape[1]))
    pack = vec * x.itemsize
    count = next((n for n, part in ((256 // pack, 7), (128 // pack, 2)) if n * pack * rows <= p.device.l2_bytes // part), 0)
    if count == 0 or max(x.shape) >= 2**31:
        return "a panel of 128 bytes of each row must fit half of the L2"
    panels = x.shape[0] * groups(x.shape[1], rows) * groups(x.shape[2], count * vec)
    threads, steps = 256, max(1, 128 // pack)
    items = groups(rows, steps * (threads // count))
    if 2 * panels * items >= 2**31:
        return "fewer than 2^31 items"
    lag = max(1, min(panels, 1 + -(-UNDER_WAY // (count * pack * rows))))
    return {"vec": vec, "packs": count, "threads": threads, "steps": steps, "lag": lag, "blocks": 3}


def _counts(p: Problem, config: Any) -> tuple[int, int, int, int]:
    """Groups along the rows, panels along the columns, panels in all and items of each."""
    outer, tall, wide = p["x"].shape
    rows = int(p.option("rows"))
    down, tiles = groups(tall, rows), groups(wide, config["packs"] * config["vec"])
    return down, tiles, outer * down * tiles, groups(min(rows, tall), config["steps"] * (config["threads"] // config["packs"]))


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    n, panels = p["scale"].numel, _counts(p, config)[2]
    found = {"largest": Meta((n,), "u32"), "done": Meta((panels,), "u32"), "unclean": Meta((panels,), "u32"), "ticket": Meta((1,), "u32")}
    return found if p.option("symmetric") else {**found, "lowest": Meta((n,), "u32")}


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return tuple(scratch(p, config, head))


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    x, symmetric = p["x"], bool(p.option("symmetric"))
    down, tiles, panels, items = _counts(p, config)
    args, types = typed_arguments(
        p,
        {
            "R": ("i32", x.shape[1]), "C": ("i32", x.shape[2]), "xa": ("i64", x.strides[0]), "xs": ("i64", x.strides[1]), "x": ("ptr", 0),
            "rows": ("i32", int(p.option("rows"))), "down": ("i32", down), "tiles": ("i32", tiles), "panels": ("i32", panels),
            "items": ("i32", items), "lag": ("i32", min(config["lag"], panels)),
        },
    )
    args |= {"largest": "largest", "lowest": None if symmetric else "lowest", "done": "done", "unclean": "unclean", "ticket": "ticket"}
    more, kinds = typed_arguments(
        p, {"over": ("ptr", 0), "codes": ("ptr", 0), "scale": ("ptr", 0), "zero": ("ptr", 0), "seed": ("i32", "seed")}
    )
    kernel = instance(
        "quantize_panels", *names(p), rounding(p), symmetric, config["vec"], config["packs"], config["steps"], config["threads"],
        config["blocks"]
    )
    return [
        Launch(
            kernel, (2 * panels * items,), {**args, **more}, types=(*types, *("ptr",) * 5, *kinds), block=(config["threads"],),
            pdl=p.device.arch >= 90
        )
    ]
