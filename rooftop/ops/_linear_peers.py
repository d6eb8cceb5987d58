"""What a user would call in place of linear_cross_entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.ops._peers import one_dtype

if TYPE_CHECKING:
    from torch import Tensor


def torch_forward(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> tuple[Tensor, None, None, None, None, None]:
    """The loss alone, all logits in memory."""
    import torch

    ignore, reduction, smoothing, scale, cap, start, classes, *_ = rest
    if scale or start or classes:
        raise ValueError("torch's cross_entropy has no term of the log-normaliser and takes no slice of the vocabulary")
    z = torch.nn.functional.linear(x, weight, None if bias is None else bias.to(x.dtype)).float()
    z = cap * (z / cap).tanh() if cap else z
    loss = torch.nn.functional.cross_entropy(z.double() if x.dtype == torch.float64 else z, target, ignore_index=ignore, reduction=reduction,
                                             label_smoothing=smoothing)  # fmt: skip
    return loss, None, None, None, None, None


def liger() -> Callable[..., Any]:
    """Liger makes its gradients in the forward, where they are wanted."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> Any:
        import torch

        ignore, reduction, smoothing, scale, cap, start, classes, _, _, x_grad, weight_grad, *_ = rest
        if start or classes or reduction == "none":
            raise ValueError("Liger takes no slice of the vocabulary, and makes no gradients without a reduction")
        with torch.enable_grad():
            given = x.detach().requires_grad_(x_grad), weight.detach().requires_grad_(weight_grad)
            loss, *_ = LigerFusedLinearCrossEntropyFunction.apply(*given, target, bias, None, ignore, scale, smoothing, reduction, cap or None)
        return loss, None, None, None, None, None

    return run


def compiled_backward(backward: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    def factory() -> Callable[..., Any]:
        import torch

        made = torch.compile(backward, dynamic=False)

        def run(dloss: Tensor, x: Tensor, *rest: Any) -> Any:
            one_dtype(x)
            return made(dloss, x, *rest)

        return run

    return factory
