"""out = scale_a · scale_b · a b + bias with operands widened to float32 and multiplied by torch. Contract: rooftop/ops/scaled_matmul.py

For cards whose compilers do not know float8_e4m3fn (before sm_89), and by name. Four times the memory of the operands, and slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.ops.scaled_matmul import reference


def supports(p: Problem) -> str | None:
    return "there is nothing to compute" if p["out"].numel == 0 else None


def prefers(p: Problem) -> int:
    """Where no other kernel takes the input."""
    return -2


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    names = ("a", "b", "scale_a", "scale_b", "bias", "scales", "fast", "to")
    outputs["out"].copy_(reference(*(inputs[n] for n in names)))
