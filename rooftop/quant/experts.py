"""Experts of a mixture whose weights are parameters of three dimensions, quantised: those of Hugging Face Transformers (Mixtral, Qwen3-MoE,
gpt-oss, DeepSeek-V3 and others of its experts interface)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.formats.packed import ROWS, PackedWeight
from rooftop.quant import calibrate
from rooftop.quant.layer import FLOATS
from rooftop.quant.linear import QuantLinear

FACTS = ("num_experts", "has_gate", "has_bias", "is_transposed")


def projections(module: nn.Module) -> tuple[str, ...]:
    """The names of the weights of experts; () for another module."""
    if not all(hasattr(module, name) for name in FACTS) or not hasattr(type(module).forward, "__wrapped__"):
        return ()
    return ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")


def layer_of(name: str) -> str:
    """The name that a weight's layer has in `QuantExperts`: another one, so that Transformers takes its buffers for no weight of experts,
    which it divides and renames in checkpoints."""
    return name.removesuffix("_proj")


def sizes(module: nn.Module, name: str) -> tuple[int, int]:
    """(N, K) of one expert's weight."""
    _, n, k = getattr(module, name).shape
    return (int(k), int(n)) if module.is_transposed else (int(n), int(k))


def in_place(model: nn.Module, name: str) -> tuple[nn.Module, str] | None:
    """Of a layer's name in a model with `QuantExperts`: the experts of a model without, and the weight whose place it has. None where there
    are none of that name."""
    parent, last = name.rpartition(".")[::2]
    try:
        holder = model.get_submodule(parent)
    except AttributeError:
        return None
    weight = {layer_of(w): w for w in projections(holder)}.get(last)
    return None if weight is None or holder._parameters.get(weight) is None else (holder, weight)


def whole(module: nn.Module, name: str) -> tuple[int, int]:
    """(N, K) of all experts' weights as one."""
    n, k = sizes(module, name)
    return len(module._parameters[name]) * n, k


def lacking(module: nn.Module, layers: Mapping[str, Any]) -> str:
    """The layers that a weight of these experts has, and that are not among `layers`."""
    return ", ".join(layer_of(w) for w in projections(module) if w not in layers)


def obstacle(module: nn.Module, format: str, group: int, method: str) -> str:
    """Why these experts stay as they are; "" where they can be converted."""
    names = projections(module)
    held = [module._parameters.get(name) for name in names]
    if any(p is None or p.dim() != 3 or p.shape[0] != module.num_experts for p in held):
        return "experts whose weights are not one parameter of three dimensions for each product"
    if method == "gptq":
        return "experts, whose inputs gptq does not see"
    for name in names:
        n, k = sizes(module, name)
        if n % ROWS:
            return f"experts with rows of results that are no multiple of {ROWS}"
        if calibrate.fitting(format, group, k) is None:
            return f"experts whose K no group up to {group} divides (group=0 takes any K)"
    return ""


