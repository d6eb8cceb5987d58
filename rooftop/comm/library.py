"""The collectives as operators of torch.library, which `torch.compile` and export keep in their graphs: a group goes by its name, as in torch's functional
collectives. The public functions call them by themselves where they are traced."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "rooftop_comm"
_OPTIONS = "str group, str wire, int group_size, bool hadamard, bool stochastic, int seed"
_SCHEMAS = {
    "all_reduce": f"(Tensor x, {_OPTIONS}, int shots, str path) -> Tensor", "reduce_scatter": f"(Tensor x, {_OPTIONS}) -> Tensor",
    "all_gather": f"(Tensor x, {_OPTIONS}) -> Tensor", "all_to_all": f"(Tensor x, {_OPTIONS}) -> Tensor",
}  # fmt: skip


def _group(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def _options(args: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("wire", "group_size", "hadamard", "stochastic", "seed"), args, strict=True))


def _run(name: str, x: Tensor, group: str, *args: Any) -> Tensor:
    from rooftop.comm import collectives

    more: dict[str, Any] = {}
    if name == "all_reduce":
        *args_, shots, path = args
        args, more = tuple(args_), {"shots": shots or None, "path": path or None}
    found: Tensor = getattr(collectives, name)(x, _group(group), **_options(tuple(args)), **more)
    return found.contiguous()


def _shape(name: str, x: Tensor, ranks: int) -> list[Any]:
    if name in ("all_reduce", "all_to_all"):
        return list(x.shape)
    return [x.shape[0] // ranks if name == "reduce_scatter" else x.shape[0] * ranks, *x.shape[1:]]


@cache
def register() -> Any:
    """The namespace `torch.ops.rooftop_comm`, defined by the first call."""
    library = torch.library.Library(NAMESPACE, "DEF")
    for name, schema in _SCHEMAS.items():
        library.define(name + schema)
        library.impl(name, lambda x, *args, name=name: _run(name, x, *args), "CompositeExplicitAutograd")

        def fake(x: Tensor, group: str, *args: Any, name: str = name) -> Tensor:
            return x.new_empty(_shape(name, x, _group(group).size()))

        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    return library, torch.ops.rooftop_comm


def traced(name: str, x: Tensor, group: Any, *args: Any) -> Tensor:
    """The operator, called where the public function is traced."""
    import torch.distributed as dist

    chosen = dist.group.WORLD if group is None else group
    found: Tensor = getattr(torch.ops.rooftop_comm, name)(x, chosen.group_name, *args)
    return found
