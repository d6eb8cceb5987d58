"""Linear layers with a sparse weight: for inference in any layout, for training in 2:4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replaced
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.formats import two_four
from rooftop.ops.prune_24 import ALGORITHMS
from rooftop.quant.layer import FLOATS, LinearLayer
from rooftop.quant.replacing import check_weight, linears, matrix, obstacle, replace, say_left, sizes, take_over, turned
from rooftop.sparse.indices import block_of
from rooftop.sparse.products import matmul
from rooftop.sparse.tensor import FACTS, TENSORS, SparseTensor, two_four_of

READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)  # they read `weight` of their linear layers


class SparseLinear(LinearLayer):
    """y = x Wᵀ + bias with a sparse W [out_features, in_features].

    Without `train24` the weight is stored as it is given and has no gradient; gradients flow to x and the bias. Its tensors are buffers, so
    that `state_dict`, `to` and `torch.save` work as with any layer. `sparse` is the weight as it is stored; `weight` answers as a tensor
    does when asked for its dtype, device or shape, and `weight = matrix` stores that matrix in the same layout.

    Under autocast input, weight and bias are cast as by `nn.Linear`; a dense weight of float32 that is trained there has a gradient of
    float32. A stored weight is multiplied in the dtype of the input.

    `dense(weight, bias)` with `train24` keeps the dense weight as the parameter. Each forward prunes it to 2:4 in both orientations
    (`rooftop.prune_24`); y = x Sᵀ and dx = dy S are sparse products, and the gradient dyᵀ x goes to the whole dense weight (straight
    through).

    Source of the training: Hubara et al. (2021); Hu et al., "Accelerating Transformer Pre-training with 2:4 Sparsity" (2024)."""

    def __init__(
        self, weight: SparseTensor | Tensor, bias: Tensor | None = None, *, train24: bool = False, algorithm: str = "optimal"
    ) -> None:
        super().__init__()
        if isinstance(weight, SparseTensor) == train24:
            given = f"weight is a {type(weight).__name__} and train24 is {train24}"
            raise TypeError(f"SparseLinear: {given}; training takes a dense weight, all else a SparseTensor")
        self.out_features, self.in_features = int(weight.shape[0]), int(weight.shape[1])
        self.algorithm = algorithm
        self.bias = None if bias is None else _parameter(bias)
        if isinstance(weight, SparseTensor):
            self._take(weight)
        else:
            self.weight = _parameter(weight)

    def _take(self, weight: SparseTensor) -> None:
        for name in TENSORS:
            self.register_buffer(name, getattr(weight, name))
        self.facts = tuple(getattr(weight, n) for n in FACTS)

    @property
    def sparse(self) -> SparseTensor:
        """The weight as it is multiplied."""
        if "values" in self._buffers:
            return SparseTensor(*(getattr(self, n) for n in TENSORS), *self.facts)
        import rooftop

        return rooftop.prune_24(self.weight, self.algorithm)[0]

    def stored(self) -> tuple[Any, str, torch.dtype] | None:
        return (self.sparse, f"{self.facts[0]} (layer.sparse)", self.values.dtype) if "values" in self._buffers else None

    def store(self, matrix: Tensor) -> None:
        if matrix.shape[0] != self.out_features:
            raise ValueError(f"SparseLinear: weight is {tuple(matrix.shape)}; it must be {(self.out_features, self.in_features)}")
        matrix, (layout, _, block, _) = matrix.to(self.values), self.facts
        self._take(pruned_24(matrix) if layout == "2:4" else SparseTensor.from_dense(matrix, layout, block=block))

    def forward(self, input: Tensor) -> Tensor:
        if not isinstance(input, Tensor):
            raise TypeError(f"SparseLinear: the input is a {type(input).__name__}; it must be a tensor")
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            raise ValueError(f"SparseLinear: the input is {tuple(input.shape)}; it must be [..., {self.in_features}]")
        dense = "values" not in self._buffers
        x, kept, bias = self.cast(input, self.weight if dense else self.values, self.bias)
        if not dense and x.dtype in FLOATS and kept.dtype in FLOATS:  # FSDP2's mixed precision casts parameters and inputs, and no buffers
            kept = kept.to(x.dtype)
        rows = x.reshape(-1, self.in_features)
        if (dense or self.facts[0] == "2:4") and kept.dtype in (torch.float32, torch.float64):
            remedy = "cast the model, as with model.half(), or run it under torch.autocast"
            raise TypeError(f"SparseLinear: a 2:4 weight is {kept.dtype}; accepted are torch.float16 and torch.bfloat16: {remedy}")
        if dense:
            out = _Trained.apply(rows, kept, self.algorithm)
            out = out if bias is None else out + bias
        else:
            out = matmul(rows, replaced(self.sparse, values=kept).t(), bias=bias)
        return out.reshape(*input.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        kind = self.facts[0] if "values" in self._buffers else f"2:4, trained, {self.algorithm}"
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, {kind}"


def pruned_24(weight: Tensor) -> SparseTensor:
    """The two largest of each four of a row."""
    return two_four_of(weight, two_four.select(weight.abs().float()))


def _parameter(x: Tensor) -> nn.Parameter:
    """A parameter of its own; one that is frozen stays so."""
    return nn.Parameter(x.detach(), requires_grad=x.requires_grad or not isinstance(x, nn.Parameter))


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
) -> nn.Module:
    """Replace the linear layers of a model by `SparseLinear`, in place.

    layout: "2:4" keeps the two largest of each four of a row; "csr", "coo", "bsr" (with its `block`) and "auto" store the nonzero elements:
    prune first, with
        `rooftop.sparse.prune`. With "auto", a layer that is predicted to be faster dense stays dense.
    train24: keep dense weights, pruned by `algorithm` at every forward. Only with layout "2:4".
    skip: the name or names of layers that are not replaced; `least`: layers with fewer inputs or outputs are not replaced.

    The linear layers of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`, which read their weights themselves, stay dense. So do
    subclasses of `nn.Linear` (a parametrized layer is one), layers whose weight a hook computes (`weight_norm`, `torch.nn.utils.prune`) and
    those whose `forward` was replaced. A layer that is used in several places is replaced in each, or in none if one of its names is to be
    skipped. Layers with a common weight have a common sparse one (with train24 the parameter itself) until they are moved to a device. The
    parameter of the bias, whether a layer trains, and its forward and backward hooks stay as they are. The product of 2:4 takes float16 and
    bfloat16: cast a model of float32 before or after.

    A warning says which layers and other matrices stay dense without having been skipped, and how many bytes they have: weights of three
    dimensions (experts in one parameter) are not converted. Conv1D layers of Transformers (GPT-2) are, but for training.

    Returns the model. Raises TypeError if a layer is not float32, float16 or bfloat16; ValueError for an unknown layout or algorithm, for
    blocks with another than "bsr", and for a weight on the meta device. The error names the layer; nothing has been replaced."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"sparsify_model: model is a {type(model).__name__}; it must be a torch.nn.Module")
    if train24 and layout != "2:4":
        raise ValueError(f"sparsify_model: layout is {layout!r} with train24; only '2:4' is trained")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"sparsify_model: algorithm is {algorithm!r}; it is one of {', '.join(map(repr, ALGORITHMS))}")
    if layout != "auto":
        block_of(layout, block)
    elif block is not None:
        raise ValueError(f"sparsify_model: block is {block!r} with layout 'auto', which chooses it; it goes with 'bsr'")
    skipped = {skip} if isinstance(skip, str) else set(skip)
    if not all(isinstance(n, str) for n in skipped):
        raise TypeError(f"sparsify_model: skip is {skip!r}; it must be a name or several, as text")
    made: dict[int, nn.Module] = {}
    shared: dict[int, SparseLinear | None] = {}  # by the weight
    left: dict[int, str] = {}
    with torch.inference_mode(False), torch.no_grad():
        for name, (layer, names) in linears(model).items():
            if isinstance(layer, LinearLayer) or skipped & set(names) or min(sizes(layer)) < least:
                continue
            reads = any(isinstance(model.get_submodule(n.rpartition(".")[0]), READERS) for n in names if n)
            if obstacle(layer) or reads or (train24 and turned(layer)):
                left[id(layer)] = "layers that compute something else or whose weight others read"
                continue
            try:
                check_weight(layer)
                if id(layer.weight) not in shared:
                    shared[id(layer.weight)] = _sparse(layer, layout, block, train24, algorithm)
            except (TypeError, ValueError) as error:
                raise type(error)(f"sparsify_model: {name or 'the layer'} {sizes(layer)}: {error}") from None
            one = shared[id(layer.weight)]
            if one is None:
                continue
            weight = one.weight if train24 else one.sparse
            found = SparseLinear(weight, layer.bias, train24=train24, algorithm=algorithm)
            if not (layer.weight.is_inference() or (layer.bias is not None and layer.bias.is_inference())):
                found.bias = layer.bias
                if train24:
                    found.weight = layer.weight
            take_over(found, layer)
            made[id(layer)] = found
    result = replace(model, made)
    say_left("sparsify_model", result, left)
    return result


def _sparse(module: nn.Module, layout: str, block: Any, train24: bool, algorithm: str) -> SparseLinear | None:
    weight, bias = matrix(module).detach(), module.bias
    if train24:
        return SparseLinear(module.weight, bias, train24=True, algorithm=algorithm)
    if layout == "2:4":
        return SparseLinear(pruned_24(weight), bias)
    if layout == "auto":
        from rooftop.sparse.advice import advise

        advice = advise(weight, 1024)
        if advice.best.layout == "dense":
            return None
        layout, block = advice.best.layout, advice.best.block
    return SparseLinear(SparseTensor.from_dense(weight, layout, block=block), bias)
