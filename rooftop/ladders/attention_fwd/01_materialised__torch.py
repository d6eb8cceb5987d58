"""out = softmax(scale · q kᵀ) v in torch, as the formula reads: all scores in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem

IDEA = "The formula as written: a product, a softmax in float32, a product. Each of the steps writes every score to memory and reads it again."
PREDICT: dict[str, float] = {}
LIMIT = "Bytes: some 20 for each score, while its 512 operations take the time of two bytes. And memory that grows with the square of the length."


def supports(p: Problem) -> str | None:
    given = [n for n, m in p.tensors if m is not None and n not in ("q", "k", "v", "out", "lse")]
    if given or p.option("softcap") or p.option("dropout_p") or p.option("left") != -1 or p.option("right") not in (-1, 0):
        return "this ladder takes plain and causal attention"
    if p["q"].dtype not in ("f16", "bf16"):
        return f"this ladder takes f16 and bf16; given {p['q'].dtype}"
    if p["q"].numel == 0 or p["k"].numel == 0:
        return "there is nothing to compute"
    return None


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    import torch

    q, k, v = (inputs[n].transpose(1, 2) for n in "qkv")
    group, rows, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    z = torch.matmul(q.float(), k.float().mT) * inputs["scale"]
    if inputs["right"] == 0:
        ahead = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(keys - rows + 1)
        z.masked_fill_(ahead, float("-inf"))
    lse = z.logsumexp(-1)
    weights = (z - lse.where(lse != float("-inf"), 0.0)[..., None]).exp()
    outputs["out"].copy_(torch.matmul(weights.to(v.dtype), v).transpose(1, 2))
    outputs["lse"].copy_(lse)
