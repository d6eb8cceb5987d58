"""The launch of expert_rows_ranks__cuda_sm80.cu if one device plays all ranks: as many blocks for each rank as run concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.ranks import expert_launches, rank_launches


def supports(p: Problem, head: Any) -> str | None:
    ranks, rows, columns = p["x"].shape
    if ranks == 1 or not rows * columns or not int(p.option("rows")):
        return "nothing to send"
    return expert_launches.unable(*_said(p)[:5])


def _said(p: Problem) -> tuple[int, int, int, int, int, bool]:
    """(ranks, tokens, columns, experts of all ranks, capacity, whether rows go back)."""
    (ranks, rows, columns), back, other = p["x"].shape, p.get("routes") is not None, int(p.option("rows"))
    return ranks, other if back else rows, columns, p["counts"].shape[1], rows if back else other, back


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return {"blocks": launches(p, {}, head)[0].grid[0]}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    ranks, tokens, columns, experts, capacity, back = _said(p)
    most = max(1, p.device.sms // ranks)
    return [expert_launches.launch(
        tokens, columns, experts, capacity, ranks, p["x"].dtype, str(p.option("wire")), int(p.option("group")), most, back=back
    )]


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    ranks, tokens, columns, experts, _, _ = _said(p)
    blocks = launches(p, config, head)[0].grid[0]
    whole = expert_launches.sizes(tokens, columns, experts, ranks, str(p.option("wire")), int(p.option("group")), blocks)[1]
    return {
        "room": Meta((ranks, rank_launches.FLAGS + whole), "u8"), "epochs": Meta((ranks, rank_launches.BLOCKS), "u32"),
        "fault": Meta((4,), "i32"),
    }


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return "room", "epochs", "fault"


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """As one rank of several GPUs."""
    from rooftop.ranks import experts

    return experts.of_case(tensors, options, group, "symmetric")
