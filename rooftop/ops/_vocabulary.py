"""linear_cross_entropy where the ranks of a process group share the vocabulary: each makes the statistics of its own classes, and what
travels is as long as the tokens are many, whatever the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from rooftop.ops import _linear_loss
from rooftop.ops._linear_loss import Options

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """One call on one rank. `options` as the op takes them, to softcap; `first`, `classes`: this rank's first class, and the classes of all
    ranks; `how`: the dtype of the weight's gradient, and memory."""

    op: Any
    target: Tensor
    options: tuple[Any, ...]
    first: int
    classes: int
    how: tuple[str, str]
    wanted: tuple[bool, ...]
    group: Any
    implementation: str | None
    entropy: bool
    factor: float

    @property
    def all(self) -> Options:
        ignore, reduction, smoothing, scale, cap = self.options
        return Options(ignore, reduction, smoothing, scale, cap, self.first, self.classes)

    def call(self, function: Callable[..., Any], *args: Any, flags: Sequence[bool], **more: Any) -> Any:
        return function(*args, *self.options, self.first, self.classes, *self.how, *flags, False, self.entropy, self.factor, **more)


def split_loss(
    op: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, options: Sequence[Any], how: tuple[str, str],
    wanted: Sequence[bool], group: Any, implementation: str | None, entropy: bool, factor: float,
) -> tuple[Tensor, Tensor]:
    """(loss, state of the whole vocabulary). With `entropy`, which goes with no reduction, losses and states as the op has them. Parameters
    as those of `Shard`.

    Raises TypeError for a group that is none."""
    import torch.distributed as dist

    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"linear_cross_entropy: group is a {type(group).__name__}; it must be a torch.distributed.ProcessGroup")
    rows = weight.shape[0]
    shard = Shard(
        op, target, tuple(options), dist.get_rank(group) * rows, dist.get_world_size(group) * rows, how, tuple(wanted), group,
        implementation, entropy, factor
    )
    loss, state = _split().apply(shard, x, weight, bias)
    return loss, state


@cache
def _split() -> Any:
    """One class for all calls: a class for each would keep its call's tensors and group until Python's garbage collector finds it."""
    import torch
    import torch.distributed as dist

    class Split(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, shard: Shard, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
            _, state, divisor, *_ = shard.call(
                shard.op, x, weight, bias, shard.target, flags=(False, False, False), implementation=shard.implementation
            )
            o = shard.all
            state = joined(state, shard.target != o.ignore_index, shard.group)
            ctx.shard = shard
            ctx.save_for_backward(x, weight, bias, state, divisor)
            found = _linear_loss.losses(state[:, :4], shard.target, o)
            ctx.mark_non_differentiable(state)
            if shard.entropy:
                return torch.stack((found, state[:, 4]), 1), state
            return found if o.reduction == "none" else found.sum() / divisor, state

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            shard: Shard = ctx.shard
            x, weight, bias, state, divisor = ctx.saved_tensors
            found = shard.call(
                shard.op.bwd, gradients[0], x, weight, bias, shard.target, state, divisor, None, None, None, flags=shard.wanted
            )
            made = [g if asked else None for g, asked in zip(found, shard.wanted, strict=True)]
            if made[0] is not None:  # each rank's classes make a part of dX
                whole = made[0].float()
                dist.all_reduce(whole, group=shard.group)
                made[0] = whole.to(x.dtype)
            return (None, *made)

    return Split


def joined(state: Tensor, live: Tensor, group: Any) -> Tensor:
    """The state of the whole vocabulary from each rank's of its own classes: the largest shift first, then the sums about it."""
    import torch
    import torch.distributed as dist

    most = state[:, 0].clone()
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    off = state[:, 0] - most
    share = state[:, 1] * off.exp()  # of the sum
    sums = torch.cat([share[:, None], state[:, 2:]], 1)
    if state.shape[1] > 4:  # for an entropy log s - e of a rank's classes: the sum of exp(d) d about the joined shift, s · (log s - e + off)
        sums[:, 3] = (share * (state[:, 1].log() - state[:, 4] + off)).where(share != 0, 0.0)
    dist.all_reduce(sums, group=group)
    if state.shape[1] > 4:
        sums[:, 3] = sums[:, 0].log() - sums[:, 3] / sums[:, 0]
    return torch.cat([most[:, None], sums], 1).where(live[:, None], state)
