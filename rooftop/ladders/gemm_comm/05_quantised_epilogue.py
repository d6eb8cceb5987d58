"""The epilogue quantises each tile and stores codes and scales into the peer's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.comm import _remote_stores
from rooftop.kernels.comm._remote_stores import Config

IDEA = (
    "A tile holds whole groups of 128 columns, so that their scales are computed in registers and half the bytes are sent over the link: for links slower than "
    "the product."
)
PREDICT = {"speedup": 1.0}
LIMIT = "Between two GPUs the link is not the limit: unquantised this is the rung before; quantised, the epilogue's arithmetic and smaller tiles cost more."


def supports(p: Problem) -> str | None:
    return _remote_stores.refusal(p, ("none", "int8"))


def choose(p: Problem) -> Config:
    return _remote_stores.chosen(p["out"].shape[1], p["b"].shape[2], p.device.sms, codes=p.option("wire") != "none")


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return _remote_stores.places(p)


def launches(p: Problem, config: Config) -> list[Launch]:
    ranks = range(p["a"].shape[0])
    return [*(_remote_stores.product(p, config, rank, reader) for rank in ranks for reader in ranks), *_remote_stores.totals(p)]


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    import torch

    wire = str(options["wire"])

    def send(a: Any, b: Any, place: Any, config: Config, own: bool) -> None:
        count = a.shape[0] * b.shape[1]
        if wire == "none":
            _remote_stores.run(a, b, place, config)
        else:
            scales = place[count : count + 4 * (count // _remote_stores.WIRE)].view(torch.float32)
            _remote_stores.run(a, b, place[:count].view(torch.int8), config, scales=scales)

    return _remote_stores.on_ranks(tensors, group, wire, send)
