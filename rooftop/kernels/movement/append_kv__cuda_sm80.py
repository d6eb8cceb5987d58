"""The part of append_kv__cuda_sm80.cu's head that needs Python: the width of packs, caches of two dtypes, 32- and 64-bit integers."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem

LANES = 128  # of one head, at most
CODES = {"f8e4m3": 1, "f8e5m2": 2}
NUMBERS = ("lengths", "page_table", "cu_seqlens", "new_lengths")


def _width(p: Problem) -> int:
    """Elements of a pack, at most 16 bytes of `k`: every address, stride, half of the rotated part and the rest are multiples of it."""
    k, rotary = p["k"], int(p.option("rotary_dim"))
    width = 16 // k.itemsize
    for m in [p[n] for n in ("k", "v", "k_cache", "v_cache")]:
        width = gcd(width, m.align // m.itemsize, *[s for s, n in zip(m.strides[:3], m.shape[:3], strict=True) if n > 1])
    return gcd(width, rotary // 2, k.shape[3] - rotary)


def _lanes(p: Problem, vector: int) -> tuple[int, int]:
    """Lanes of a head that rotate, and packs that are copied."""
    rotary = int(p.option("rotary_dim"))
    return rotary // 2 // vector, (p["k"].shape[3] - rotary) // vector


def _room(p: Problem) -> int:
    """The capacity of a sequence, in positions."""
    table = p.get("page_table")
    return p["k_cache"].shape[1] * (1 if table is None else table.shape[1])


def supports(p: Problem, head: Any) -> str | None:
    if p["k"].numel == 0 or p["k_cache"].numel == 0 or _room(p) == 0:
        return "there is nothing to write"
    rotating, copied = _lanes(p, _width(p))
    lanes = rotating + -(-copied // 2)
    if lanes > LANES:
        return f"a head takes {lanes} lanes at this alignment; at most {LANES}"
    if _room(p) >= 2**31 or p["k_cache"].shape[0] >= 2**31 or p["k"].numel // p["k"].shape[3] * lanes >= 2**31 - 256:
        return "takes fewer than 2**31 positions of a sequence, pages and packs"
    return None


def choose(p: Problem, head: Any) -> Mapping[str, Any]:
    """Small blocks if there are few threads: the slots of a decode step are then looked up on many multiprocessors at once."""
    vector = _width(p)
    rotating, copied = _lanes(p, vector)
    total = p["k"].numel // p["k"].shape[3] * (rotating + -(-copied // 2))
    return {"vector": vector, "threads": 256 if total >= 256 * p.device.sms else 64}


def launches(p: Problem, config: Mapping[str, Any], head: Any) -> list[Launch]:
    vector, threads = int(config["vector"]), int(config["threads"])
    rotating, copied = _lanes(p, vector)
    k, cache, cos, table = p["k"], p["k_cache"], p.get("cos"), p.get("page_table")
    total = k.numel // k.shape[3] * (rotating + -(-copied // 2))
    kinds = DTYPES[k.dtype].cuda, DTYPES[(cos or k).dtype].cuda, str(CODES.get(cache.dtype, 0))
    flags = (str(x).lower() for x in (cos is not None, p.option("layout") == "half"))
    wide = sum(1 << i for i, n in enumerate(NUMBERS) if (m := p.get(n)) is not None and m.dtype == "i64")

    def scales(name: str) -> int:
        m: Meta | None = p.get(name)
        return m.shape[0] if m is not None else 0

    args, types = head.arguments(p, config)
    more: list[tuple[str, str, Any]] = [
        ("k_cache", "ptr", "k_cache"), ("v_cache", "ptr", "v_cache"), ("sequences", "i32", p["lengths"].shape[0]),
        ("pages", "i32", cache.shape[0]), ("page_size", "i32", cache.shape[1]), ("room", "i32", _room(p)), ("wide", "i32", wide),
        ("lengths", "ptr", "lengths"), ("page_table", "ptr", table and "page_table"),
        ("tp", "i64", table.strides[0] if table and table.shape[0] > 1 else 0),
        ("te", "i64", table.strides[1] if table else 0), ("starts", "ptr", p.get("cu_seqlens") and "cu_seqlens"),
        ("new_lengths", "ptr", p.get("new_lengths") and "new_lengths"), ("cos", "ptr", cos and "cos"), ("sin", "ptr", cos and "sin"),
        ("tr", "i64", cos.strides[1] if cos else 0), ("step", "i64", cos.strides[2] if cos and cos.shape[2] > 1 else 1),
        ("table_rows", "i32", min(cos.shape[1], 2**31 - 1) if cos else 0), ("k_scale", "ptr", p.get("k_scale") and "k_scale"),
        ("v_scale", "ptr", p.get("v_scale") and "v_scale"), ("k_scales", "i32", scales("k_scale")), ("v_scales", "i32", scales("v_scale")),
    ]
    return [
        Launch(
            kernel=f"append_kv<{', '.join((*kinds, *flags))}, {vector}, {rotating}, {copied}>",
            grid=(-(-total // threads),), block=(threads,), pdl=p.device.arch >= 90,
            args={**args, **{name: value for name, _, value in more}}, types=(*types, *(kind for _, kind, _ in more)),
        )
    ]
