"""Launches and scratch memory of compress_ratio__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Meta, Problem, typed
from rooftop.kernels.codecs._chunk_grid import RATIO_VALUES, chunks_taken, ratio_header


def supports(p: Problem, head: Any) -> str | None:
    if p.option("element") != "f32":
        return f"it compresses float32; the values are {p.option('element')}"
    return chunks_taken(ratio_header(p, "x").chunks)


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    chunks = ratio_header(p, "x").chunks
    room = chunks * RATIO_VALUES
    return {
        "symbols": Meta((room,), "u8"), "numbers": Meta((room,), "u32"), "known": Meta((room,), "f64"), "halves": Meta((2 * room,), "u16"),
        "ticket": Meta((1,), "u32"), "states": Meta((chunks,), "u64"),
    }


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return ("ticket", "states")


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    h = ratio_header(p, "x")
    _, z, y, x = p["x"].shape
    _, nz, ny, nx = h.tiles
    values: dict[str, tuple[str, Any]] = {"x": ("ptr", "x")}
    place: dict[str, tuple[str, Any]] = {"Z": ("i64", z), "Y": ("i64", y), "X": ("i64", x), "nz": ("i32", nz), "ny": ("i32", ny), "nx": ("i32", nx)}
    made: dict[str, tuple[str, Any]] = {n: ("ptr", n) for n in ("symbols", "numbers")}
    predicting = {**values, "bound": ("ptr", "bound"), **place, **made, "known": ("ptr", "known")}
    packing = {
        **values, **place, "chunks": ("i64", h.chunks), **made, "halves": ("ptr", "halves"), "bits": ("ptr", "known"),
        **{n: ("ptr", n) for n in ("words", "table", "total", "ticket", "states")},
    }

    def launch(kernel: str, threads: int, args: dict[str, tuple[str, Any]]) -> Launch:
        return Launch(
            f"{kernel}<{h.element.code}, {h.rank}>", (h.chunks,), **typed(args), block=(threads,), pdl=p.device.arch >= 90,
        )

    return [launch("predict", 256, predicting), launch("pack", 256, packing)]
