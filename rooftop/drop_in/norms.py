"""Norms of rows: rms_norm, with a weight that may be stored as its difference from 1, and layer_norm. Which one a module is, is found by
trial."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.drop_in.swapping import builder
from rooftop.drop_in.trials import ordinary, quiet, replaced_forward, required, same, twin
from rooftop.ops.layer_norm import layer_norm
from rooftop.ops.rms_norm import rms_norm


@builder("norm")
def norm_class(base: type, kind: str, eps_name: str | None, offset: int, promotes: bool) -> dict[str, Any]:
    """`promotes`: a weight of another dtype than the input's decides the result's, as where eager multiplies after it has rounded."""
    plain: Callable[..., Any] = base.forward  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if len(given) + len(named) != 1:  # as a norm with a gate that may be given
            return plain(self, *given, **named)
        (x,) = given or named.values()
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        if not ordinary(x, weight, bias):
            return plain(self, x)
        eps = None if eps_name is None else getattr(self, eps_name)
        to = torch.promote_types(x.dtype, weight.dtype) if promotes and weight is not None else x.dtype
        weight, bias = (t if t is None or t.dtype in (x.dtype, torch.float32) else t.float() for t in (weight, bias))
        if kind == "rms":
            y = rms_norm(x, (x.shape[-1],), weight, eps, offset=offset)
        else:
            y = layer_norm(x, (x.shape[-1],), weight, bias, 1e-5 if eps is None else eps)
        return y if y.dtype == to else y.to(to)

    return {"forward": forward, "takes_residual": kind == "rms" and not promotes}


def candidate(module: nn.Module) -> bool:
    """Whether it has the form of a norm: no children, no parameters but a weight and a bias of one dimension, one argument."""
    held = {n: p for n, p in module._parameters.items() if p is not None}
    if module._modules or not set(held) <= {"weight", "bias"} or any(p.dim() != 1 for p in held.values()):
        return False
    if held.get("weight") is None and not _eps_names(module):
        return False
    return isinstance(module, nn.LayerNorm | nn.RMSNorm) or (
        not isinstance(module, _OTHERS) and len(required(type(module).forward) or "") == 1
    )


_OTHERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.Dropout, nn.Embedding)


def _eps_names(module: nn.Module) -> list[str]:
    return [n for n, v in vars(module).items() if isinstance(v, float) and 0 <= v < 0.1]


def signature(module: nn.Module) -> tuple[Any, ...]:
    """What modules of one class may differ in."""
    floats = tuple((n, v) for n, v in sorted(vars(module).items()) if isinstance(v, (float, str, bool, tuple)) and n != "training")
    return (floats, tuple((n, None if p is None else tuple(p.shape)) for n, p in module._parameters.items()))


def find(module: nn.Module, gradients: bool = True) -> tuple[Any, ...] | str:
    """The options of `norm_class`, or why there are none."""
    if why := replaced_forward(module):
        return why
    with quiet():
        width = next((p.shape[-1] for p in module._parameters.values() if p is not None), 48)
        parameters = {n: None if p is None else torch.randn(p.shape) for n, p in module._parameters.items()}
        theirs = twin(module, parameters)
        x = torch.randn(3, 2, width)
        small = x * 2e-3  # squares as small as the usual eps: another one is seen
        for options in _candidates(module):
            ours = twin(module, parameters)
            ours.__class__ = type("Trial", (type(module),), norm_class(type(module), *options, False))
            if all(same(ours, theirs, [each], gradients) for each in (x, small)):
                return (*options, _promotes(theirs, x))
    return "it computes something else than rms_norm and layer_norm"


def _candidates(module: nn.Module) -> Iterator[tuple[str, str | None, int]]:
    for eps in (*_eps_names(module), None):
        if module._parameters.get("bias") is None:
            yield "rms", eps, 0
            if module._parameters.get("weight") is not None:
                yield "rms", eps, 1
        yield "layer", eps, 0


def _promotes(theirs: Any, x: Tensor) -> bool:
    """Whether an input of 16 bits and a float32 weight give a float32 result."""
    try:
        return bool(theirs(x.bfloat16()).dtype == torch.float32)
    except RuntimeError:
        return False
