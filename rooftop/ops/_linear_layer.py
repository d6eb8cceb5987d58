"""A linear layer as a call of `rooftop.matmul`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.ops.matmul import matmul

if TYPE_CHECKING:
    from torch import Tensor


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None, out_dtype: Any, precision: str,
    implementation: str | None
) -> Tensor:
    """`rooftop.linear`, which documents it."""
    import torch

    for name, t in (("x", x), ("weight", weight)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"linear: {name} is a {type(t).__name__}; it must be a tensor")
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"linear: x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be [..., K] and [N, K]")
    options = {"activation": activation, "out_dtype": out_dtype, "precision": precision, "implementation": implementation}
    single = x.dim() == 1
    rows, more = (x[None], None if residual is None else residual[None]) if single else (x, residual)
    try:
        out = matmul(rows, weight.t(), bias=bias, residual=more, **options)
    except (TypeError, ValueError) as error:
        if str(error).startswith("matmul: "):
            raise type(error)(f"linear: x is matmul's a, and weight.T its b: {error}") from error
        raise
    return out[0] if single else out
