"""Which kernels of _radix_sort.cuh and _top_k.cuh compute an argsort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.select import _radix_sort, _top_k


def supports(p: Problem, head: Head) -> str | None:
    return _radix_sort.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return _radix_sort.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return _radix_sort.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    to = _top_k.results(p, 0, p["x"].shape[1], None, "out", None, True)
    return _radix_sort.launches(p, config, _top_k.sense(bool(p.option("descending")), str(p.option("nan"))), to, rest=True)
