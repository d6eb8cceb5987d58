"""The product by cuBLAS, then NCCL's reduce-scatter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Meta, Problem

IDEA = "Two calls of two libraries: cuBLAS computes the whole product, NCCL reduce-scatters it over the ranks."
PREDICT = {"speedup": 1.0}
LIMIT = "No overlap: the link is idle while the tensor cores work, and the reverse."


def supports(p: Problem) -> str | None:
    if p["out"].numel == 0 or p["a"].shape[0] == 1:
        return "nothing travels"
    return None if p.option("wire") == "none" else f"NCCL adds up what is not quantised; given {p.option('wire')}"


def choose(p: Problem) -> dict[str, Any]:
    return {}


def scratch(p: Problem, config: Any) -> dict[str, Meta]:
    return {"made": Meta((p["a"].shape[0], p["a"].shape[1], p["b"].shape[2]), p["a"].dtype)}


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    import torch

    a, b, made, out = inputs["a"], inputs["b"], scratch["made"], outputs["out"]
    torch.bmm(a, b, out=made)
    out.copy_(made.float().sum(0).view(out.shape))


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    import torch.distributed as dist

    from rooftop.ranks import groups

    made = tensors["a"] @ tensors["b"]
    out = made.new_empty(made.shape[0] // dist.get_world_size(group), made.shape[1])
    groups.scatter_sum(out, made, group).wait()
    return {"out": out}
