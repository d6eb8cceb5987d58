"""Linear layers that are given one tensor, as one product: queries, keys and values, a gate and what it gates. A decoding step reads each
weight once, and one product of a few rows takes hardly longer than the largest of its parts. One row is a matrix times a vector, by
`rooftop.gemv`.

Which layers these are is seen in a run of the model. Their weights become views of one matrix, in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.drop_in.trials import HOOKS, ordinary
from rooftop.formats.packed import ROWS, PackedWeight
from rooftop.ops.gemv import gemv
from rooftop.ops.quantized_matmul import quantized_matmul
from rooftop.quant.linear import QuantLinear


class Packing:
    """The groups of a model: ``packing = Packing(model, run)``, where `run` calls the model once; ``with packing.on(): ...`` calls it
    so."""

    def __init__(self, model: nn.Module, run: Callable[[], Any]) -> None:
        self.groups = [_Group(layers) for layers in _together(model, run)]

    @contextmanager
    def on(self) -> Iterator[None]:
        for group in self.groups:
            group.refresh()
            for at, layer in enumerate(group.layers):
                layer.__dict__["forward"] = group.part(at)
        try:
            yield
        finally:
            for group in self.groups:
                group.given = group.made = None
                for layer in group.layers:
                    layer.__dict__.pop("forward", None)


def _together(model: nn.Module, run: Callable[[], Any]) -> list[list[Any]]:
    """Layers that were given the same tensor, unchanged in between, and are alike."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for t in _stored(module):
            owners[id(t)] = owners.get(id(t), 0) + 1
    candidates = [m for m in model.modules() if _kind(m) is not None and all(owners[id(t)] == 1 for t in _stored(m))]
    seen: list[tuple[Tensor, int, Any]] = []
    calls: dict[Any, int] = {}

    def note(layer: Any, given: tuple[Any, ...]) -> None:
        calls[layer] = calls.get(layer, 0) + 1
        if len(given) == 1 and isinstance(given[0], Tensor):
            seen.append((given[0], 0 if given[0].is_inference() else given[0]._version, layer))

    handles = [m.register_forward_pre_hook(note) for m in candidates]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    groups: dict[Any, list[Any]] = {}
    for x, version, layer in seen:
        if calls[layer] == 1:
            groups.setdefault((id(x), version, _kind(layer)), []).append(layer)
    found = [layers for layers in groups.values() if len(layers) > 1 or type(layers[0]) is nn.Linear]
    return [g for g in found if all(layer.out_features % ROWS == 0 for layer in g[:-1] if isinstance(layer, QuantLinear))]


def _stored(module: nn.Module) -> list[Tensor]:
    return [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]


def _kind(layer: nn.Module) -> tuple[Any, ...] | None:
    """What layers must have in common; None for one that is no candidate."""
    if type(layer) not in (nn.Linear, QuantLinear) or "forward" in vars(layer) or any(vars(layer).get(n) for n in HOOKS):
        return None
    bias = layer._parameters.get("bias")
    if not ordinary(bias):
        return None
    if type(layer) is nn.Linear:
        w = layer.weight
        if not ordinary(w) or type(w) is not nn.Parameter or not w.is_contiguous():
            return None
        return w.dtype, w.device, w.shape[1], w.requires_grad, bias is not None
    packed: Any = layer.packed
    if not isinstance(packed, PackedWeight):
        return None
    return packed.format, packed.shape[1], packed.group, packed.scale_dtype, packed.zero is not None, layer.activations, packed.device, bias is not None


class _Group:
    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = list(layers)
        self.ends = torch.tensor([m.out_features for m in layers]).cumsum(0).tolist()
        self.given: Tensor | None = None  # what `made` is the product of, until each layer has its part
        self.made: Tensor | None = None
        self.left = 0
        self.weight: Any = None
        self.bias: Tensor | None = None
        self.views: list[list[int]] = []

    def refresh(self) -> None:
        """Join the weights, if they are not, or no longer, parts of one matrix."""
        if self.views == [[t.data_ptr() for t in _stored(m)] for m in self.layers]:
            return
        with torch.inference_mode(False), torch.no_grad():
            biases = [m.bias for m in self.layers]
            self.bias = None if biases[0] is None else biases[0].data if len(biases) == 1 else _joined(biases)
            if len(self.layers) == 1:
                self.weight = self.layers[0].weight.data
            elif isinstance(self.layers[0], QuantLinear):
                packed = [m.packed for m in self.layers]
                parts = {
                    n: None if getattr(packed[0], n) is None else torch.cat([getattr(p, n) for p in packed])
                    for n in ("codes", "scale", "zero")
                }
                self.weight = replace(packed[0], **parts, shape=(self.ends[-1], packed[0].shape[1]))
                for name, whole in parts.items():
                    if whole is not None:
                        for m, part in zip(self.layers, whole.split([getattr(p, name).shape[0] for p in packed]), strict=True):
                            m._buffers[name] = part
            else:
                self.weight = _joined([m.weight for m in self.layers])
        self.views = [[t.data_ptr() for t in _stored(m)] for m in self.layers]

    def part(self, at: int) -> Callable[[Tensor], Tensor]:
        end = self.ends[at]
        begin = end - self.layers[at].out_features

        def forward(input: Tensor) -> Tensor:
            if input is not self.given or self.made is None:
                self.given, self.made, self.left = input, self.product(input), len(self.layers)
            made = self.made[..., begin:end]
            self.left -= 1
            if not self.left:
                self.given = self.made = None
            return made

        return forward

    def product(self, x: Tensor) -> Tensor:
        if isinstance(self.weight, PackedWeight):
            layer = self.layers[0]
            x, bias = layer.cast(x, self.bias)
            return quantized_matmul(x, self.weight, bias, activations=layer.activations)
        if x.numel() == x.shape[-1] and not torch.is_autocast_enabled(x.device.type):  # one row
            made = gemv(self.weight, x.reshape(-1)).view(*x.shape[:-1], -1)
            return made if self.bias is None else made + self.bias
        return nn.functional.linear(x, self.weight, self.bias)


def _joined(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Parameters one below the other; they become views of what is returned."""
    whole = torch.cat([p.data for p in parameters])
    for p, part in zip(parameters, whole.split([p.shape[0] for p in parameters]), strict=True):
        p.data = part
    return whole
