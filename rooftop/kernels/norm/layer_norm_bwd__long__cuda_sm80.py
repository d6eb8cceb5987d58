"""Which rows layer_norm_bwd__long__cuda_sm80.cu supports, and how they are divided among blocks: rooftop/kernels/_device/norm_long_bwd.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import norm_bwd_configs, norm_long_bwd


def supports(p: Problem, head: Head) -> str | None:
    """16-bit statistics are computed in one pass about a pivot, an element of the row's first vector of 16 bytes. A row without a whole vector would have the
    pivot zero: if its elements are far from zero, cancellation would lose the digits of their spread."""
    s = p["s"]
    if s.itemsize == 2 and s.shape[1] < 15 and not norm_bwd_configs.of(p).aligned:
        return f"a row off 16 bytes must have at least 15 elements of 16 bits, a whole vector wherever it starts; given {s.shape[1]}"
    return norm_long_bwd.refuses(p, True)


def prefers(p: Problem, head: Head) -> int:
    """Measured on an H200: 2.3 times as fast as Triton at 1048576 columns; slower than clusters (0.6 to 0.9), which support rows of up to 512 KiB there."""
    row = p["s"]
    clusters = p.device.arch >= 90 and row.shape[1] * row.itemsize <= 524288
    return 1 if not clusters and norm_bwd_configs.refuses(p) and not supports(p, head) else 0


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return norm_long_bwd.choose(p, True)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return norm_long_bwd.configs(p, True)


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return norm_long_bwd.scratch(p, config, True)


def zeroed(p: Problem, config: Any, head: Head) -> tuple[str, ...]:
    return ("mail",)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return norm_long_bwd.launches(p, config, head, True)
