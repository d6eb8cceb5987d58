"""Which kernels compute a topk_mask: those of pivot_rows.cuh and select.cuh if at most 2048 elements are in, or out, else a sort of the whole row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import pivoting, selecting, sorting


def _few(p: Problem) -> tuple[int, bool]:
    """How many elements are selected, and whether they are in the mask or out of it. For a ragged row only the device knows how many are out."""
    k, n = int(p.option("k")), p["x"].shape[1]
    return (n - k, False) if p.get("lengths") is None and n - k < k and n > selecting.WARP else (k, True)


def supports(p: Problem, head: Head) -> str | None:
    return sorting.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    k, _ = _few(p)
    return {"way": "fill"} if k == 0 else pivoting.choose(p, k) or sorting.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return {} if config["way"] == "fill" else pivoting.scratch(p, config, _few(p)[0]) or sorting.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    k, inside = _few(p)
    largest, nan = bool(p.option("largest")), str(p.option("nan"))
    if config["way"] == "fill":
        return [selecting.fill(p, "out", not inside)]
    to = selecting.results(p, 0, k, None, None, "out", inside)
    if config["way"] == "warp":
        return pivoting.launches(p, config, k, selecting.sense(largest, nan), 0, to)
    if config["way"] in ("short", "select", "pivot"):
        order = selecting.sense(largest == inside, nan)
        return [selecting.fill(p, "out", not inside), *pivoting.launches(p, config, k, order, 0 if inside else selecting.TURNED, to)]
    to = selecting.results(p, 0, int(p.option("k")), None, None, "out", True)
    return [selecting.fill(p, "out", False), *sorting.launches(p, config, selecting.sense(largest, nan), to, rest=False)]
