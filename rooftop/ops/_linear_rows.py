"""linear_cross_entropy under `rooftop.invariant()`: two ops whose rows do not depend on each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core import invariance
from rooftop.core.spec import DTYPES

if TYPE_CHECKING:
    from torch import Tensor

LOGITS = 2**28  # bytes of logits of one product
APART = "it runs as rooftop.matmul and rooftop.cross_entropy there, on one rank"


def refuse(implementation: str | None, group: Any, to: str, weight: Tensor, entropy: bool) -> None:
    """Raises InvarianceError for what the two ops have not."""
    what, along = "", "batch"
    if implementation is not None:
        what = f"implementation={implementation!r}"
    elif group is not None:
        what, along = "group", "splits"
    elif DTYPES[to].torch != str(weight.dtype).removeprefix("torch."):
        what = "weight_grad_dtype=torch.float32"
    elif entropy:
        what = "return_entropy=True"
    if what:
        raise invariance.InvarianceError(f"linear_cross_entropy under rooftop.invariant(), along {along}: {what} is given; {APART}")


def losses(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore: int, smoothing: float, scale: float, cap: float,
           factor: float) -> tuple[Tensor, Tensor]:
    """(losses, lse) [N] by two ops whose rows do not depend on each other; some tokens at a time, the logits of each kept where a gradient is wanted."""
    import torch

    from rooftop.ops import cross_entropy, matmul

    shift = bias if bias is None or factor == 1 else bias.float() * factor
    step = max(1, LOGITS // (weight.shape[0] * x.element_size()))
    found, lse = [], []
    for i in range(0, max(1, x.shape[0]), step):
        z = matmul.OP(x[i : i + step], weight.t(), None, shift, None, None, factor, 0.0, "none", "", "ieee")
        loss, normaliser, _ = cross_entropy.OP(z, target[i : i + step], ignore, "none", smoothing, scale, cap, False)
        found.append(loss)
        lse.append((normaliser[:, 0] + normaliser[:, 1].log()).where(target[i : i + step] != ignore, 0.0))
    return torch.cat(found), torch.cat(lse)
