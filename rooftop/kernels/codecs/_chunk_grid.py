"""Shared by the kernels of rooftop/kernels/codecs: the grid of chunks of a problem, and the container's codes of element types."""

from __future__ import annotations

from rooftop.core.spec import Problem
from rooftop.formats.container import Header
from rooftop.formats.elements import ELEMENTS


def header(p: Problem, x: str = "x") -> Header:
    """For a problem of `compress_blocks` or `decompress_blocks`."""
    codec, bound = ("shuffle", "lossless") if p.get("bound") is None else ("fast", "abs")
    return Header(codec, ELEMENTS[str(p.option("element"))], p[x].shape, bound, 0.0, 0.0, int(p.option("rank")))


def instance(name: str, p: Problem) -> str:
    lossy = str(p.get("bound") is not None).lower()
    return f"{name}<{ELEMENTS[str(p.option('element'))].code}, {p.option('rank')}, {lossy}>"


def chunks_taken(chunks: int) -> str | None:
    if not chunks:
        return "there are no values"
    return f"{chunks} chunks; at most 2^31 - 1" if chunks >= 2**31 else None
