"""The part of concat_kv__cuda_sm80.cu's head that needs Python: the width of the words that are copied."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from rooftop.core.spec import Launch, Problem

THREADS = 256


def _width(p: Problem) -> int:
    """Bytes of a word, up to 16: every address, stride and run is a multiple of it."""
    width = gcd(16, p["out"].shape[3] * p["out"].itemsize)
    for m in (p["past"], p["new"], p["out"]):
        if m.numel:
            width = gcd(width, m.align, *(s * m.itemsize for s, n in zip(m.strides[:3], m.shape[:3], strict=True) if n > 1))
    return width


def supports(p: Problem, head: Any) -> str | None:
    if p["out"].numel == 0:
        return "there is nothing to copy"
    if p["out"].nbytes // _width(p) >= 2**32 - 2**11:
        return f"takes fewer than 2**32 - 2**11 words, at this alignment of {_width(p)} bytes"
    if max(p["out"].shape[:3]) >= 2**31:
        return "takes fewer than 2**31 tokens"
    return None


def choose(p: Problem, head: Any) -> Mapping[str, Any]:
    """Two words a thread; one if the card would not be filled."""
    width = _width(p)
    return {"width": width, "reps": 2 if p["out"].nbytes // width >= 2 * 2048 * p.device.sms else 1}


def launches(p: Problem, config: Mapping[str, Any], head: Any) -> list[Launch]:
    width, reps = int(config["width"]), int(config["reps"])
    past, new, out = p["past"], p["new"], p["out"]
    total = out.nbytes // width
    args: dict[str, Any] = {}
    for name, m in (("past", past), ("new", new)):
        args[name] = name if m.numel else None
        args.update({f"{name}{i}": m.strides[i] * m.itemsize // width if m.shape[i] > 1 and m.numel else 0 for i in range(3)})
    args |= {
        "out": "out", "total": total, "B": out.shape[1], "S": out.shape[2], "P": past.shape[2], "L": out.shape[3] * out.itemsize // width
    }
    types = ("ptr", *("i64",) * 3) * 2 + ("ptr", *("u32",) * 5)
    grid = (-(-total // (THREADS * reps)),)
    return [Launch(f"concat<{width}, {reps}>", grid, args, types=types, block=(THREADS,), pdl=p.device.arch >= 90)]
