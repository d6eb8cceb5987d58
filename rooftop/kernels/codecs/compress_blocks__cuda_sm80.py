"""Launch and scratch memory of compress_blocks__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.codecs._chunk_grid import chunks_taken, header, instance


def supports(p: Problem, head: Any) -> str | None:
    return chunks_taken(header(p).chunks)


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return {"ticket": Meta((1,), "u32"), "states": Meta((header(p).chunks,), "u64")}


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return ("ticket", "states")


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    h = header(p)
    _, z, y, x = p["x"].shape
    _, nz, ny, nx = h.tiles
    args: dict[str, tuple[str, Any]] = {
        "x": ("ptr", "x"), "bound": ("ptr", "bound" if p.get("bound") is not None else None), "Z": ("i64", z), "Y": ("i64", y),
        "X": ("i64", x), "nz": ("i32", nz), "ny": ("i32", ny), "nx": ("i32", nx), "chunks": ("i64", h.chunks), "words": ("ptr", "words"),
        "table": ("ptr", "table"), "total": ("ptr", "total"), "ticket": ("ptr", "ticket"), "states": ("ptr", "states"),
    }
    return [
        Launch(
            instance("compress_blocks", p), (h.chunks,), {n: v for n, (_, v) in args.items()}, types=tuple(t for t, _ in args.values()),
            block=(256,), chained=p.device.arch >= 90,
        )
    ]
