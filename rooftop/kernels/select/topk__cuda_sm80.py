"""Which kernels compute a topk: those of _threshold_rows.cuh and _top_k.cuh for k up to 2048, above it a sort of the whole row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.select import _radix_sort, _threshold_rows, _top_k


def supports(p: Problem, head: Head) -> str | None:
    if int(p.option("k")) == 0:
        return "there is nothing to select"
    return _radix_sort.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _threshold_rows.choose(p, int(p.option("k"))) or _radix_sort.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return _threshold_rows.scratch(p, config, int(p.option("k"))) or _radix_sort.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    k = int(p.option("k"))
    order = _top_k.sense(bool(p.option("largest")), str(p.option("nan")))
    to = _top_k.results(p, 0, k, "values", "indices", None, True)
    if config["way"] in ("warp", "short", "select", "pivot"):
        return _threshold_rows.launches(p, config, k, order, 0, to)
    return _radix_sort.launches(p, config, order, to, rest=False)
