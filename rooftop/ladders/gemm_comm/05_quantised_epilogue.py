"""The epilogue quantises each tile and stores codes and scales into the peer's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import gemm_comm
from rooftop.kernels._device.gemm_comm import Config

IDEA = (
    "A tile holds whole groups of 128 columns, so that their scales are computed in registers and half the bytes are sent over the link: for links slower than "
    "the product."
)
PREDICT = {"speedup": 1.0}
LIMIT = "Between two GPUs the link is not the limit: unquantised this is the rung before; quantised, the epilogue's arithmetic and smaller tiles cost more."


def supports(p: Problem) -> str | None:
    return gemm_comm.refusal(p, ("none", "int8"))


def choose(p: Problem) -> Config:
    return gemm_comm.chosen(p["out"].shape[1], p["b"].shape[2], p.device.sms, codes=p.option("wire") != "none")


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return gemm_comm.places(p)


def launches(p: Problem, config: Config) -> list[Launch]:
    ranks = range(p["a"].shape[0])
    return [*(gemm_comm.product(p, config, rank, reader) for rank in ranks for reader in ranks), *gemm_comm.totals(p)]


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    import torch

    wire = str(options["wire"])

    def send(a: Any, b: Any, place: Any, config: Config, own: bool) -> None:
        count = a.shape[0] * b.shape[1]
        if wire == "none":
            gemm_comm.run(a, b, place, config)
        else:
            scales = place[count : count + 4 * (count // gemm_comm.WIRE)].view(torch.float32)
            gemm_comm.run(a, b, place[:count].view(torch.int8), config, scales=scales)

    return gemm_comm.on_ranks(tensors, group, wire, send)
