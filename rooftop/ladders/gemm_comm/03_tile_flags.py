"""One kernel multiplies and flags each tile as it is finished; another, on a few multiprocessors, copies the rows whose tiles are all finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.comm import _remote_stores
from rooftop.kernels.comm._remote_stores import Config

IDEA = (
    "The transfer need not wait for a chunk: a tile increments the flag of its rows when it is in memory, and a second kernel, on multiprocessors of its own, "
    "waits for the flags and stores the rows into the peer's memory."
)
PREDICT = {"speedup": 1.1}
LIMIT = "A failed idea on two H200: each tile is written, read and written again, sixteen multiprocessors do not multiply, and cuBLAS cannot set flags."
CARRIERS, WIDE = 16, 2048


def supports(p: Problem) -> str | None:
    return _remote_stores.refusal(p, ("none",))


def choose(p: Problem) -> Config:
    return _remote_stores.chosen(p["out"].shape[1], p["b"].shape[2], p.device.sms, CARRIERS)


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    ranks, rows, n = p["out"].shape
    return {**_remote_stores.places(p), "made": Meta((ranks, ranks, rows * n), p["a"].dtype), "flags": Meta((ranks, ranks, -(-rows // config.BM)), "i32")}


def zeroed(p: Problem, config: Config) -> tuple[str, ...]:
    return ("flags",)


def launches(p: Problem, config: Config) -> list[Launch]:
    ranks, rows, n = p["out"].shape
    high, count, found = -(-rows // config.BM), rows * n, []
    for rank in range(ranks):
        for reader in range(ranks):
            made, flags = (rank * ranks + reader) * count, (rank * ranks + reader) * high
            args = {
                "made": "made", "dst": "parts", "flags": "flags", "at_made": made, "at": (reader * ranks + rank) * count, "at_flags": flags,
                "need": -(-n // config.BN), "M": rows, "N": n, "programs": config.carriers, "BM": config.BM, "WIDE": WIDE,
            }
            found += [_remote_stores.product(p, config, rank, reader, "made", made, flags), Launch(_remote_stores.carry, (config.carriers,), args, 8)]
    return [*found, *_remote_stores.totals(p)]


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    import torch

    from rooftop.ranks import products

    def send(a: Any, b: Any, place: Any, config: Config, own: bool) -> None:
        if own:
            _remote_stores.run(a, b, place, config)
            return
        rows, n = a.shape[0], b.shape[1]
        made, flags = a.new_empty(rows, n), torch.zeros(-(-rows // config.BM), dtype=torch.int32, device=a.device)
        main, second = torch.cuda.current_stream(), products.aside(a)
        second.wait_stream(main)
        _remote_stores.run(a, b, made, config, flags=flags)
        with torch.cuda.stream(second):
            across = -(-n // config.BN)
            _remote_stores.carry[(config.carriers,)](made, place, flags, 0, 0, 0, across, rows, n, config.carriers, BM=config.BM, WIDE=WIDE, num_warps=8)
        main.wait_stream(second)

    return _remote_stores.on_ranks(tensors, group, "none", send, CARRIERS)
