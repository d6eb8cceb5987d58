"""The launch of all_reduce_norm_ranks__cuda_sm80.cu if one device plays all ranks: as many blocks for each rank as run concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.ranks import norm, rank_launches


def supports(p: Problem, head: Any) -> str | None:
    return "nothing to send" if p["x"].numel == 0 or p["x"].shape[0] == 1 else None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return {"threads": launches(p, {}, head)[0].block[0]}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    ranks, rows, columns = p["x"].shape
    weight, format = p.get("weight"), str(p.option("format")) or None
    how = norm.Norm(float(p.option("eps")), format, int(p.option("columns")))
    return [norm.launch(
        rows, columns, ranks, p["x"].dtype, weight and weight.dtype, str(p.option("wire")), int(p.option("group")), how, p.device.sms,
        residual=p.get("residual") is not None, normed="codes" if format else "y",
    )]


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    ranks, rows, columns = p["x"].shape
    whole = norm.sizes(rows, columns, ranks, str(p.option("wire")), int(p.option("group")))[1]
    return {
        "room": Meta((ranks, rank_launches.FLAGS + whole), "u8"), "epochs": Meta((ranks, rank_launches.BLOCKS), "u32"),
        "fault": Meta((4,), "i32"),
    }


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return "room", "epochs", "fault"


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """As one rank of several GPUs."""
    return norm.of_case(tensors, options, group, "symmetric")
