"""The config of rms_norm_quantize__cuda_sm80.cu: a row in the registers of some lanes, a warp or a block."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Problem
from rooftop.kernels.quant._fused_rows import launched, layout


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    return layout(p, "x", ("x", "residual", "s"))


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    residual, weight = p.get("residual"), p.get("weight")
    before = {
        "x": ("ptr", 0), "xs": ("i64", p["x"].strides[0]), "residual": ("ptr", 0), "rs": ("i64", residual.strides[0] if residual else 0),
        "weight": ("ptr", 0), "eps": ("f32", p.option("eps")), "s": ("ptr", 0),
    }
    kind = DTYPES[weight.dtype if weight else p["x"].dtype].cuda
    return launched(p, "rms_norm_quantize", "x", config, before, (kind, residual is not None, weight is not None))
