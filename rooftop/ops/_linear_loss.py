"""Cross-entropy of logits that are a product, in plain torch: the formulas of linear_cross_entropy, for the whole vocabulary or a slice of
it.

`state` [N, 4] is a token's shift m (its largest logit), the sum of exp(z - m), the sum of z where labels are smoothed (else 0), and the
target's logit (0 where the slice has it not). A token that is ignored has (0, 1, 0, 0). Where entropies are asked for, the token's follows as a fifth number."""

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


def with_entropies(z: Tensor, target: Tensor, state: Tensor, o: Options) -> Tensor:
    """The state [N, 5], with lse - sum of p z of each token's distribution p last, from differences of logits; 0 where it is ignored. A
    class of probability 0 adds nothing, though its logit be -inf."""
    import torch

    d = z - state[:, :1]
    e = d.exp()
    found = state[:, 1].log() - (e * d.where(e != 0, 0.0)).sum(-1) / state[:, 1]
    return torch.cat((state, found.where(target != o.ignore_index, 0.0)[:, None]), 1)


def entropy_slopes(z: Tensor, state: Tensor, share: Tensor) -> Tensor:
    """The gradient of the entropies by the logits, -p (log p + entropy), times `share` [N]."""
    d = z - state[:, :1]
    e = d.exp()
    return -e * (d.where(e != 0, 0.0) + (state[:, 4] - state[:, 1].log())[:, None]) * (share / state[:, 1])[:, None]


def divisor_of(target: Tensor, o: Options, like: Tensor) -> Tensor:
    return (target != o.ignore_index).sum().to(like.dtype) if o.reduction == "mean" else like.new_ones(())


def slopes(z: Tensor, target: Tensor, state: Tensor, share: Tensor, o: Options, of_entropy: Tensor | None = None) -> Tensor:
    """The gradient of the logits before the soft cap. `share`, `of_entropy` [N]: those of each token's loss and entropy."""
    count = z.shape[-1]
    most, sum_ = state[:, 0], state[:, 1]
    share = share.where((target >= 0) & (target < o.classes), float("nan"))
    each = (1 + 2 * o.scale * (most + sum_.log())) / sum_ if o.scale else 1 / sum_
    hit = target - o.start
    there = (hit >= 0) & (hit < count)
    d = (z - most[:, None]).exp() * each[:, None] - o.smoothing / o.classes
    taken = d.new_full((), o.smoothing - 1).expand(hit.shape).where(there, 0.0)
    d = d.scatter_add(-1, hit.clamp(0, count - 1)[:, None], taken[:, None]) * share[:, None]
    if of_entropy is not None:
        d = d + entropy_slopes(z, state, of_entropy)
    d = d * (1 - (z / o.softcap).square()) if o.softcap else d
    return d.where((target != o.ignore_index)[:, None], 0.0)
