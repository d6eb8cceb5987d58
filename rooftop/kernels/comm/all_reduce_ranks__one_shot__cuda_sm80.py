"""The launch of all_reduce_ranks__one_shot__cuda_sm80.cu if one device plays all ranks: as many blocks for each rank as run
concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.ranks import rank_launches

SHOTS = 1


def supports(p: Problem, head: Any) -> str | None:
    return rank_launches.problem_supported(p, SHOTS)


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return {"blocks": rank_launches.problem_launches(p, SHOTS)[0].grid[0]}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    return rank_launches.problem_launches(p, SHOTS)


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return rank_launches.problem_scratch(p, SHOTS)


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return "room", "epochs", "fault"


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """As one rank of several GPUs."""
    from rooftop.ranks import collectives

    return {"out": collectives.all_reduce(tensors["x"], group, path="symmetric", verify=False, **rank_launches.public(options))}
