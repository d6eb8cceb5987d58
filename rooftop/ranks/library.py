"""The collectives as operators of torch.library, which `torch.compile` and export keep in their graphs: a group goes by its name, as in
torch's functional collectives. The public functions call them by themselves where they are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "rooftop_comm"
_OPTIONS = ("wire", "group_size", "hadamard", "stochastic", "seed", "shots", "path", "verify", "timeout")
_SCHEMA = (
    "(Tensor x, str group, str wire, int group_size, bool hadamard, bool stochastic, int seed, int? shots=None, str? path=None, bool? "
    "verify=None, "
    "float? timeout=None) -> Tensor"
)


def _group(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def _run(function: Callable[..., Any], x: Tensor, group: str, *args: Any) -> Tensor:
    name = function.__name__
    options = dict(zip(_OPTIONS, args, strict=False))  # those with defaults may be left out
    if name != "all_reduce" and options.pop("shots", None) is not None:
        raise ValueError(f"{name}: shots is for all_reduce alone")
    found: Tensor = function(x, _group(group), **options)
    return found.contiguous()


def _shape(name: str, x: Tensor, ranks: int) -> list[Any]:
    if name in ("all_reduce", "all_to_all"):
        return list(x.shape)
    return [x.shape[0] // ranks if name == "reduce_scatter" else x.shape[0] * ranks, *x.shape[1:]]


def register(*functions: Callable[..., Any]) -> Any:
    """Defines the namespace `torch.ops.rooftop_comm`, of the public functions by their names."""
    library = torch.library.Library(NAMESPACE, "DEF")
    for function in functions:
        name = function.__name__
        library.define(name + _SCHEMA)
        library.impl(name, lambda x, *args, function=function: _run(function, x, *args), "CompositeExplicitAutograd")

        def fake(x: Tensor, group: str, *args: Any, name: str = name) -> Tensor:
            return x.new_empty(_shape(name, x, _group(group).size()))

        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    return library, torch.ops.rooftop_comm


def traced(name: str, x: Tensor, group: Any, *args: Any) -> Tensor:
    """The operator, called where the public function is traced."""
    import torch.distributed as dist

    chosen = dist.group.WORLD if group is None else group
    return getattr(torch.ops.rooftop_comm, name)(x, chosen.group_name, *args)
