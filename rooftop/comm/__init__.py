"""Collectives on torch.distributed that send 8 or 4 bits an element, and matrix products that overlap with them. See docs/comm.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftop.comm.hooks import ErrorFeedback, ddp_hook, fsdp_hook
    from rooftop.comm.linear import ColumnParallelLinear, RowParallelLinear
    from rooftop.ranks.collectives import Statistics, all_gather, all_reduce, all_to_all, reduce_scatter, sent, synchronize
    from rooftop.ranks.experts import Routes, combine_rows, dispatch_rows
    from rooftop.ranks.fused import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
    from rooftop.ranks.groups import CommError, Disagreement
    from rooftop.ranks.hierarchy import set_hosts
    from rooftop.ranks.norm import all_reduce_norm
    from rooftop.ranks.ways import Plan, plan

_FROM = {
    **dict.fromkeys(("Statistics", "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "sent", "synchronize"), "ranks.collectives"),
    **dict.fromkeys(("Routes", "combine_rows", "dispatch_rows"), "ranks.experts"),
    **dict.fromkeys(("all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"), "ranks.fused"),
    **dict.fromkeys(("CommError", "Disagreement"), "ranks.groups"),
    "set_hosts": "ranks.hierarchy", "all_reduce_norm": "ranks.norm", "Plan": "ranks.ways", "plan": "ranks.ways",
    **dict.fromkeys(("ErrorFeedback", "ddp_hook", "fsdp_hook"), "comm.hooks"),
    **dict.fromkeys(("ColumnParallelLinear", "RowParallelLinear"), "comm.linear"),
}
__all__ = [
    "ColumnParallelLinear", "CommError", "Disagreement", "ErrorFeedback", "Plan", "Routes", "RowParallelLinear", "Statistics",
    "all_gather", "all_gather_matmul", "all_reduce", "all_reduce_norm", "all_to_all", "combine_rows", "ddp_hook", "dispatch_rows",
    "fsdp_hook", "matmul_all_reduce", "matmul_reduce_scatter", "plan", "reduce_scatter", "sent", "set_hosts", "synchronize",
]


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'rooftop.comm' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"rooftop.{_FROM[name]}"), name)


def __dir__() -> list[str]:
    return __all__
