"""Cross-entropy of logits that are a product on the CPU, with its gradients: products of bfloat16, all between them in float32, as many
tokens at a time as a core's cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rooftop.ops._linear_loss import Options, divisor_of, losses

if TYPE_CHECKING:
    from torch import Tensor

PART = 1 << 16  # logits
LEAST = -87.0  # below it exp is denormal, which oneDNN's products take for 0, and all else is slow with


def step(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, o: Options, factor: float, asked: Sequence[bool]
) -> tuple[Any, ...]:
    """(loss, state, divisor, and those of the gradients of x, weight and bias that are asked for) with neither smoothing, soft cap nor
    lse_square_scale, of targets that are classes or ignored."""
    import torch

    n, classes = x.shape[0], weight.shape[0]
    kept = (target != o.ignore_index)[:, None]
    hit = target.clamp(0, classes - 1)[:, None]
    z = x @ weight.t()
    d = torch.empty_like(z)
    state = torch.zeros(n, 4)
    divisor = divisor_of(target, o, state)
    share = kept / divisor
    for i in range(0, n, max(1, PART // classes)):
        rows = slice(i, i + max(1, PART // classes))
        f = z[rows].float()
        f = f if bias is None else f.add_(bias)
        f = f if factor == 1 else f.mul_(factor)
        most = f.amax(-1, keepdim=True).clamp_min_(torch.finfo(f.dtype).min)
        picked = f.gather(-1, hit[rows])
        e = torch.nn.functional.threshold_(f.sub_(most), LEAST, float("-inf")).exp_()
        total = e.sum(-1, keepdim=True)
        state[rows] = torch.cat((most, total, torch.zeros_like(most), picked), 1)
        d[rows] = e.mul_(share[rows] / total).scatter_add_(-1, hit[rows], -share[rows])
    if not bool(kept.all()):
        d.masked_fill_(~kept, 0.0)
        state = state.where(kept, state.new_tensor([0.0, 1.0, 0.0, 0.0]))
    loss = losses(state, target, o).sum() / divisor
    return (
        loss, state, divisor, d @ weight if asked[0] else None, d.t() @ x if asked[1] else None,
        d.sum(0, dtype=None if bias is None else bias.dtype) if asked[2] else None,
    )
