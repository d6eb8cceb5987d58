"""The part of attention_ranges__cuda_sm80.cu's head that needs Python: lengths of 32 or 64 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Problem


def launches(p: Problem, config: Mapping[str, Any], head: Any) -> list[Launch]:
    args, types = head.arguments(p, config)
    wide = sum(1 << i for i, n in enumerate(("lengths", "q_lengths")) if (m := p.get(n)) is not None and m.dtype == "i64")
    args |= {n: int(p.option(n)) for n in ("kv_len", "group", "left", "right")}
    args |= {n: n if p.get(n) is not None else None for n in ("lengths", "q_lengths")} | {"wide": wide}
    grid = (-(-p["begin"].numel // int(config["threads"])),)
    kinds = (*types, "i32", "i32", "i32", "i32", "ptr", "ptr", "i32")
    return [Launch("attention_ranges", grid, args, types=kinds, block=(int(config["threads"]),), pdl=p.device.arch >= 90)]
