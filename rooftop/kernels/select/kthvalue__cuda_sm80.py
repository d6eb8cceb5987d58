"""Which kernels compute a kthvalue: those of _threshold_rows.cuh and _top_k.cuh up to 2048 elements from either end of the order, else
a sort of the whole row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.select import _radix_sort, _threshold_rows, _top_k


def _ends(p: Problem) -> tuple[int, bool]:
    """The place from the nearer end, counted from 1, and whether that is the largest."""
    k, n = int(p.option("k")), p["x"].shape[1]
    return (n - k + 1, True) if n - k + 1 < k else (k, False)


def supports(p: Problem, head: Head) -> str | None:
    return _radix_sort.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _threshold_rows.choose(p, _ends(p)[0]) or _radix_sort.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return _threshold_rows.scratch(p, config, _ends(p)[0]) or _radix_sort.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    k, from_largest = _ends(p)
    nan = str(p.option("nan"))
    if config["way"] in ("warp", "short", "select", "pivot"):  # counted from the largest, the order is reversed, also among equal elements
        to = _top_k.results(p, k - 1, 1, "value", "index", None, True)
        return _threshold_rows.launches(p, config, k, _top_k.sense(from_largest, nan), _top_k.TURNED if from_largest else 0, to)
    to = _top_k.results(p, int(p.option("k")) - 1, 1, "value", "index", None, True)
    return _radix_sort.launches(p, config, _top_k.sense(False, nan), to, rest=False)
