"""Which kernels of radix.cuh and select.cuh compute an argsort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import selecting, sorting


def supports(p: Problem, head: Head) -> str | None:
    return sorting.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return sorting.plan(p)


def scratch(p: Problem, config: Mapping[str, Any], head: Head) -> dict[str, Meta]:
    return sorting.scratch(p, config)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    to = selecting.results(p, 0, p["x"].shape[1], None, "out", None, True)
    return sorting.launches(p, config, selecting.sense(bool(p.option("descending")), str(p.option("nan"))), to, rest=True)
