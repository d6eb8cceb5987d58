"""The product of int8 matrices on a TPU's matrix units, summed in int32: exact. v5e and v6e have twice the rate of bfloat16 for int8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem
from rooftop.kernels._device.tpu import On, jnp
from rooftop.kernels.gemm._tiles_tpu import choose, product, vmem

__all__ = ["FIGURES", "choose", "run", "supports", "vmem"]
FIGURES = ("4096 cubed",)  # compiled for figures


def supports(p: Problem) -> str | None:
    return None


def run(given: Mapping[str, Any], p: Problem, c: Mapping[str, int], on: On) -> dict[str, Any]:
    return {"out": product(given["a"][None], given["b"][None], c, on, jnp.int32, jnp.int32)[0]}
