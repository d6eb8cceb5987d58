"""The launch of _draw_rows.cuh."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Problem, typed

THREADS, LIST, ROUND = 256, 1024, 256 * 16  # as in the kernel
CAPACITY = ROUND + LIST + 2048  # entries: an iteration besides the list, and as many again as accumulate between two selections


def rows_launch(p: Problem, only: int) -> Launch:
    """`only`: as in the kernel."""
    x = p["logits"]
    rows, n = x.shape
    args: dict[str, tuple[Any, str]] = {
        "logits": ("logits", "ptr"), "xs": (x.strides[0], "i64"), "n": (n, "u32"), "capacity": (CAPACITY, "u32"),
        "index_bits": (max(1, (n - 1).bit_length()), "i32"), "temperature": ("temperature", "f32"), "top_k": ("top_k", "i32"),
        "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"), "seed": ("seed", "i32"), "seeds": (None if p.get("seeds") is None else "seeds", "ptr"),
        "only": (only, "i32"), "out": ("out", "ptr"),
    }
    kernel = f"draws::sample_rows<{DTYPES[x.dtype].cuda}, {str(only == 0).lower()}>"
    return Launch(
        kernel, (rows,), **typed(args, value_first=True),
        block=(THREADS,), shared=CAPACITY * 8, pdl=p.device.arch >= 90,
    )
