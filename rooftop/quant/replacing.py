"""Which linear layers of a model another layer can take the place of, and how it takes it: in every place at once, or in none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.quant.layer import FLOATS, LinearLayer

HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook",
)


def is_linear(layer: Any) -> bool:
    """Whether it is a `torch.nn.Linear`, but none of ours, or the Conv1D of Transformers."""
    return (isinstance(layer, nn.Linear) and not isinstance(layer, LinearLayer)) or turned(layer)


def turned(layer: Any) -> bool:
    """Whether it is Transformers' Conv1D: x W + b with W [K, N]."""
    return type(layer).__name__ == "Conv1D" and type(layer).__module__ == "transformers.pytorch_utils"


def matrix(layer: nn.Module) -> Tensor:
    """The weight [N, K]."""
    return layer.weight.t() if turned(layer) else layer.weight


def sizes(layer: nn.Module) -> tuple[int, int]:
    """(N, K)."""
    n, k = layer.weight.shape
    return (int(k), int(n)) if turned(layer) else (int(n), int(k))


def linears(model: nn.Module) -> dict[str, tuple[nn.Module, list[str]]]:
    """Each `torch.nn.Linear`, those of a subclass too, and each Conv1D of Transformers by its first name, with all of its names."""
    names: dict[int, list[str]] = {}
    first: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear) or turned(module):
            if id(module) not in names:
                first[name] = module
            names.setdefault(id(module), []).append(name)
    return {name: (module, names[id(module)]) for name, module in first.items()}


def obstacle(layer: nn.Module) -> str:
    """Why nothing can take the place of this layer; "" where something can."""
    if type(layer) is not nn.Linear and not turned(layer):
        return f"a {type(layer).__name__}, a subclass"
    if "weight" not in layer._parameters or "bias" not in layer._parameters:
        return "its weight or bias is computed by a hook"
    if "forward" in vars(layer):
        return "its forward was replaced"
    return ""


def check_weight(layer: nn.Module) -> None:
    """Raises TypeError for a weight of a dtype that no kernel takes, ValueError for one without values."""
    for name in ("weight", "bias"):
        t = getattr(layer, name)
        if t is not None and t.dtype not in FLOATS:
            raise TypeError(
                f"its {name} is {t.dtype}; accepted are {', '.join(map(str, FLOATS))}: cast the model first, as with model.float()"
            )
        if t is not None and t.device.type == "meta":
            raise ValueError(f"its {name} is on the meta device and has no values; load the model first")


MATRIX = 32  # rows and columns from which a parameter is one that could be converted
OWN_KIND = (nn.Linear, nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvNd)


def say_left(what: str, model: nn.Module, why: Mapping[int, str], also: Sequence[str] = ()) -> None:
    """One warning that says what stays as it is, and how many bytes that is: the weights of the layers whose id is a key of `why`, and
    matrices that are no layer's weight, such as those of experts in one parameter. `also`: what else it says. None where nothing is to be
    said."""
    found: dict[str, dict[int, tuple[str, Tensor]]] = {}
    for name, module in model.named_modules():
        for key, p in module._parameters.items():
            if p is None or p.dim() < 2 or not p.is_floating_point() or key.endswith("_bias"):
                continue
            reason = why.get(id(module), "")
            if (
                not reason and not isinstance(module, OWN_KIND) and not turned(module) and min(p.shape[-2:]) >= MATRIX
                and (p.dim() == 2 or p.shape[0] > 1)
            ):
                reason = "parameters of three dimensions, experts as a rule" if p.dim() == 3 else "parameters that are no linear layer"
            if reason:
                found.setdefault(reason, {})[id(p)] = (f"{name}.{key}" if name else key, p)
    said = []
    for reason, params in found.items():
        names = [f"{n} {tuple(p.shape)}" for n, p in params.values()]
        size = sum(p.numel() * p.element_size() for _, p in params.values())
        said.append(f"{size} bytes of {reason}: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}")
    if said:
        total = sum(t.numel() * t.element_size() for t in {id(t): t for t in (*model.parameters(), *model.buffers())}.values())
        said[0] = f"of {total} bytes of the model these stay as they are. {said[0]}"
    if said or also:
        warnings.warn(f"{what}: {'; '.join((*also, *said))}", stacklevel=3)


def take_over(layer: nn.Module, of: nn.Module) -> None:
    """In training or in evaluation, and with the forward and backward hooks, as the layer whose place it takes. Handles of the hooks still
    remove them."""
    layer.train(of.training)
    for name in HOOKS:
        setattr(layer, name, getattr(of, name))


@contextmanager
def replaced(model: nn.Module, by: Mapping[int, nn.Module], values: bool = True) -> Iterator[nn.Module]:
    """Every place of a module whose id is a key gets the module of that key. Gives the model, or what takes the place of all of it. If the
    body raises, the modules, and with `values` what all tensors hold, are as before.

    The fast path of `nn.TransformerEncoderLayer` reads the weights of its linear layers: it is not taken where one of them is replaced."""
    parents, new = list(model.modules()), {id(m) for m in by.values()}
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []  # a dict, and what it held

    def keep(d: dict[str, Any]) -> None:
        before.append((d, dict(d)))

    for parent in parents:
        for child, module in list(parent._modules.items()):
            if id(module) in by:
                keep(parent._modules)
                parent._modules[child] = by[id(module)]
    for parent in parents:
        if isinstance(parent, nn.TransformerEncoderLayer) and any(id(m) in new for m in parent.children()):
            keep(vars(parent))
            parent.activation_relu_or_gelu = 0
        if isinstance(parent, nn.TransformerEncoder) and any(id(m) in new for m in parent.modules()):
            keep(vars(parent))
            parent.use_nested_tensor = False
    result = by.get(id(model), model)
    copies: dict[int, tuple[Tensor, Tensor]] = {}
    for module in result.modules() if values else ():
        if id(module) in new:
            continue
        keep(vars(module))
        for held in (module._parameters, module._buffers):
            keep(held)
            copies |= {
                id(t): (t, t.detach().clone()) for t in held.values() if t is not None and id(t) not in copies and t.device.type != "meta"
            }
    try:
        yield result
    except BaseException:
        with torch.no_grad():
            for t, old in copies.values():
                t.copy_(old)
        for d, held in reversed(before):
            d.clear()
            d.update(held)
        raise


def replace(model: nn.Module, by: Mapping[int, nn.Module]) -> nn.Module:
    """`replaced` with nothing to do that could fail."""
    with replaced(model, by, values=False) as result:
        return result
