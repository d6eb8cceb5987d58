"""The config of swiglu_quantize__cuda_sm80.cu: a row in the registers of some lanes, a warp or a block."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Launch, Problem
from rooftop.kernels.quant._fused_rows import launched, layout


def _shape(p: Problem) -> dict[str, Any] | str:
    return layout(p, "a", ("a", "b"))


def supports(p: Problem, head: Any) -> str | None:
    found = _shape(p)
    return found if isinstance(found, str) else None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    found = _shape(p)
    assert not isinstance(found, str)
    return found


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    before = {"a": ("ptr", 0), "as": ("i64", p["a"].strides[0]), "b": ("ptr", 0), "bs": ("i64", p["b"].strides[0])}
    return launched(p, "swiglu_quantize", "a", config, before)
