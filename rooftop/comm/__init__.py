"""Collectives on torch.distributed that send 8 or 4 bits an element, and matrix products that overlap with them. See docs/comm.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftop.comm.collectives import Statistics, all_gather, all_reduce, all_to_all, reduce_scatter, sent, synchronize
    from rooftop.comm.fused import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
    from rooftop.comm.groups import CommError, Disagreement
    from rooftop.comm.hierarchy import set_hosts
    from rooftop.comm.hooks import ErrorFeedback, ddp_hook, fsdp_hook
    from rooftop.comm.linear import ColumnParallelLinear, RowParallelLinear
    from rooftop.comm.ways import Plan, plan

_FROM = {
    **dict.fromkeys(("Statistics", "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "sent", "synchronize"), "collectives"),
    **dict.fromkeys(("all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"), "fused"), **dict.fromkeys(("CommError", "Disagreement"), "groups"),
    "set_hosts": "hierarchy", "Plan": "ways", "plan": "ways",
    **dict.fromkeys(("ErrorFeedback", "ddp_hook", "fsdp_hook"), "hooks"), **dict.fromkeys(("ColumnParallelLinear", "RowParallelLinear"), "linear"),
}  # fmt: skip
__all__ = [
    "ColumnParallelLinear", "CommError", "Disagreement", "ErrorFeedback", "Plan", "RowParallelLinear", "Statistics", "all_gather", "all_gather_matmul",
    "all_reduce", "all_to_all", "ddp_hook", "fsdp_hook", "matmul_all_reduce", "matmul_reduce_scatter", "plan", "reduce_scatter", "sent",
    "set_hosts", "synchronize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'rooftop.comm' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"rooftop.comm.{_FROM[name]}"), name)
