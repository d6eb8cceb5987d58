"""The launch of decompress_blocks__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.codecs._chunk_grid import chunks_taken, header, instance


def supports(p: Problem, head: Any) -> str | None:
    return chunks_taken(header(p, "y").chunks)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    h = header(p, "y")
    _, z, y, x = p["y"].shape
    _, nz, ny, nx = h.tiles
    args: dict[str, tuple[str, Any]] = {
        "words": ("ptr", "words"), "count": ("i64", p["words"].numel), "starts": ("ptr", "starts"), "checks": ("ptr", "checks"),
        "bound": ("ptr", "bound" if p.get("bound") is not None else None), "Z": ("i64", z), "Y": ("i64", y), "X": ("i64", x),
        "nz": ("i32", nz), "ny": ("i32", ny), "nx": ("i32", nx), "y": ("ptr", "y"), "damaged": ("ptr", "damaged"),
    }
    return [
        Launch(
            instance("decompress_blocks", p), (h.chunks,), {n: v for n, (_, v) in args.items()}, types=tuple(t for t, _ in args.values()),
            block=(256,), chained=p.device.arch >= 90,
        )
    ]
