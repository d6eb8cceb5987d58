"""What a user would call in place of linear_cross_entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.ops._peers import one_dtype

if TYPE_CHECKING:
    from torch import Tensor


def _materialised(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore: int, reduction: str, smoothing: float, cap: float
) -> Tensor:
    """The loss with all logits in memory."""
    from torch.nn import functional

    z = functional.linear(x, weight, None if bias is None else bias.to(x.dtype))
    z = z.float() if z.element_size() < 4 else z
    z = cap * (z / cap).tanh() if cap else z
    return functional.cross_entropy(z, target, ignore_index=ignore, reduction=reduction, label_smoothing=smoothing)


def torch_step(compiled: bool = False) -> Callable[..., Any]:
    """The loss, and where our forward makes the gradients these too, by autograd."""
    import torch

    function = torch.compile(_materialised, dynamic=False) if compiled else _materialised

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> Any:
        ignore, reduction, smoothing, scale, cap, start, classes, _, memory, *wanted, with_entropy, factor = rest
        if scale or start or classes or with_entropy or factor != 1:
            raise ValueError("torch's cross_entropy of a linear layer has none of these options, and takes no slice of the vocabulary")
        made = memory == "fast" and reduction != "none"
        if compiled and not (made and all(wanted[:2]) and ignore == -100):
            raise ValueError("compiled for the loss with both gradients: each compilation costs seconds")
        if compiled:
            one_dtype(x)
        given = [t if t is None else t.detach().requires_grad_(made and asked) for t, asked in zip((x, weight, bias), wanted, strict=False)]
        with torch.enable_grad():
            loss = function(given[0], given[1], given[2], target, ignore, reduction, smoothing, cap)
            leaves = [t for t in given if t is not None and t.requires_grad]
            gradients = torch.autograd.grad(loss, leaves) if leaves else ()
        del gradients
        return loss.detach(), None, None, None, None, None

    return run


def three_products() -> Callable[..., Any]:
    """What every way to make the loss and both gradients computes at least, by cuBLAS: the logits, and from a tensor of their size dx and
    dW."""

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> Any:
        _, reduction, *_, memory, x_grad, weight_grad = rest[:11]
        if memory != "fast" or reduction == "none" or not (x_grad and weight_grad):
            raise ValueError("the products of a forward that makes both gradients")
        logits = x @ weight.T
        return logits @ weight, logits.T @ x

    return run


def liger() -> Callable[..., Any]:
    """Liger makes its gradients in the forward, where they are wanted."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any) -> Any:
        import torch

        ignore, reduction, smoothing, scale, cap, start, classes, _, _, x_grad, weight_grad, *_, factor = rest
        if start or classes or reduction == "none" or factor != 1:
            raise ValueError("Liger takes no slice of the vocabulary and no factor of the logits, and makes no gradients without a reduction")
        with torch.enable_grad():
            given = x.detach().requires_grad_(x_grad), weight.detach().requires_grad_(weight_grad)
            loss, *_ = LigerFusedLinearCrossEntropyFunction.apply(
                *given, target, bias, None, ignore, scale, smoothing, reduction, cap or None
            )
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
