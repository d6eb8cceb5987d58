"""Linear layers with a sparse weight: for inference in any layout, for training in 2:4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.sparse import two_four
from rooftop.sparse.products import matmul
from rooftop.sparse.tensor import FACTS, TENSORS, SparseTensor, two_four_of


class SparseLinear(nn.Module):  # type: ignore[misc]
    """y = x Wᵀ + bias with a sparse W [out_features, in_features].

    Without `train24` the weight is stored as it is given and has no gradient; gradients flow to x and the bias. Its tensors are buffers, so that
    `state_dict`, `to` and `torch.save` work as with any layer.

    `dense(weight, bias)` with `train24` keeps the dense weight as the parameter. Each forward prunes it to 2:4 in both orientations (`rooftop.prune_24`); y
    = x Sᵀ and dx = dy S are sparse products, and the gradient dyᵀ x goes to the whole dense weight (straight through).

    Source of the training: Hubara et al. (2021); Hu et al., "Accelerating Transformer Pre-training with 2:4 Sparsity" (2024)."""

    def __init__(self, weight: SparseTensor | Tensor, bias: Tensor | None = None, *, train24: bool = False, algorithm: str = "optimal") -> None:
        super().__init__()
        if isinstance(weight, SparseTensor) == train24:
            given = f"weight is a {type(weight).__name__} and train24 is {train24}"
            raise TypeError(f"SparseLinear: {given}; training takes a dense weight, all else a SparseTensor")
        self.out_features, self.in_features = int(weight.shape[0]), int(weight.shape[1])
        self.algorithm = algorithm
        self.bias = None if bias is None else nn.Parameter(bias.detach())
        if isinstance(weight, SparseTensor):
            self.weight = None
            for name in TENSORS:
                self.register_buffer(name, getattr(weight, name))
            self.facts = tuple(getattr(weight, n) for n in FACTS)
        else:
            self.weight = nn.Parameter(weight.detach())

    @property
    def sparse(self) -> SparseTensor:
        """The weight as it is multiplied."""
        if self.weight is None:
            return SparseTensor(*(getattr(self, n) for n in TENSORS), *self.facts)
        import rooftop

        return rooftop.prune_24(self.weight, self.algorithm)[0]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if self.weight is None:
            out = matmul(rows, self.sparse.t(), bias=self.bias)
        else:
            out = _Trained.apply(rows, self.weight, self.algorithm)
            out = out if self.bias is None else out + self.bias
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        kind = f"2:4, trained, {self.algorithm}" if self.weight is not None else self.facts[0]
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, {kind}"


class _Trained(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, algorithm: str) -> Tensor:
        import rooftop

        w, turned = rooftop.prune_24(weight, algorithm)
        ctx.save_for_backward(x, turned.values, turned.meta)
        return rooftop.spmm_24(w.values, w.meta, x.t(), transposed=True)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        import rooftop

        x, values, meta = ctx.saved_tensors
        dx = rooftop.spmm_24(values, meta, dy.t(), transposed=True) if ctx.needs_input_grad[0] else None
        return dx, rooftop.matmul(dy.t(), x) if ctx.needs_input_grad[1] else None, None


def sparsify_model(
    model: nn.Module, layout: str = "2:4", *, block: tuple[int, int] | int | None = None, train24: bool = False, algorithm: str = "optimal",
    skip: Sequence[str] = (), least: int = 64,
) -> nn.Module:  # fmt: skip
    """Replace the linear layers of a model by `SparseLinear`, in place.

    layout: "2:4" keeps the two largest of each four of a row; "csr", "coo", "bsr" (with its `block`) and "auto" store the nonzero elements: prune first, with
        `rooftop.sparse.prune`. With "auto", a layer that is predicted to be faster dense stays dense.
    train24: keep dense weights, pruned by `algorithm` at every forward. Only with layout "2:4".
    skip: names of layers that are not replaced; `least`: layers with fewer inputs or outputs are not replaced.

    Returns the model. Raises ValueError for an unknown layout."""
    if train24 and layout != "2:4":
        raise ValueError(f"sparsify_model: layout is {layout!r} with train24; only '2:4' is trained")
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or name in skip or min(module.in_features, module.out_features) < least:
            continue
        made = _sparse(module, layout, block, train24, algorithm)
        if made is None:
            continue
        if not name:
            return made
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], made)
    return model


def _sparse(module: nn.Linear, layout: str, block: Any, train24: bool, algorithm: str) -> SparseLinear | None:
    weight, bias = module.weight.detach(), module.bias
    if train24:
        return SparseLinear(weight, bias, train24=True, algorithm=algorithm)
    if layout == "2:4":
        return SparseLinear(two_four_of(weight, two_four.select(weight.abs().float())), bias)
    if layout == "auto":
        from rooftop.sparse.advice import advise

        advice = advise(weight, 1024)
        if advice.best.layout == "dense":
            return None
        layout, block = advice.best.layout, advice.best.block
    return SparseLinear(SparseTensor.from_dense(weight, layout, block=block), bias)
