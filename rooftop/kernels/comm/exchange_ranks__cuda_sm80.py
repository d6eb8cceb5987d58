"""The launch of exchange_ranks__cuda_sm80.cu if one device plays all ranks: as many blocks for each rank as run concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.ranks import exchange, rank_launches


def supports(p: Problem, head: Any) -> str | None:
    return "nothing to send" if p["x"].numel == 0 or p["x"].shape[0] == 1 else None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return {"blocks": launches(p, {}, head)[0].grid[0]}


def _said(p: Problem) -> tuple[str, int, int]:
    """(kind, elements of a row, ranks)."""
    count, kind = p["x"].shape[0], str(p.option("kind"))
    return kind, p["x"].shape[1] // (1 if kind == "all_gather" else count), count


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    kind, count, several = _said(p)
    flags = bool(p.option("hadamard")), bool(p.option("stochastic"))
    most = max(1, p.device.sms // several)
    return [exchange.launch(kind, count, several, p["x"].dtype, str(p.option("wire")), int(p.option("group")), *flags, most)]


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    _, count, several = _said(p)
    whole = exchange.sizes(count, several, str(p.option("wire")), int(p.option("group")))[2]
    return {
        "room": Meta((several, exchange.FLAGS + whole), "u8"), "epochs": Meta((several, exchange.BLOCKS), "u32"), "fault": Meta((4,), "i32")
    }


def zeroed(p: Problem, config: Any, head: Any) -> tuple[str, ...]:
    return "room", "epochs", "fault"


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """As one rank of several GPUs."""
    from rooftop.ranks import collectives

    call = getattr(collectives, str(options["kind"]))
    return {"out": call(tensors["x"], group, path="symmetric", verify=False, **rank_launches.public(options))}
