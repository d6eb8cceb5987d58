"""Residual additions within a decoder layer, in the norm before or after them. Nothing crosses the end of a layer, so
`output_hidden_states` stays as it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rooftop.drop_in.swapping import builder, swap_of
from rooftop.drop_in.trials import in_mode, ordinary, quiet, replaced_forward, same, twin
from rooftop.ops.rms_norm import rms_norm

# Names of the parts of a layer that are looked for; what it computes of them is tried. With a norm after each part, sums go into these.
FORMS = {
    "pre": ("input_layernorm", "self_attn", "", "post_attention_layernorm", "mlp", ""),
    "sandwich": (
        "input_layernorm", "self_attn", "post_attention_layernorm", "pre_feedforward_layernorm", "mlp", "post_feedforward_layernorm"
    ),
    "sandwich of GLM": (
        "input_layernorm", "self_attn", "post_self_attn_layernorm", "post_attention_layernorm", "mlp", "post_mlp_layernorm"
    ),
    "post": ("", "self_attn", "post_attention_layernorm", "", "mlp", "post_feedforward_layernorm"),
}


@builder("residual")
def layer_class(base: type, parts: tuple[str, ...], multiplier: str) -> dict[str, Any]:
    plain: Callable[..., Any] = base.forward  # type: ignore[attr-defined]
    first, attention, after, second, mlp, last = parts

    def fed(self: Any, hidden_states: Any) -> Any:
        made = self._modules[mlp](hidden_states)
        return made[0] if isinstance(made, tuple) else made  # experts give their scores too

    if after:

        @functools.wraps(plain)
        def forward(self: Any, hidden_states: Any, *more: Any, **named: Any) -> Any:
            if more:
                return plain(self, hidden_states, *more, **named)
            made = self._modules[first](hidden_states) if first else hidden_states
            made = self._modules[attention](hidden_states=made, **named)[0]
            hidden_states = _normed_and_added(self._modules[after], made, hidden_states)
            made = fed(self, self._modules[second](hidden_states) if second else hidden_states)
            return _normed_and_added(self._modules[last], made, hidden_states)

    else:

        @functools.wraps(plain)
        def forward(self: Any, hidden_states: Any, *more: Any, **named: Any) -> Any:
            norm = self._modules[second]
            takes = norm_options(norm)
            if more or takes is None or _watched(norm):
                return plain(self, hidden_states, *more, **named)
            residual, factor = hidden_states, getattr(self, multiplier) if multiplier else 1.0
            made = self._modules[attention](hidden_states=self._modules[first](hidden_states), **named)[0]
            made = made * factor if multiplier else made
            eps_name, offset = takes
            hidden_states, residual = rms_norm(
                made.to(residual.dtype), (made.shape[-1],), _as_taken(norm._parameters.get("weight"), residual.dtype),
                None if eps_name is None else getattr(norm, eps_name), residual=residual, offset=offset,
            )
            made = fed(self, hidden_states)
            return residual + (made * factor if multiplier else made)

    return {"forward": forward}


def _normed_and_added(norm: nn.Module, made: Any, residual: Any) -> Any:
    """residual + norm(made), in one kernel where the norm is one that was found."""
    takes, weight = norm_options(norm), norm._parameters.get("weight")
    to = torch.promote_types(made.dtype, residual.dtype)
    if takes is None or _watched(norm) or not ordinary(made, residual, weight) or (
        _promotes(norm) and weight is not None and weight.dtype != to
    ):
        return residual + norm(made)
    eps_name, offset = takes
    return rms_norm(
        made.to(to), (made.shape[-1],), _as_taken(weight, to), None if eps_name is None else getattr(norm, eps_name),
        addend=residual.to(to), offset=offset,
    )


def _watched(norm: nn.Module) -> bool:
    return bool(
        "forward" in vars(norm) or norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks
    )


def _promotes(norm: nn.Module) -> bool:
    how = swap_of(norm)
    return how is not None and bool(how.options[3])


def _as_taken(weight: Any, dtype: Any) -> Any:
    return weight if weight is None or weight.dtype in (dtype, torch.float32) else weight.float()


def norm_options(norm: nn.Module) -> tuple[str | None, int] | None:
    """(the name of eps, the offset) of an rms_norm that was found; None for other modules, and where the result's dtype is the weight's."""
    how = swap_of(norm)
    if how is None or how.part != "norm" or how.options[0] != "rms":
        return None
    weight = norm._parameters.get("weight")
    if how.options[3] and weight is not None and weight.dtype == torch.float32 and torch.is_autocast_enabled(weight.device.type):
        return None  # the sum may be of 16 bits, and what follows expects float32
    return how.options[1], how.options[2]  # type: ignore[return-value]


SEEN: list[Any] = []  # what attention was given beside the hidden states, in trials


class _Pair(nn.Linear):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__(width, width)

    def forward(self, x: Any) -> Any:
        return super().forward(x), None


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, hidden_states: Any = None, *more: Any, **named: Any) -> Any:
        SEEN.append((more, named))
        return self.layer(hidden_states), None


def candidate(module: nn.Module) -> bool:
    return any({n for n in parts if n} <= set(module._modules) for parts in FORMS.values())


def signature(module: nn.Module) -> tuple[Any, ...]:
    children = tuple((n, type(m)) for n, m in module._modules.items())
    return children, tuple((n, v) for n, v in sorted(vars(module).items()) if isinstance(v, (float, bool, str)) and n != "training")


def find(module: nn.Module, gradients: bool = True) -> tuple[Any, ...] | str:
    """The options of `layer_class`, or why there are none. The norms have been found before."""
    if why := replaced_forward(module):
        return why
    width = 24
    multipliers = [n for n, v in vars(module).items() if isinstance(v, float) and n.endswith("multiplier")]
    reason = "the norm beside its additions is no rms_norm that takes them"
    with quiet():
        for parts in sorted(FORMS.values(), key=lambda p: -sum(map(bool, p))):
            if not {n for n in parts if n} <= set(module._modules) or norm_options(module._modules[parts[2] or parts[3]]) is None:
                continue
            reason = "it adds in another order"
            small: dict[str, nn.Module] = {}
            mlps = {"a tensor": nn.Linear(width, width), "a pair": _Pair(width)}
            for name, child in module._modules.items():
                if name == parts[1]:
                    small[name] = _Attention(width)
                elif isinstance(child._parameters.get("weight"), nn.Parameter) and child._parameters["weight"].dim() == 1:
                    small[name] = twin(child, {"weight": torch.randn(width)})
            for multiplier, mlp in ((m, p) for m in (*(() if parts[2] else multipliers), "") for p in mlps.values()):
                small[parts[4]] = mlp
                theirs, ours = twin(module, modules=small), twin(module, modules=small)
                ours.__class__ = type("Trial", (type(module),), layer_class(type(module), parts, multiplier))
                x = torch.randn(2, 3, width)
                if _trained(ours, theirs, x, gradients) and _handed_on(ours, x) == _handed_on(theirs, x):
                    return parts, multiplier
    return reason


def _trained(ours: Any, theirs: Any, x: Any, gradients: bool) -> bool:
    for m in (ours, theirs):
        m.__dict__["gradient_checkpointing"] = False
    return all(same(in_mode(ours, on), in_mode(theirs, on), [x], gradients) for on in (True, False))


def _handed_on(layer: Any, x: Any) -> Any:
    """What attention is given where the layer is given something by each of its names, and by one that it does not know."""
    names = [
        n for n, p in inspect.signature(type(layer).forward).parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ][2:]
    SEEN.clear()
    try:
        layer(x, **{n: f"given as {n}" for n in (*names, "another")})
    except Exception:  # a layer that works with what it is given itself
        return object()
    return SEEN[-1]
