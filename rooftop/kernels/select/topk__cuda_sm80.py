"""Which kernels compute a topk: those of pivot_rows.cuh and select.cuh for k up to 2048, above it a sort of the whole row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import pivoting, selecting, sorting


def supports(p: Problem, head: Head) -> str | None:
    if int(p.option("k")) == 0:
        return "there is nothing to select"
    return sorting.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return pivoting.choose(p, int(p.option("k"))) or sorting.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return pivoting.scratch(p, config, int(p.option("k"))) or sorting.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    k = int(p.option("k"))
    order = selecting.sense(bool(p.option("largest")), str(p.option("nan")))
    to = selecting.results(p, 0, k, "values", "indices", None, True)
    if config["way"] in ("warp", "short", "select", "pivot"):
        return pivoting.launches(p, config, k, order, 0, to)
    return sorting.launches(p, config, order, to, rest=False)
