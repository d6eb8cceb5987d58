"""Which kernels compute a topk_mask: those of _threshold_rows.cuh and _top_k.cuh if at most 2048 elements are in, or out, else a sort of the whole row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.select import _radix_sort, _threshold_rows, _top_k


def _few(p: Problem) -> tuple[int, bool]:
    """How many elements are selected, and whether they are in the mask or out of it. For a ragged row only the device knows how many are out."""
    k, n = int(p.option("k")), p["x"].shape[1]
    return (n - k, False) if p.get("lengths") is None and n - k < k and n > _top_k.WARP else (k, True)


def supports(p: Problem, head: Head) -> str | None:
    return _radix_sort.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    k, _ = _few(p)
    return {"way": "fill"} if k == 0 else _threshold_rows.choose(p, k) or _radix_sort.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return {} if config["way"] == "fill" else _threshold_rows.scratch(p, config, _few(p)[0]) or _radix_sort.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    k, inside = _few(p)
    largest, nan = bool(p.option("largest")), str(p.option("nan"))
    if config["way"] == "fill":
        return [_top_k.fill(p, "out", not inside)]
    to = _top_k.results(p, 0, k, None, None, "out", inside)
    if config["way"] == "warp":
        return _threshold_rows.launches(p, config, k, _top_k.sense(largest, nan), 0, to)
    if config["way"] in ("short", "select", "pivot"):
        order = _top_k.sense(largest == inside, nan)
        return [_top_k.fill(p, "out", not inside), *_threshold_rows.launches(p, config, k, order, 0 if inside else _top_k.TURNED, to)]
    to = _top_k.results(p, 0, int(p.option("k")), None, None, "out", True)
    return [_top_k.fill(p, "out", False), *_radix_sort.launches(p, config, _top_k.sense(largest, nan), to, rest=False)]
