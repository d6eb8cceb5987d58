"""The launch of sample__stream__cuda_sm80.cu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Device, Launch, Problem, typed
from rooftop.ops._ordering import LONGEST

THREADS, LIST, BEHIND, CHUNKS = 256, 1024, 1024, 1024  # as in the kernel
STATIC = 23 * 1024  # bytes of shared memory besides the entries: sums, a list, counters and what the driver reserves
LEAST = 256 * 16 + LIST + 2048  # entries: an iteration besides the list, and as many again as accumulate between two selections
HELD = 36 * 1024  # bytes of shared memory that sample__cuda_sm90 needs beside the logits
MOST = 40  # slots of a thread: the most that a sample leaves near the end of a nucleus


def supports(p: Problem, head: Head) -> str | None:
    x = p["logits"]
    if x.shape[1] > 1 and x.strides[1] != 1:
        return "the elements of a row must be neighbours"
    if x.shape[1] >= LONGEST or x.shape[0] >= 2**31:
        return f"rows of at most {LONGEST} elements, fewer than 2^31 of them"
    return "there is nothing to draw" if x.shape[0] == 0 else None


def entries(device: Device) -> int:
    """Entries of a block with two resident blocks a multiprocessor, or with one if that is too little."""
    two = (device.shared_per_block // 2 - STATIC) // 8
    return min(two if two >= LEAST else (device.shared_per_block - STATIC) // 8, MOST * THREADS + BEHIND) // 4 * 4


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    n, room = p["logits"].shape[1], entries(p.device)
    return {"slots": (room - BEHIND) // THREADS, "capacity": room, "sample": 4096 if n >= 16 * 4096 else 1024}


def for_any_rows(p: Problem, head: Head) -> Mapping[str, Any]:
    """Under `rooftop.invariant()`: as always. Weights are whole numbers, whose sums have no order."""
    return choose(p, head)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    x = p["logits"]
    rows, n = x.shape
    args: dict[str, tuple[Any, str]] = {
        "logits": ("logits", "ptr"), "xs": (x.strides[0], "i64"), "n": (n, "u32"), "slots": (config["slots"], "u32"),
        "capacity": (config["capacity"], "u32"), "m": (config["sample"], "u32"), "index_bits": (max(1, (n - 1).bit_length()), "i32"),
        "temperature": ("temperature", "f32"), "top_k": ("top_k", "i32"), "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"),
        "seed": ("seed", "i32"), "seeds": (None if p.get("seeds") is None else "seeds", "ptr"), "out": ("out", "ptr"),
    }
    return [
        Launch(
            f"sample_stream<{DTYPES[x.dtype].cuda}>", (rows,), **typed(args, value_first=True), block=(THREADS,),
            shared=8 * config["capacity"], pdl=p.device.arch >= 90,
        )
    ]
