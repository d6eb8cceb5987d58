"""Which kernels of selections__cuda_sm80.cu, _top_k_short.cuh and _radix_sort.cuh run topk, topk_mask, kthvalue, sort and argsort: a
selection of up to 2048 elements from an end of the order, above it a sort of the whole row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.select import _radix_sort, _threshold_rows, _top_k

SELECTED = ("warp", "short", "select", "pivot")  # ways of a selection; the others sort


def _wanted(p: Problem) -> tuple[int, bool]:
    """How many elements are selected from an end of the order; 0: all are sorted. And whether that is the end that the call names: of
    topk_mask, whether the selected ones are in the mask and not out of it; of kthvalue, whether it is the smallest. For a ragged row only
    the device knows how many are out."""
    if p.op in ("sort", "argsort"):
        return 0, True
    k, n = int(p.option("k")), p["x"].shape[1]
    if p.op == "topk_mask" and p.get("lengths") is None and n - k < k and n > _top_k.WARP:
        return n - k, False
    if p.op == "kthvalue" and n - k + 1 < k:
        return n - k + 1, False
    return k, True


def supports(p: Problem, head: Head) -> str | None:
    if p.op == "topk" and int(p.option("k")) == 0:
        return "there is nothing to select"
    return _radix_sort.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    k, _ = _wanted(p)
    if k == 0:
        return {"way": "fill"} if p.op == "topk_mask" else _radix_sort.plan(p)
    return _threshold_rows.choose(p, k) or _radix_sort.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    k, _ = _wanted(p)
    if config["way"] == "fill":
        return {}
    return (_threshold_rows.scratch(p, config, k) if k else None) or _radix_sort.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    return {"topk": _topk, "topk_mask": _mask, "kthvalue": _kthvalue}.get(p.op, _sort)(p, config)


def _sort(p: Problem, config: Mapping[str, Any]) -> list[Launch]:
    values, indices = ("values", "indices") if p.op == "sort" else (None, "out")
    to = _top_k.results(p, 0, p["x"].shape[1], values, indices, None, True)
    return _radix_sort.launches(p, config, _top_k.sense(bool(p.option("descending")), str(p.option("nan"))), to, rest=True)


def _topk(p: Problem, config: Mapping[str, Any]) -> list[Launch]:
    k = int(p.option("k"))
    order = _top_k.sense(bool(p.option("largest")), str(p.option("nan")))
    to = _top_k.results(p, 0, k, "values", "indices", None, True)
    if config["way"] in SELECTED:
        return _threshold_rows.launches(p, config, k, order, 0, to)
    return _radix_sort.launches(p, config, order, to, rest=False)


def _mask(p: Problem, config: Mapping[str, Any]) -> list[Launch]:
    k, inside = _wanted(p)
    largest, nan = bool(p.option("largest")), str(p.option("nan"))
    if config["way"] == "fill":
        return [_top_k.fill(p, "out", not inside)]
    to = _top_k.results(p, 0, k, None, None, "out", inside)
    if config["way"] == "warp":
        return _threshold_rows.launches(p, config, k, _top_k.sense(largest, nan), 0, to)
    if config["way"] in SELECTED:
        order = _top_k.sense(largest == inside, nan)
        return [_top_k.fill(p, "out", not inside), *_threshold_rows.launches(p, config, k, order, 0 if inside else _top_k.TURNED, to)]
    to = _top_k.results(p, 0, int(p.option("k")), None, None, "out", True)
    return [_top_k.fill(p, "out", False), *_radix_sort.launches(p, config, _top_k.sense(largest, nan), to, rest=False)]


def _kthvalue(p: Problem, config: Mapping[str, Any]) -> list[Launch]:
    k, from_smallest = _wanted(p)
    nan = str(p.option("nan"))
    if config["way"] in SELECTED:  # counted from the largest, the order is reversed, also among equal elements
        to = _top_k.results(p, k - 1, 1, "value", "index", None, True)
        return _threshold_rows.launches(p, config, k, _top_k.sense(not from_smallest, nan), 0 if from_smallest else _top_k.TURNED, to)
    to = _top_k.results(p, int(p.option("k")) - 1, 1, "value", "index", None, True)
    return _radix_sort.launches(p, config, _top_k.sense(False, nan), to, rest=False)
