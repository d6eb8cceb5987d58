"""The config of softmax_quantize__cuda_sm80.cu: a row in the registers of some lanes, a warp or a block."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.quant._fused_rows import launched, layout


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    return layout(p, "x", ("x",))


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    return launched(p, "softmax_quantize", "x", config, {"x": ("ptr", 0), "xs": ("i64", p["x"].strides[0])})
