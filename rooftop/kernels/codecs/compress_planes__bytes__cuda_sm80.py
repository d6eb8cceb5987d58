"""Launches and scratch memory of compress_planes__bytes__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Meta, Problem, typed
from rooftop.formats.elements import ELEMENTS
from rooftop.kernels.codecs._chunk_grid import chunks_taken


def supports(p: Problem, head: Any) -> str | None:
    return chunks_taken(p["table"].shape[0])


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return {"counts": Meta((256,), "u64"), "ticket": Meta((1,), "u32"), "states": Meta((p["table"].shape[0],), "u64")}


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return ("counts", "ticket", "states")


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    x, chunks, code, pdl = p["x"], p["table"].shape[0], ELEMENTS[str(p.option("element"))].code, p.device.arch >= 90
    values: dict[str, tuple[str, Any]] = {"x": ("ptr", "x"), "n": ("i64", x.numel), "vectors": ("bool", x.align >= 16)}
    counting = {**values, "counts": ("ptr", "counts")}
    sharing: dict[str, tuple[str, Any]] = {"counts": ("ptr", "counts"), "frequencies": ("ptr", "frequencies")}
    coding = {
        **values, "frequencies": ("ptr", "frequencies"), "chunks": ("i64", chunks), "words": ("ptr", "words"), "table": ("ptr", "table"),
        "total": ("ptr", "total"), "ticket": ("ptr", "ticket"), "states": ("ptr", "states"),
    }

    def launch(kernel: str, grid: int, threads: int, args: dict[str, tuple[str, Any]]) -> Launch:
        return Launch(
            kernel, (grid,), **typed(args), block=(threads,),
            pdl=pdl
        )

    return [
        launch(f"count_symbols<{code}>", min(-(-x.numel // 4096), 6 * p.device.sms), 128, counting),
        launch("share_out", 1, 32, sharing),
        launch(f"compress_planes<{code}>", min(-(-chunks // 4), 6 * p.device.sms), 128, coding),
    ]
