"""Rounding with a straight-through gradient.

Source: Bengio, Léonard & Courville 2013, "Estimating or propagating gradients through stochastic neurons" (arXiv 1308.3432)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _StraightThrough(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: dict[str, Any]) -> Tensor:
        from rooftop.ops.quantize import quantize

        return quantize(x, **how).dequantize()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def fake_quantize(x: Tensor, format: str = "int8", **how: Any) -> Tensor:
    """`rooftop.quantize(x, format, **how).dequantize()` with the gradient of the identity (straight-through): scales come from `x` itself,
    so that nothing is clipped by more than a rounding. Arguments and errors as for `rooftop.quantize`; the result has the dtype of `x`."""
    return _StraightThrough.apply(x, {"format": format, **how})
