"""Which kernels compute a kthvalue: those of pivot_rows.cuh and select.cuh up to 2048 elements from either end of the order, else
a sort of the whole row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import pivoting, selecting, sorting


def _ends(p: Problem) -> tuple[int, bool]:
    """The place from the nearer end, counted from 1, and whether that is the largest."""
    k, n = int(p.option("k")), p["x"].shape[1]
    return (n - k + 1, True) if n - k + 1 < k else (k, False)


def supports(p: Problem, head: Head) -> str | None:
    return sorting.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return pivoting.choose(p, _ends(p)[0]) or sorting.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return pivoting.scratch(p, config, _ends(p)[0]) or sorting.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    k, from_largest = _ends(p)
    nan = str(p.option("nan"))
    if config["way"] in ("warp", "short", "select", "pivot"):  # counted from the largest, the order is reversed, also among equal elements
        to = selecting.results(p, k - 1, 1, "value", "index", None, True)
        return pivoting.launches(p, config, k, selecting.sense(from_largest, nan), selecting.TURNED if from_largest else 0, to)
    to = selecting.results(p, int(p.option("k")) - 1, 1, "value", "index", None, True)
    return sorting.launches(p, config, selecting.sense(False, nan), to, rest=False)