class QuantExperts(nn.Module):  # type: ignore[misc]
    """Experts with quantised weights: each product is a `QuantLinear` whose rows are those of all experts, one expert after the other. What
    else the experts have (biases, activation, numbers of the gate) it takes over, and it is called as they are.

    The tokens are sorted by expert, and each expert that has tokens multiplies its own by `rooftop.quantized_matmul`. How many tokens an
    expert has is read from the device, once a call. Gradients flow to the tokens, their weights and the biases."""

    def __init__(self, of: nn.Module, made: dict[str, QuantLinear]) -> None:
        super().__init__()
        inner = set(vars(self)) | {"_modules", "_parameters", "_buffers"}
        self.__dict__.update({name: value for name, value in vars(of).items() if name not in inner})
        self.training = of.training
        self._modules.update(of._modules)
        self._parameters.update({name: p for name, p in of._parameters.items() if name not in made})
        self._buffers.update(of._buffers)
        self.gate: Callable[[Any, Tensor], Tensor] | None = type(of)._apply_gate if of.has_gate else None
        for name, layer in made.items():
            setattr(self, layer_of(name), layer)

    @classmethod
    def of(cls, module: nn.Module, format: str, groups: dict[str, int], **how: Any) -> QuantExperts:
        """`groups`: by the name of the weight. `how`: zero_points, method and activations, as of `rooftop.quantize_model`."""
        return cls(module, {name: _quantised(module, name, format, groups[name], **how) for name in projections(module)})

    def weight(self, name: str, expert: int) -> PackedWeight:
        """One expert's weight, without a copy."""
        layer = getattr(self, layer_of(name))
        n = layer.out_features // self.num_experts
        high = n // ROWS
        first = expert * high
        codes, scale, zero = (None if t is None else t[first : first + high] for t in (layer.codes, layer.scale, layer.zero))
        return PackedWeight(codes, scale, zero, **{**layer.facts, "shape": (n, layer.in_features)})

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states [tokens, H]; top_k_index, top_k_weights [tokens, k]. An index of `num_experts` or more is an expert of another
        rank, which gives zeros. Returns [tokens, H]; the sum over k is in float32."""
        tokens, k = top_k_index.shape
        chosen, order = torch.sort(top_k_index.reshape(-1), stable=True)
        ends = torch.searchsorted(chosen, torch.arange(self.num_experts, device=chosen.device), right=True).tolist()
        x, *_ = QuantLinear.cast(hidden_states)
        rows, begin, found = x[order // k], 0, []
        for expert, end in enumerate(ends):
            if end > begin:
                found.append(self._expert(rows[begin:end], expert))
            begin = end
        if begin < rows.shape[0] or not found:
            found.append(rows.new_zeros(rows.shape[0] - begin, hidden_states.shape[-1]))
        made = torch.cat(found)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
        weighted = made[back].view(tokens, k, hidden_states.shape[-1]) * top_k_weights[..., None]
        return weighted.sum(1, dtype=torch.promote_types(weighted.dtype, torch.float32)).to(hidden_states.dtype)

    def _expert(self, x: Tensor, expert: int) -> Tensor:
        from rooftop.ops.quantized_matmul import quantized_matmul

        def product(rows: Tensor, name: str) -> Tensor:
            bias = getattr(self, f"{name}_bias")[expert].to(rows.dtype) if self.has_bias else None
            return quantized_matmul(rows, self.weight(name, expert), bias, activations=getattr(self, layer_of(name)).activations)

        h = product(x, "gate_up_proj" if self.has_gate else "up_proj")
        return product(self.gate(self, h) if self.gate is not None else self.act_fn(h), "down_proj")

    def extra_repr(self) -> str:
        return f"{self.num_experts} experts"


def _quantised(
    module: nn.Module, name: str, format: str, group: int, zero_points: bool = False, method: str = "nearest", activations: str | None = None
) -> QuantLinear:
    """The layer of all experts' rows. An expert at a time: a whole parameter in float32 would be too large."""
    packed = []
    for weight in getattr(module, name).detach():
        w = weight.t() if module.is_transposed else weight
        packed.append(
            calibrate.hqq(w, format, group=group) if method == "hqq"
            else calibrate.nearest(w, format, group=group, zero_points=zero_points)
        )
    return QuantLinear(_stacked(packed), None, activations=activations)


def _stacked(packed: Sequence[PackedWeight]) -> PackedWeight:
    """Weights of one shape as one, their rows one after the other."""
    one = packed[0]
    if len({w.scale_dtype for w in packed}) > 1:  # float16 and float32: as float32
        packed = [dataclasses.replace(w, scale=w.scale.float(), zero=_float(w.zero), scale_dtype="f32") for w in packed]
    zero = None if one.zero is None else torch.cat([w.zero for w in packed])
    return dataclasses.replace(
        packed[0], codes=torch.cat([w.codes for w in packed]), scale=torch.cat([w.scale for w in packed]), zero=zero,
        shape=(len(packed) * one.shape[0], one.shape[1]),
    )


def _float(zero: Tensor | None) -> Tensor | None:
    return zero if zero is None or zero.dtype == torch.uint8 else zero.float()


def check(module: nn.Module) -> None:
    """Raises TypeError for weights of a dtype that no kernel takes, ValueError for weights without values."""
    for name in projections(module):
        p = module._parameters[name]
        if p.dtype not in FLOATS:
            raise TypeError(f"{name} is {p.dtype}; accepted are {', '.join(map(str, FLOATS))}: cast the model first, as with model.float()")
        if p.device.type == "meta":
            raise ValueError(f"{name} is on the meta device and has no values; load the model first")
