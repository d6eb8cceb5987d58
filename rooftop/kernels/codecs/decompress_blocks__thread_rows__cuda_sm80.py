"""The launch of decompress_blocks__thread_rows__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.codecs._chunk_grid import chunks_taken, decompressing, header, narrow


def supports(p: Problem, head: Any) -> str | None:
    return narrow(p) or chunks_taken(header(p, "y").chunks)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    return decompressing(p, 128)
