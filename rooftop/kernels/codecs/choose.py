"""Which kernel compresses and decompresses blocks: the ones that a GPU has timed."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem


def compress_blocks(p: Problem, named: str = "") -> Chosen | str:
    """A warp takes 32 rows of a chunk. With a row a thread (thread_rows, by name alone) a chunk takes half of the instructions; no GPU has timed it."""
    return in_order(p, named, [("compress_blocks__cuda_sm80", "a block a chunk, any type")])


def decompress_blocks(p: Problem, named: str = "") -> Chosen | str:
    """As compress_blocks."""
    return in_order(p, named, [("decompress_blocks__cuda_sm80", "a block a chunk, any type")])


def compress_ratio(p: Problem, named: str = "") -> Chosen | str:
    """By name alone until a GPU has timed it."""
    return in_order(p, named, [])


def decompress_ratio(p: Problem, named: str = "") -> Chosen | str:
    """By name alone until a GPU has timed it."""
    return in_order(p, named, [])
