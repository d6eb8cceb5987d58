"""linear_cross_entropy where the ranks of a process group share the vocabulary: each makes the statistics of its own classes, and what travels is as long as
the tokens are many, whatever the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rooftop.ops import _linear_loss
from rooftop.ops._linear_loss import Options

if TYPE_CHECKING:
    from torch import Tensor


def split_loss(
    op: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, options: Sequence[Any], how: tuple[str, str], wanted: Sequence[bool], group: Any,
    implementation: str | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(loss, state of the whole vocabulary). `options` as the op takes them, to softcap; `how`: the dtype of the weight's gradient, and memory.

    Raises TypeError for a group that is none."""
    import torch
    import torch.distributed as dist

    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"linear_cross_entropy: group is a {type(group).__name__}; it must be a torch.distributed.ProcessGroup")
    ranks, first = dist.get_world_size(group), dist.get_rank(group) * weight.shape[0]
    classes = ranks * weight.shape[0]
    ignore, reduction, smoothing, scale, cap = options
    o = Options(ignore, reduction, smoothing, scale, cap, first, classes)
    to, memory = how

    def call(function: Callable[..., Any], *args: Any, flags: Sequence[bool], **more: Any) -> Any:
        return function(*args, *options, first, classes, to, memory, *flags, False, **more)

    class Split(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
            _, state, divisor, *_ = call(op, x, weight, bias, target, flags=(False, False, False), implementation=implementation)
            state = joined(state, target != o.ignore_index, group)
            ctx.save_for_backward(x, weight, bias, state, divisor)
            found = _linear_loss.losses(state, target, o)
            ctx.mark_non_differentiable(state)
            return found if o.reduction == "none" else found.sum() / divisor, state

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            x, weight, bias, state, divisor = ctx.saved_tensors
            found = call(op.bwd, gradients[0], x, weight, bias, target, state, divisor, None, None, None, flags=wanted)
            made = [g if asked else None for g, asked in zip(found, wanted, strict=True)]
            if made[0] is not None:  # each rank's classes make a part of dX
                whole = made[0].float()
                dist.all_reduce(whole, group=group)
                made[0] = whole.to(x.dtype)
            return tuple(made)

    loss, state = Split.apply(x, weight, bias)
    return loss, state


def joined(state: Tensor, live: Tensor, group: Any) -> Tensor:
    """The state of the whole vocabulary from each rank's of its own classes: the largest shift first, then the sums about it."""
    import torch
    import torch.distributed as dist

    most = state[:, 0].clone()
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    sums = torch.cat([(state[:, 1] * (state[:, 0] - most).exp())[:, None], state[:, 2:]], 1)
    dist.all_reduce(sums, group=group)
    return torch.cat([most[:, None], sums], 1).where(live[:, None], state)
