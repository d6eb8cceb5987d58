"""Which kernel compresses and decompresses chunks: the one of fewer instructions, which bound them all, that takes the type."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem


def compress_blocks(p: Problem, named: str = "") -> Chosen | str:
    """A row a thread where it fits its registers: half of the instructions of a value a lane."""
    return in_order(p, named, [
        ("compress_blocks__thread_rows__cuda_sm80", "a row of 32 values a thread"), ("compress_blocks__cuda_sm80", "a block a chunk, any type")
    ])


def decompress_blocks(p: Problem, named: str = "") -> Chosen | str:
    """As compress_blocks."""
    return in_order(p, named, [
        ("decompress_blocks__thread_rows__cuda_sm80", "a row of 32 values a thread"), ("decompress_blocks__cuda_sm80", "a block a chunk, any type")
    ])


def compress_planes(p: Problem, named: str = "") -> Chosen | str:
    """A warp a chunk."""
    return in_order(p, named, [("compress_planes__bytes__cuda_sm80", "counts without atomics, coded by a table of steps")])


def decompress_planes(p: Problem, named: str = "") -> Chosen | str:
    """A warp a chunk."""
    return in_order(p, named, [("decompress_planes__ring__cuda_sm80", "each word read once, by whole lines")])


def compress_ratio(p: Problem, named: str = "") -> Chosen | str:
    """One kernel, of float32."""
    return in_order(p, named, [("compress_ratio__cuda_sm80", "a block a chunk")])


def decompress_ratio(p: Problem, named: str = "") -> Chosen | str:
    """One kernel, of float32."""
    return in_order(p, named, [("decompress_ratio__cuda_sm80", "a block a chunk")])
