"""Shared by the kernels of rooftop/kernels/codecs: the grid of chunks of a problem, the container's codes of element types, and the
launches of kernels of chunks, which differ in their threads."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, typed
from rooftop.formats.container import Header
from rooftop.formats.elements import ELEMENTS


def header(p: Problem, x: str = "x") -> Header:
    """For a problem of `compress_blocks` or `decompress_blocks`."""
    codec, bound = ("shuffle", "lossless") if p.get("bound") is None else ("fast", "abs")
    return Header(codec, ELEMENTS[str(p.option("element"))], p[x].shape, bound, 0.0, 0.0, int(p.option("rank")))


RATIO_VALUES = 262144  # room for a chunk of `ratio` in scratch memory


def ratio_header(p: Problem, x: str) -> Header:
    """For a problem of `compress_ratio` or `decompress_ratio`."""
    return Header("ratio", ELEMENTS[str(p.option("element"))], p[x].shape, "abs", 0.0, 0.0, int(p.option("rank")))


def instance(name: str, p: Problem) -> str:
    lossy = str(p.get("bound") is not None).lower()
    return f"{name}<{ELEMENTS[str(p.option('element'))].code}, {p.option('rank')}, {lossy}>"


def chunks_taken(chunks: int) -> str | None:
    if not chunks:
        return "there are no values"
    return f"{chunks} chunks; at most 2^31 - 1" if chunks >= 2**31 else None


def narrow(p: Problem) -> str | None:
    """Why a thread cannot hold a row, or None."""
    element = str(p.option("element"))
    return f"the codes of {element} have 64 bits; a row of them does not fit a thread's registers" if ELEMENTS[element].wide else None


def compressing(p: Problem, threads: int) -> list[Launch]:
    h = header(p)
    _, z, y, x = p["x"].shape
    _, nz, ny, nx = h.tiles
    args: dict[str, tuple[str, Any]] = {
        "x": ("ptr", "x"), "bound": ("ptr", "bound" if p.get("bound") is not None else None), "Z": ("i64", z), "Y": ("i64", y),
        "X": ("i64", x), "nz": ("i32", nz), "ny": ("i32", ny), "nx": ("i32", nx), "chunks": ("i64", h.chunks), "words": ("ptr", "words"),
        "table": ("ptr", "table"), "total": ("ptr", "total"), "ticket": ("ptr", "ticket"), "states": ("ptr", "states"),
    }
    return [_launch(instance("compress_blocks", p), h.chunks, args, threads, p)]


def decompressing(p: Problem, threads: int) -> list[Launch]:
    h = header(p, "y")
    _, z, y, x = p["y"].shape
    _, nz, ny, nx = h.tiles
    args: dict[str, tuple[str, Any]] = {
        "words": ("ptr", "words"), "count": ("i64", p["words"].numel), "starts": ("ptr", "starts"), "checks": ("ptr", "checks"),
        "bound": ("ptr", "bound" if p.get("bound") is not None else None), "Z": ("i64", z), "Y": ("i64", y), "X": ("i64", x),
        "nz": ("i32", nz), "ny": ("i32", ny), "nx": ("i32", nx), "y": ("ptr", "y"), "damaged": ("ptr", "damaged"),
    }
    return [_launch(instance("decompress_blocks", p), h.chunks, args, threads, p)]


def _launch(kernel: str, chunks: int, args: dict[str, tuple[str, Any]], threads: int, p: Problem) -> Launch:
    return Launch(
        kernel, (chunks,), **typed(args), block=(threads,),
        pdl=p.device.arch >= 90,
    )
