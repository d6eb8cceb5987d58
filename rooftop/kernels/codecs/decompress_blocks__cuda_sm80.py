"""The launch of decompress_blocks__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.codecs._chunk_grid import chunks_taken, decompressing, header


def supports(p: Problem, head: Any) -> str | None:
    return chunks_taken(header(p, "y").chunks)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    return decompressing(p, 256)
