"""Cross-entropy of logits that are a product, in plain torch: the formulas of linear_cross_entropy, for the whole vocabulary or a slice of
it.

`state` [N, 4] is a token's shift m (its largest logit), the sum of exp(z - m), the sum of z where labels are smoothed (else 0), and the
target's logit (0 where the slice has it not). A token that is ignored has (0, 1, 0, 0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """`start`: the class that the weight's first row is; `classes`: of the whole vocabulary."""

    ignore_index: int
    reduction: str
    smoothing: float
    scale: float
    softcap: float
    start: int
    classes: int


def logits(x: Tensor, weight: Tensor, bias: Tensor | None, softcap: float, narrow: bool = False) -> Tensor:
    """`narrow`: the product is rounded to the dtype of `x`, and all else is in float32."""
    z = x @ weight.t()
    z = z.float() if narrow else z
    z = z if bias is None else z + (bias.float() if narrow else bias)
    return softcap * (z / softcap).tanh() if softcap else z


def state_of(z: Tensor, target: Tensor, o: Options) -> Tensor:
    import torch

    most = z.amax(-1).clamp_min(torch.finfo(z.dtype).min)  # where all are -inf, differences from it are no NaN
    sum_ = (z - most[:, None]).exp().sum(-1)
    total = z.sum(-1) if o.smoothing else torch.zeros_like(most)
    hit = target - o.start
    there = (hit >= 0) & (hit < z.shape[-1])
    picked = z.gather(-1, hit.clamp(0, z.shape[-1] - 1)[:, None])[:, 0].where(there, 0.0)
    ignored = most.new_tensor([0.0, 1.0, 0.0, 0.0])
    return torch.stack((most, sum_, total, picked), -1).where((target != o.ignore_index)[:, None], ignored)


def losses(state: Tensor, target: Tensor, o: Options) -> Tensor:
    """Of each token; NaN where the target is no class."""
    most, sum_, total, picked = state.unbind(-1)
    above, off = sum_.log(), most - picked
    if o.smoothing:
        off = (1 - o.smoothing) * off + o.smoothing * (most - total / o.classes)
    found = above + off
    if o.scale:
        found = found + o.scale * (most + above).square()
    return found.where((target >= 0) & (target < o.classes), float("nan")).where(target != o.ignore_index, 0.0)


def divisor_of(target: Tensor, o: Options, like: Tensor) -> Tensor:
    return (target != o.ignore_index).sum().to(like.dtype) if o.reduction == "mean" else like.new_ones(())


def slopes(z: Tensor, target: Tensor, state: Tensor, share: Tensor, o: Options) -> Tensor:
    """The gradient of the logits before the soft cap. `share` [N]: that of each token's loss."""
    count = z.shape[-1]
    most, sum_ = state[:, 0], state[:, 1]
    share = share.where((target >= 0) & (target < o.classes), float("nan"))
    each = (1 + 2 * o.scale * (most + sum_.log())) / sum_ if o.scale else 1 / sum_
    hit = target - o.start
    there = (hit >= 0) & (hit < count)
    d = (z - most[:, None]).exp() * each[:, None] - o.smoothing / o.classes
    taken = d.new_full((), o.smoothing - 1).expand(hit.shape).where(there, 0.0)
    d = d.scatter_add(-1, hit.clamp(0, count - 1)[:, None], taken[:, None]) * share[:, None]
    d = d * (1 - (z / o.softcap).square()) if o.softcap else d
    return d.where((target != o.ignore_index)[:, None], 0.0)
