"""Launch and scratch memory of compress_blocks__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.codecs._chunk_grid import chunks_taken, compressing, header


def supports(p: Problem, head: Any) -> str | None:
    return chunks_taken(header(p).chunks)


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return {"ticket": Meta((1,), "u32"), "states": Meta((header(p).chunks,), "u64")}


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return ("ticket", "states")


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    return compressing(p, 256)
