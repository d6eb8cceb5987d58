"""Which problems kthvalue__cuda_sm90.cu supports, and how rows are divided among blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels._device import held_selecting, selecting


def supports(p: Problem, head: Head) -> str | None:
    return held_selecting.not_taken(p)


def choose(p: Problem, head: Head) -> Mapping[str, Any]:
    return held_selecting.choose(p)


def launches(p: Problem, config: Mapping[str, Any], head: Head) -> list[Launch]:
    to = selecting.sense(False, str(p.option("nan")))
    return held_selecting.launches(p, config, int(p.option("k")), to, "value", "index", None)
