"""MLPs with a gate: down(act(gate(x)) * up(x)), the two products apart or packed in one; and activations that stand alone."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.drop_in.swapping import builder
from rooftop.drop_in.trials import in_mode, is_linear, ordinary, quiet, replaced_forward, required, same, small_linears, twin
from rooftop.ops.geglu import geglu
from rooftop.ops.gelu import gelu
from rooftop.ops.silu import silu
from rooftop.ops.swiglu import swiglu

ACTS = ("silu", "none", "tanh")  # silu, and gelu exact and approximate
FAR = 300.0  # of the inputs of a second trial: beyond any clamp, where the first is within
How = tuple[str, str, str, int]  # one of ACTS; of silu also the attributes that hold limit and alpha, or "", and the offset of the values


def gated(module: Any, how: How, gate: Tensor, up: Tensor | None, interleaved: bool = False) -> Tensor:
    """act(gate) · up; without `up` the gate holds both. `module` has the attributes of `how`."""
    act, limit, alpha, offset = how
    if act != "silu":
        return geglu(gate, up, act)
    bound, factor = getattr(module, limit) if limit else None, getattr(module, alpha) if alpha else 1.0
    return swiglu(gate, up, limit=bound, alpha=factor, offset=offset, interleaved=interleaved)


def ways(names: Sequence[str]) -> Iterator[How]:
    """The gates that a module with numbers of these names may have, the usual ones first."""
    for act in ACTS:
        yield act, "", "", 0
    for limit, alpha, offset in itertools.product((*names, ""), (*names, ""), (1, 0)):
        if (limit or alpha or offset) and not (limit and limit == alpha):
            yield "silu", limit, alpha, offset


def numbers(module: Any) -> tuple[str, ...]:
    return tuple(n for n, v in vars(module).items() if isinstance(v, float) and v > 0)


@builder("mlp")
def mlp_class(base: type, gate: str, up: str, down: str, how: How, order: str) -> dict[str, Any]:
    """`up` is "" where `gate` makes both, then `order` says where the gate is: "first", "last", or "in turns"."""
    plain: Callable[..., Any] = base.forward  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if len(given) + len(named) != 1:  # as a norm with a gate that may be given
            return plain(self, *given, **named)
        (x,) = given or named.values()
        if not ordinary(x):
            return plain(self, x)
        layers = self._modules
        a = layers[gate](x)
        if up:
            return layers[down](gated(self, how, a, layers[up](x)))
        if order != "last":
            return layers[down](gated(self, how, a, None, order == "in turns"))
        n = a.shape[-1] // 2
        return layers[down](gated(self, how, a[..., n:], a[..., :n]))

    return {"forward": forward}


@builder("act")
def act_class(base: type, act: str) -> dict[str, Any]:
    plain: Callable[..., Any] = base.forward  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if len(given) + len(named) != 1:  # as a norm with a gate that may be given
            return plain(self, *given, **named)
        (x,) = given or named.values()
        if not ordinary(x) or not x.numel():
            return plain(self, x)
        return silu(x) if act == "silu" else gelu(x, act)

    return {"forward": forward}


def mlp_candidate(module: nn.Module) -> bool:
    """Two or three linear layers, of which one leads back, and no parameters of its own."""
    layers = {n: m for n, m in module._modules.items() if is_linear(m)}
    acts = [m for n, m in module._modules.items() if n not in layers and act_candidate(m)]
    acts += [v for v in vars(module).values() if isinstance(v, types.FunctionType | types.BuiltinFunctionType)]
    own = any(p is not None for p in module._parameters.values())
    return bool(acts or numbers(module)) and not own and len(required(type(module).forward) or "") == 1 and any(_mlps(layers, ()))


def mlp_signature(module: nn.Module) -> tuple[Any, ...]:
    children = tuple(
        (n, type(m).__qualname__, (m.in_features, m.out_features) if is_linear(m) else getattr(m, "p", None))
        for n, m in module._modules.items()
    )
    return children, tuple((n, v) for n, v in sorted(vars(module).items()) if isinstance(v, (float, str, bool)) and n != "training")


def find_mlp(module: nn.Module, gradients: bool = True) -> tuple[Any, ...] | str:
    """The options of `mlp_class`, or why there are none."""
    if why := replaced_forward(module):
        return why
    with quiet():
        small = small_linears({n: m for n, m in module._modules.items() if is_linear(m)})
        theirs = twin(module, modules=small)
        for options in _mlps(small, numbers(module)):
            x = torch.randn(3, 2, small[options[0]].in_features)
            ours = twin(module, modules=small)
            ours.__class__ = type("Trial", (type(module),), mlp_class(type(module), *options))
            # dropout would show in training
            tried = ((in_mode(ours, on), in_mode(theirs, on), [k * x]) for on in (True, False) for k in (1.0, FAR))
            if all(same(*one, gradients) for one in tried):
                return options
    return "it is no gated unit with silu or gelu"


def _mlps(layers: dict[str, nn.Linear], names: Sequence[str]) -> Iterator[tuple[str, str, str, How, str]]:
    sizes = {n: (m.in_features, m.out_features) for n, m in layers.items()}
    for down, (inner, outer) in sizes.items():
        ups = [n for n in sizes if n != down]
        for how in ways(names):
            if len(ups) == 2 and all(sizes[n] == (outer, inner) for n in ups):
                yield ups[0], ups[1], down, how, ""
                yield ups[1], ups[0], down, how, ""
            if len(ups) == 1 and sizes[ups[0]] == (outer, 2 * inner):
                yield from ((ups[0], "", down, how, order) for order in ("first", "last", *(["in turns"] if how[0] == "silu" else [])))


def act_candidate(module: nn.Module) -> bool:
    empty = not (module._modules or module._parameters or module._buffers)
    return empty and not isinstance(module, nn.Dropout | nn.Identity) and len(required(type(module).forward) or "") == 1


def act_signature(module: nn.Module) -> tuple[Any, ...]:
    return (tuple((n, str(v)) for n, v in sorted(vars(module).items()) if n != "training" and not n.startswith("_")),)


def find_act(module: nn.Module, gradients: bool = True) -> tuple[Any, ...] | str:
    if why := replaced_forward(module):
        return why
    with quiet():
        x = torch.randn(5, 7) * 2
        for act in ACTS:
            ours = twin(module)
            ours.__class__ = type("Trial", (type(module),), act_class(type(module), act))
            if all(same(ours, twin(module), [k * x], gradients) for k in (1.0, FAR)):
                return (act,)
    return "it is neither silu nor gelu"
