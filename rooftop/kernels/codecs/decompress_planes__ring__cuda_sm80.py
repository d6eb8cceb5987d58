"""The launch of decompress_planes__ring__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem, typed
from rooftop.formats.elements import ELEMENTS
from rooftop.kernels.codecs._chunk_grid import chunks_taken


def supports(p: Problem, head: Any) -> str | None:
    return chunks_taken(p["damaged"].shape[0])


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    y, chunks = p["y"], p["damaged"].shape[0]
    args: dict[str, tuple[str, Any]] = {
        "words": ("ptr", "words"), "count": ("i64", p["words"].numel), "starts": ("ptr", "starts"), "checks": ("ptr", "checks"),
        "frequencies": ("ptr", "frequencies"), "n": ("i64", y.numel), "vectors": ("bool", y.align >= 16), "chunks": ("i64", chunks),
        "y": ("ptr", "y"), "damaged": ("ptr", "damaged"),
    }
    return [
        Launch(
            f"decompress_planes<{ELEMENTS[str(p.option('element'))].code}>", (min(-(-chunks // 8), 6 * p.device.sms),),
            **typed(args), block=(256,), pdl=p.device.arch >= 90,
        )
    ]
