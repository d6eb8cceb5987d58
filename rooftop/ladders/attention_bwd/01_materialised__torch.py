"""dq, dk and dv in torch, as the formulas read: weights and their gradients in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem

IDEA = "The formulas as written: scores, weights, their gradients and those of the scores are matrices in memory, each written and read again in float32."
PREDICT: dict[str, float] = {}
LIMIT = "Bytes: some 40 for each score, while its 1280 operations take the time of five bytes. And memory that grows with the square of the length."


def supports(p: Problem) -> str | None:
    known = ("q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv")
    if any(m is not None and n not in known for n, m in p.tensors) or p.option("softcap") or p.option("dropout_p"):
        return "this ladder takes plain and causal attention"
    if p.option("left") != -1 or p.option("right") not in (-1, 0):
        return "this ladder takes plain and causal attention"
    if p["q"].dtype not in ("f16", "bf16"):
        return f"this ladder takes f16 and bf16; given {p['q'].dtype}"
    if p["q"].numel == 0 or p["k"].numel == 0:
        return "there is nothing to compute"
    return None


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    import torch

    q, k, v, dout, out = (inputs[n].transpose(1, 2) for n in ("q", "k", "v", "dout", "out"))
    heads, key_heads, rows, keys = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    lse, dlse = inputs["lse"], inputs.get("dlse")
    delta = (dout.float() * out.float()).sum(-1)
    if dlse is not None:
        delta = delta - dlse
    k, v = (x.repeat_interleave(heads // key_heads, 1) for x in (k, v))
    z = torch.matmul(q.float(), k.float().mT) * inputs["scale"]
    if inputs["right"] == 0:
        ahead = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(keys - rows + 1)
        z.masked_fill_(ahead, float("-inf"))
    p = (z - lse.where(lse != float("-inf"), 0.0)[..., None]).exp_()
    dz = p * (torch.matmul(dout.float(), v.float().mT) - delta[..., None])
    dv = torch.matmul(p.to(dout.dtype).mT, dout)
    dz = dz.to(q.dtype)
    dq, dk = torch.matmul(dz, k) * inputs["scale"], torch.matmul(dz.mT, q) * inputs["scale"]
    dk, dv = (x.unflatten(1, (key_heads, heads // key_heads)).sum(2) for x in (dk, dv))
    for name, found in (("dq", dq), ("dk", dk), ("dv", dv)):
        outputs[name].copy_(found.transpose(1, 2))
