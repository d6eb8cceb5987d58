"""Group normalisation of tensors of the CPU: torch's own function, and its gradients where those are good enough."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core.gradients import refuse_second_derivative
from rooftop.core.layouts import widen
from rooftop.ops._norms import NEARLY_EQUAL, far

if TYPE_CHECKING:
    from torch import Tensor

LEAST, MOST = 64, 1024  # positions that torch adds up in a vector


def cpu(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`: the gradients by the contract's formula, which run in float32 where torch's err too much."""

    def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Any:
        import torch

        if not x.numel():
            return NotImplemented
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
            return _differentiable(plain)(x, weight, bias, groups, eps)
        return _forward(x, weight, bias, groups, eps)[0]

    return run


def _forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor, bool]:
    """y, mean and scale [N, G] in float32, and whether groups are far from zero: torch computes x · scale - mean · scale, so these are for
    its layer_norm, which takes the mean first."""
    import torch

    n, c = x.shape[:2]
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    given = x if last is not None and x.is_contiguous(memory_format=last) else x.contiguous()
    w, b = (None if t is None else t.float().contiguous() for t in (weight, bias))
    if w is None and x.element_size() == 2:
        w = torch.ones(c)  # with which torch keeps the statistics in float32
    y, mean, scale = torch.native_group_norm(given, w, b, n, c, prod(x.shape[2:]), groups, eps)
    off = far(mean, scale)
    if off:
        rows = x.reshape(n, groups, -1).float()
        wide = torch.nn.functional.layer_norm(rows, rows.shape[-1:], None, None, eps).reshape(n, c, -1)
        wide = wide if w is None else wide * w[:, None]
        y = (wide if b is None else wide + b[:, None]).reshape(x.shape).to(x.dtype)
    return y, mean, scale, off


@cache
def _differentiable(plain: Callable[..., Any]) -> Callable[..., Tensor]:
    import torch

    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
        y, mean, scale, off = _forward(x, weight, bias, groups, eps)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        ctx.options = groups, eps, off
        return y

    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            refuse_second_derivative("group_norm")(ctx)
        x, weight, bias, mean, scale = ctx.saved_tensors
        groups, eps, off = ctx.options
        found = None if off else _by_torch(dy, x, weight, mean, scale, eps, ctx.needs_input_grad[0])
        if found is None:
            found = plain(dy.float(), x.float(), widen(weight), widen(bias), groups, eps)
        dx, *own = found
        if dx is not None and dx.stride() != x.stride():
            dx = torch.empty_like(x).copy_(dx)
        given = ((dx, x), *zip(own, (weight, bias), strict=True))
        return *(None if g is None or t is None else g.to(t.dtype) for g, t in given), None, None

    made = type("group_norm", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    apply = super(torch.autograd.Function, made).apply  # what `Function.apply` does without a transform
    return lambda *args: apply(*args)


def _by_torch(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, scale: Tensor, eps: float, wanted: bool) -> Any:
    """The gradients of x (if `wanted`), weight and bias, in vectors of at most MOST positions as if they were channels: torch adds up a channel's
    positions one after another. None where they do not divide so, or a group's elements are equal but for rounding."""
    import torch

    (n, c), groups, positions = x.shape[:2], mean.shape[1], prod(x.shape[2:])
    parts = next((k for k in range(-(-positions // MOST), positions // LEAST + 1) if positions % k == 0), 1 if positions <= MOST else 0)
    if not parts or scale.amax().item() ** 2 * eps > NEARLY_EQUAL:
        return None
    w = torch.ones(1) if weight is None else weight.float()
    w = w.reshape(-1, 1).expand(c, parts).reshape(-1).contiguous()
    made = torch.ops.aten.native_group_norm_backward(
        dy.contiguous(), x.contiguous(), mean, scale, w, n, c * parts, positions // parts, groups, [wanted, True, True]
    )
    return made[0], *(None if t is None else t.view(c, parts).sum(1) for t in made[1:])
