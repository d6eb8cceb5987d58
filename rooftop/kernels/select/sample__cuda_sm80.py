"""The launch of sample__cuda_sm80.cu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Problem
from rooftop.ops._ordering import LONGEST

THREADS, LIST, ROUND = 256, 1024, 256 * 16  # as in the kernel
CAPACITY = ROUND + LIST + 2048  # entries: a round beside the list, and as many again as come between two selections


def supports(p: Problem, head: Head) -> str | None:
    x = p["logits"]
    if x.shape[1] > 1 and x.strides[1] != 1:
        return "the elements of a row must be neighbours"
    if x.shape[1] >= LONGEST or x.shape[0] >= 2**31:
        return f"rows of at most {LONGEST} elements, fewer than 2^31 of them"
    return "there is nothing to draw" if x.shape[0] == 0 else None


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x = p["logits"]
    rows, n = x.shape
    args: dict[str, tuple[Any, str]] = {
        "logits": ("logits", "ptr"), "xs": (x.strides[0], "i64"), "n": (n, "u32"), "capacity": (CAPACITY, "u32"),
        "index_bits": (max(1, (n - 1).bit_length()), "i32"), "temperature": ("temperature", "f32"), "top_k": ("top_k", "i32"), "top_p": ("top_p", "f32"),
        "min_p": ("min_p", "f32"), "seed": ("seed", "i32"), "out": ("out", "ptr"),
    }  # fmt: skip
    return [
        Launch(
            f"sample_rows<{DTYPES[x.dtype].cuda}>", (rows,), {name: v for name, (v, _) in args.items()}, types=tuple(t for _, t in args.values()),
            block=(THREADS,), shared=CAPACITY * 8, chained=p.device.arch >= 90,
        )
    ]  # fmt: skip
