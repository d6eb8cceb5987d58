"""The epilogue stores each tile into the peer's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels._device import gemm_comm
from rooftop.kernels._device.gemm_comm import Config

IDEA = (
    "The epilogue stores tiles directly at addresses in the peer's memory. There are no flags and no copies afterwards, and every multiprocessor multiplies."
)
PREDICT = {"speedup": 1.15}
LIMIT = "The products are Triton's, and the sum at the end reads all parts once more; the link is not the limit."


def supports(p: Problem) -> str | None:
    return gemm_comm.refusal(p, ("none",))


def choose(p: Problem) -> Config:
    return gemm_comm.chosen(p["out"].shape[1], p["b"].shape[2], p.device.sms)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return gemm_comm.places(p)


def launches(p: Problem, config: Config) -> list[Launch]:
    ranks = range(p["a"].shape[0])
    return [*(gemm_comm.product(p, config, rank, reader) for rank in ranks for reader in ranks), *gemm_comm.totals(p)]


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    return gemm_comm.on_ranks(tensors, group, "none", lambda a, b, place, config, own: gemm_comm.run(a, b, place, config))
