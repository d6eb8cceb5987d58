"""The config of swiglu_quantize__cuda_sm80.cu: a row in the registers of some lanes, a warp or a block."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.quant._fused_rows import launched, layout


def choose(p: Problem, head: Any) -> dict[str, Any] | str:
    return layout(p, "a", ("a", "b"))


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    before = {"a": ("ptr", 0), "as": ("i64", p["a"].strides[0]), "b": ("ptr", 0), "bs": ("i64", p["b"].strides[0])}
    return launched(p, "swiglu_quantize", "a", config, before)
