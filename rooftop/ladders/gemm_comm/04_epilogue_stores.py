"""The epilogue stores each tile into the peer's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.comm import _remote_stores
from rooftop.kernels.comm._remote_stores import Config

IDEA = (
    "The epilogue stores tiles directly at addresses in the peer's memory. There are no flags and no copies afterwards, and every multiprocessor multiplies."
)
PREDICT = {"speedup": 1.15}
LIMIT = "The products are Triton's, and the sum at the end reads all parts once more; the link is not the limit."


def supports(p: Problem) -> str | None:
    return _remote_stores.refusal(p, ("none",))


def choose(p: Problem) -> Config:
    return _remote_stores.chosen(p["out"].shape[1], p["b"].shape[2], p.device.sms)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return _remote_stores.places(p)


def launches(p: Problem, config: Config) -> list[Launch]:
    ranks = range(p["a"].shape[0])
    return [*(_remote_stores.product(p, config, rank, reader) for rank in ranks for reader in ranks), *_remote_stores.totals(p)]


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    return _remote_stores.on_ranks(tensors, group, "none", lambda a, b, place, config, own: _remote_stores.run(a, b, place, config))
