"""Chunks of rows: one travels on a second stream while the product of the next runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Meta, Problem

IDEA = "The rows are divided into chunks of each rank's part; NCCL transfers a chunk, on a stream of its own, while cuBLAS computes the next."
PREDICT = {"speedup": 1.15}
LIMIT = "Slower than without overlap except at the widest shape, on two H200: NCCL takes multiprocessors from the product, and nothing overlaps with the last \
chunk's transfer."
CHUNKS, ROWS = 4, 512


def supports(p: Problem) -> str | None:
    if p["out"].numel == 0 or p["a"].shape[0] == 1:
        return "nothing travels"
    return None if p.option("wire") == "none" else f"this rung sends products as they are; given {p.option('wire')}"


def choose(p: Problem) -> dict[str, Any]:
    return {}


def scratch(p: Problem, config: Any) -> dict[str, Meta]:
    ranks, m, _ = p["a"].shape
    return {"made": Meta((ranks, ranks, m // ranks, p["b"].shape[2]), p["a"].dtype)}


def chunks(rows: int) -> list[slice]:
    step = max(ROWS, -(-rows // CHUNKS))
    return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    a, b, made, out = inputs["a"], inputs["b"], scratch["made"], outputs["out"]
    ranks, m = out.shape[0], out.shape[1]
    for rows in chunks(m):
        for rank in range(ranks):
            made[rank, :, rows] = a[rank].view(ranks, m, a.shape[2])[:, rows] @ b[rank]
        out[:, rows] = made[:, :, rows].float().sum(0).to(out.dtype)


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    import torch.distributed as dist

    from rooftop.ranks import groups

    a, b, ranks = tensors["a"], tensors["b"], dist.get_world_size(group)
    m = a.shape[0] // ranks
    out, under_way = a.new_empty(m, b.shape[1]), []
    for rows in chunks(m):
        made = a.view(ranks, m, a.shape[1])[:, rows].flatten(0, 1) @ b
        under_way.append((groups.scatter_sum(out[rows], made, group), made))
    for work, _ in under_way:
        work.wait()
    return {"out": out}
