"""Tensor-parallel linear layers, split by columns or by rows over the ranks of a group, whose products overlap with communication; with
gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor, nn

from rooftop.formats.quantized import Quantized
from rooftop.quant.layer import LinearLayer
from rooftop.ranks import agreement, collectives, fused, groups, norm


class _Column(torch.autograd.Function):  # type: ignore[misc]
    """y = x wᵀ of this rank's rows of w. With `sequence` x is this rank's part of the rows, gathered for the product; its gradient is
    scattered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Any, wire: str | None, sequence: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.facts = (group, wire, sequence)
        return fused.all_gather_matmul(x, weight.t(), group) if sequence else x @ weight.t()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        group, wire, sequence = ctx.facts
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = (
                fused.matmul_reduce_scatter(dy, weight, group, wire=wire) if sequence
                else fused.matmul_all_reduce(dy, weight, group, wire=wire)
            )
        if ctx.needs_input_grad[1]:
            rows = _gathered(x, group) if sequence else x
            dw = dy.t() @ rows
        return dx, dw, None, None, None


class _Row(torch.autograd.Function):  # type: ignore[misc]
    """y = sum over the ranks of x wᵀ, of this rank's columns of w. With `sequence` each rank gets its part of y's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Any, wire: str | None, sequence: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.facts = (group, sequence)
        return (fused.matmul_reduce_scatter if sequence else fused.matmul_all_reduce)(x, weight.t(), group, wire=wire)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        group, sequence = ctx.facts
        whole = _gathered(dy, group) if sequence else dy
        return (whole @ weight if ctx.needs_input_grad[0] else None, whole.t() @ x if ctx.needs_input_grad[1] else None, None, None, None)


def _gathered(x: Tensor, group: Any) -> Tensor:
    found = collectives.all_gather(x, group, wire="bf16", path="plain")
    assert isinstance(found, Tensor)
    return found


class _Parallel(LinearLayer):
    """What both layers have. `wire`: how sums over the ranks travel; None: in the tensors' dtype. Under autocast input, weight and bias are
    cast as by `nn.Linear`. A copy has the same group; a pickled layer gets the group of that name in the process that loads it."""

    shared = 0  # the dimension of the weight that is shared out

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, group: Any = None, wire: str | None = None, sequence: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:
        super().__init__()
        what = type(self).__name__
        self.group = groups.group_of(what, group)
        if wire is not None:
            from rooftop.ranks.steps import Options

            Options.of(what, wire, 128, False, False, 0)
        ranks = dist.get_world_size(self.group)
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"{what}: {name} is {size!r}; it must be a whole number")
            if size < 0:
                raise ValueError(f"{what}: {name} is {size}; it must be at least 0")
        sizes = [out_features, in_features]
        if sizes[self.shared] % ranks:
            name = ("out_features", "in_features")[self.shared]
            raise ValueError(f"{what}: {name} is {sizes[self.shared]}; it must be a multiple of {ranks}, the number of ranks")
        sizes[self.shared] //= ranks
        self.in_features, self.out_features, self.wire, self.sequence = in_features, out_features, wire, sequence
        self.weight = nn.Parameter(torch.empty(*sizes, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(sizes[0], device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=max(self.in_features, 1) ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "group": self.group.group_name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        what, name = type(self).__name__, state["group"]
        try:
            group = c10d._resolve_process_group(name)
        except (LookupError, RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"{what}: this process has no group {name!r}: create the groups in the same order before the layer is loaded"
            ) from error
        super().__setstate__({**state, "group": groups.group_of(what, group)})

    @classmethod
    def of(cls, linear: nn.Linear, *, group: Any = None, wire: str | None = None, sequence: bool = False) -> Any:
        """This rank's part of a layer that every rank has in full. Raises TypeError for another layer, ValueError for one whose sizes are
        not known yet."""
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"{cls.__name__}.of: linear is a {type(linear).__name__}; it must be a torch.nn.Linear")
        w = linear.weight
        if isinstance(w, nn.parameter.UninitializedParameter):
            raise ValueError(f"{cls.__name__}.of: linear has no weight yet: call it once before")
        made = cls(
            linear.in_features, linear.out_features, linear.bias is not None, group=group, wire=wire, sequence=sequence, device=w.device,
            dtype=w.dtype
        )
        ranks, rank = dist.get_world_size(made.group), dist.get_rank(made.group)
        with torch.no_grad():
            made.weight.copy_(w.chunk(ranks, cls.shared)[rank])
            if linear.bias is not None and made.bias is not None:
                made.bias.copy_(linear.bias.chunk(ranks)[rank] if cls.shared == 0 else linear.bias)
        return made

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, of {dist.get_world_size(self.group)} ranks, wire={self.wire}, "
            f"sequence={self.sequence}"
        )

    def _flat(self, x: Any, sends: bool) -> Tensor:
        """x [rows, features]. Raises TypeError and ValueError; the other ranks hear of it where they are about to send."""
        what, width = type(self).__name__, self.weight.shape[1]
        problem: Exception | None = None
        if not isinstance(x, Tensor):
            problem = TypeError(f"{what}: x is a {type(x).__name__}; it must be a tensor")
        elif x.dim() == 0 or x.shape[-1] != width:
            problem = ValueError(f"{what}: x is {tuple(x.shape)}; its last dimension must be {width}")
        elif self.sequence and x.dim() != 2:
            problem = ValueError(f"{what}: x is {tuple(x.shape)}; with sequence=True it must be [rows, {width}]")
        if problem is not None:
            if sends:
                agreement.refuse(what, self.group, problem)
            raise problem
        return x.reshape(prod(x.shape[:-1]), width)

    def _shaped(self, y: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        y = y if bias is None else y + bias
        return y if self.sequence else y.view(*x.shape[:-1], y.shape[1])


class ColumnParallelLinear(_Parallel):
    """This rank's part of the outputs: y = x wᵀ + b with out_features / W rows of w. ``up = ColumnParallelLinear(4096, 16384,
    wire="int8")``.

    x [..., in_features] is the same on all ranks; y [..., out_features / W]. The gradient of x is summed over the ranks in the format
    `wire`. sequence=True: x [n, in_features] is this rank's part of the rows, y [W n, out_features / W], by `all_gather_matmul`.

    Raises ValueError if out_features is not divisible by W."""

    def forward(self, x: Tensor) -> Tensor:
        rows, weight, bias = self.cast(self._flat(x, self.sequence), self.weight, self.bias)
        return self._shaped(_Column.apply(rows, weight, self.group, self.wire, self.sequence), bias, x)


class RowParallelLinear(_Parallel):
    """y = sum over the ranks of x wᵀ, + b, with in_features / W columns of w. ``down = RowParallelLinear(16384, 4096, wire="int8")``.

    x [..., in_features / W] as returned by a `ColumnParallelLinear`; y [..., out_features] has the same bits on all ranks, summed in the
    format `wire`.
    sequence=True: x [W n, in_features / W], and y [n, out_features] is this rank's part of the rows, by `matmul_reduce_scatter`; the
    gradient of the bias is then that of these rows.

    Raises ValueError if in_features is not divisible by W."""

    shared = 1

    def forward_norm(
        self, x: Tensor, residual: Tensor | None, weight: Tensor | None = None, eps: float | None = None, **options: Any
    ) -> tuple[Tensor | Quantized, Tensor]:
        """(y, s) with s = self(x) + residual and y its RMS norm, by `all_reduce_norm`: the end of an attention or MLP block while decoding.
        ``y, h = down.forward_norm(x, h, norm.weight, norm.eps, format="int8", columns=128)``

        x [..., in_features / W], residual [..., out_features] of the product's dtype, the same on all ranks, or None; weight [out_features]
        or None. The products are sent in the layer's `wire`, None: "bf16". `options` as for `all_reduce_norm`, among them `format`.

        Raises RuntimeError where a gradient would be needed (call it under `torch.no_grad`), ValueError for a layer with
        sequence=True, and the errors of `all_reduce_norm`."""
        what = f"{type(self).__name__}.forward_norm"
        if self.sequence:
            agreement.refuse(what, self.group, ValueError(f"{what}: the layer has sequence=True; a row must be whole on each rank"))
        flat = self._flat(x, True)
        if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (x, residual, weight, self.weight)):
            agreement.refuse(what, self.group, RuntimeError(f"{what}: no gradient flows through it; call it under torch.no_grad()"))
        rows, w, bias = self.cast(flat, self.weight, self.bias)
        product = (rows @ w.t()).view(*x.shape[:-1], self.out_features)
        if bias is not None:  # once, not of each rank
            residual = bias.expand_as(product) if residual is None else residual + bias
        return norm.all_reduce_norm(product, residual, weight, eps, self.group, wire=self.wire or "bf16", **options)

    def forward(self, x: Tensor) -> Tensor:
        rows, weight, bias = self.cast(self._flat(x, True), self.weight, self.bias)
        return self._shaped(_Row.apply(rows, weight, self.group, self.wire, self.sequence), bias, x)
