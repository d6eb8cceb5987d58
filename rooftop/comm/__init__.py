"""Collectives on torch.distributed that send 8 or 4 bits an element, and matrix products that overlap with them. See docs/comm.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.lazy_names import lazily

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

__all__ = [
    "ColumnParallelLinear", "CommError", "Disagreement", "ErrorFeedback", "Plan", "Routes", "RowParallelLinear", "Statistics",
    "all_gather", "all_gather_matmul", "all_reduce", "all_reduce_norm", "all_to_all", "combine_rows", "ddp_hook", "dispatch_rows",
    "fsdp_hook", "matmul_all_reduce", "matmul_reduce_scatter", "plan", "reduce_scatter", "sent", "set_hosts", "synchronize",
]
__getattr__, __dir__ = lazily("comm", __all__, {
    "ranks.collectives": ("Statistics", "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "sent", "synchronize"),
    "ranks.experts": ("Routes", "combine_rows", "dispatch_rows"), "ranks.fused": ("all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"),
    "ranks.groups": ("CommError", "Disagreement"), "ranks.hierarchy": "set_hosts", "ranks.norm": "all_reduce_norm", "ranks.ways": ("Plan", "plan"),
    "comm.hooks": ("ErrorFeedback", "ddp_hook", "fsdp_hook"), "comm.linear": ("ColumnParallelLinear", "RowParallelLinear"),
})
