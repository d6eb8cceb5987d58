"""Launches and scratch memory of decompress_ratio__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Meta, Problem, typed
from rooftop.kernels.codecs._chunk_grid import RATIO_VALUES, chunks_taken, ratio_header

PARTS = 104  # bytes of a chunk's Parts
RING = 27 * 638 * 8  # bytes of shared memory of `walk`


def supports(p: Problem, head: Any) -> str | None:
    if p.option("element") != "f32":
        return f"it decodes float32; the values are {p.option('element')}"
    if p.option("rank") != 1 and p.device.shared_per_block < RING + 4096:
        return f"a block needs {RING + 4096} bytes of shared memory; the device has {p.device.shared_per_block}"
    return chunks_taken(ratio_header(p, "y").chunks)


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    room = ratio_header(p, "y").chunks * RATIO_VALUES
    return {
        "parts": Meta((ratio_header(p, "y").chunks, PARTS // 4), "i32"), "symbols": Meta((room,), "u8"), "numbers": Meta((room,), "u32"),
        "known": Meta((room,), "f64"),
    }


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    h = ratio_header(p, "y")
    _, z, y, x = p["y"].shape
    _, nz, ny, nx = h.tiles
    place: dict[str, tuple[str, Any]] = {"Z": ("i64", z), "Y": ("i64", y), "X": ("i64", x), "nz": ("i32", nz), "ny": ("i32", ny), "nx": ("i32", nx)}
    made: dict[str, tuple[str, Any]] = {n: ("ptr", n) for n in ("parts", "symbols", "numbers")}
    reading = {
        "words": ("ptr", "words"), "count": ("i64", p["words"].numel), "starts": ("ptr", "starts"), "checks": ("ptr", "checks"), **place, **made,
        "damaged": ("ptr", "damaged"),
    }
    values = {
        "words": ("ptr", "words"), "starts": ("ptr", "starts"), "bound": ("ptr", "bound"), **place, **made, "known": ("ptr", "known"),
        "y": ("ptr", "y"), "damaged": ("ptr", "damaged"),
    }

    walking = {n: a for n, a in values.items() if n != "known"}

    def launch(kernel: str, threads: int, args: dict[str, tuple[str, Any]], shared: int = 0) -> Launch:
        return Launch(
            f"{kernel}<{h.element.code}, {h.rank}>", (h.chunks,), **typed(args), block=(threads,), shared=shared,
            pdl=p.device.arch >= 90,
        )

    made_of = [launch("read_chunks", 256, reading), launch("interpolate", 512, values)]
    return made_of if h.rank == 1 else [*made_of, launch("walk", 640, walking, RING)]  # a line has no such predictor
