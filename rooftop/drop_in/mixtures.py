"""Experts of a mixture: an experts function of Hugging Face Transformers over `rooftop.grouped_matmul`."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.core.op import constant
from rooftop.drop_in.gates import FAR, gated, ways
from rooftop.drop_in.trials import ordinary, quiet, same, twin
from rooftop.ops.grouped_matmul import grouped_matmul

NAME = "rooftop"
NUMBERS = ("limit", "swiglu_limit", "alpha", "swiglu_alpha")  # attributes that a gate may clamp at or multiply by


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What `ALL_EXPERTS_FUNCTIONS` of Transformers calls: rows are sorted by expert, so that each product is one call for all experts.

    Args:
        self: the experts: `gate_up_proj` or `up_proj`, and `down_proj` [experts, N, K] or transposed, with or without biases.
        hidden_states: [tokens, H].
        top_k_index, top_k_weights: [tokens, k]; an index of `num_experts` or more is an expert of another rank, which gives zeros.

    Returns [tokens, H] in the dtype of `hidden_states`; the sum over k is in float32."""
    tokens, k = top_k_index.shape
    chosen, order = torch.sort(top_k_index.reshape(-1), stable=True)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    offsets = torch.searchsorted(chosen, torch.arange(self.num_experts, device=chosen.device), right=True).int()

    def product(rows: Tensor, name: str) -> Tensor:
        weight = getattr(self, name)
        made = grouped_matmul(rows, weight if self.is_transposed else weight.transpose(1, 2), offsets)
        return made + getattr(self, f"{name}_bias")[chosen.clamp(max=self.num_experts - 1)].to(made.dtype) if self.has_bias else made

    h = product(_Sorted.apply(hidden_states, order, back, k), "gate_up_proj" if self.has_gate else "up_proj")
    if self.has_gate:
        found = gate_of(type(self), type(getattr(self, "act_fn", None)), tuple([n for n in NUMBERS if hasattr(self, n)]))
        h = self._apply_gate(h) if found is None else gated(self, found[:4], h, None, found[4])
    else:
        h = self.act_fn(h)
    made = product(h, "down_proj")
    if self.has_bias:  # rows of experts elsewhere are zeros, before their bias
        made = made.masked_fill((chosen >= self.num_experts)[:, None], 0.0)
    weighted = _Sorted.apply(made, back, order, 1).view(tokens, k, -1) * top_k_weights[..., None]
    return weighted.sum(1, dtype=torch.promote_types(weighted.dtype, torch.float32)).to(hidden_states.dtype)


class _Sorted(torch.autograd.Function):  # type: ignore[misc]
    """Row order[i] // k of [N, H], for each i. `back` is the inverse of the permutation `order`: the gradient is a gather too, without the
    sort that torch's needs for rows that may come twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(back)
        ctx.k = k
        return x[order // k if k > 1 else order]

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None, None]:
        (back,) = ctx.saved_tensors
        rows = d[back]
        if ctx.k > 1:
            rows = rows.view(-1, ctx.k, d.shape[-1]).sum(1, dtype=torch.promote_types(d.dtype, torch.float32)).to(d.dtype)
        return rows, None, None, None


@constant
def gate_of(experts: type, act: type, names: tuple[str, ...]) -> tuple[str, str, str, int, bool] | None:
    """The gate of experts that make gate and up at once, as `gates.gated` takes it, and whether these come in turns; None for another one.
    Found by trial, once for classes and the names of numbers."""
    key = (experts, act, names)
    if key not in _GATES:
        _GATES[key] = _gate(*key)
    return _GATES[key]


_GATES: dict[Any, tuple[str, str, str, int, bool] | None] = {}


def _gate(experts: type, act: type, names: tuple[str, ...]) -> tuple[str, str, str, int, bool] | None:
    with quiet():
        try:
            holder = types.SimpleNamespace(act_fn=act(), **{n: 1.5 + 0.7 * i for i, n in enumerate(names)})
            apply = types.MethodType(experts._apply_gate, holder)  # type: ignore[attr-defined]
            x = torch.randn(6, 16) * torch.tensor([[2.0], [2.0], [2.0], [FAR], [FAR], [FAR]])
            for how in ways(names):
                for in_turns in (False, True) if how[0] == "silu" else (False,):
                    if torch.allclose(apply(x), gated(holder, how, x, None, in_turns), atol=2e-6, rtol=2e-6):
                        return *how, in_turns
        except Exception:  # a gate that needs more of its experts
            return None
    return None


def register_experts(name: str = NAME) -> None:
    """Make ``experts_implementation="rooftop"`` known to Hugging Face Transformers (5.5 or later).

    Raises ImportError where Transformers is not installed, or has no interface for experts."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(name, experts_forward)


def candidate(module: nn.Module) -> bool:
    known = all(hasattr(module, n) for n in ("num_experts", "has_gate", "is_transposed", "has_bias", "config"))
    return known and module._parameters.get("down_proj") is not None


def signature(module: nn.Module) -> tuple[Any, ...]:
    return (tuple(n for n, p in module._parameters.items() if p is not None), type(getattr(module, "act_fn", None)).__name__)


def find(module: nn.Module, gradients: bool = True) -> tuple[Any, ...] | str:
    """() where the experts function gives what the experts' own forward does, or why it does not."""
    if not ordinary(*module._parameters.values()):
        kinds = ", ".join(sorted(
            {"distributed" if type(p).__name__ == "DTensor" else str(p.dtype) for p in module._parameters.values() if not ordinary(p)}
        ))
        return f"weights of it are {kinds}; grouped products take float32, float16 and bfloat16 of one device"
    with quiet():
        unit = 8 / max(min(min(p.shape[1:]) for p in module._parameters.values() if p is not None and p.dim() == 3), 1)
        count = min(int(module.num_experts), 4)

        def shrunk(p: Tensor | None) -> Tensor | None:
            return None if p is None else torch.randn(count, *(max(1, round(n * unit)) for n in p.shape[1:]))

        theirs = twin(module, {n: shrunk(p) for n, p in module._parameters.items()})
        theirs.__dict__["num_experts"] = count
        plain = next((c.__wrapped__ for c in [type(module).forward] if hasattr(c, "__wrapped__")), None)
        if plain is None:
            return "its class does not use the interface of experts"
        theirs.__class__ = type("Plain", (type(module),), {"forward": plain})
        ours = twin(theirs)
        ours.__class__ = type("Trial", (type(module),), {"forward": experts_forward})
        width = theirs._parameters["down_proj"].shape[2 if module.is_transposed else 1]
        x, weights = torch.randn(7, width), torch.rand(7, 2)
        index = torch.stack([torch.randperm(count)[:2] for _ in range(7)]) if count > 1 else torch.zeros(7, 2, dtype=torch.long)
        ours._parameters = theirs._parameters
        fixed = (_Indexed(ours, index), _Indexed(theirs, index))
        alike = all(same(*fixed, [k * x, weights], gradients) for k in (1.0, FAR))
        return () if alike else "its experts compute something else"


class _Indexed(nn.Module):  # type: ignore[misc]
    """Experts that are called with tokens and weights alone."""

    def __init__(self, experts: nn.Module, index: Tensor) -> None:
        super().__init__()
        self.experts = experts
        self.__dict__["index"] = index

    def forward(self, x: Tensor, weights: Tensor) -> Any:
        return self.experts(x, self.index, weights)
