"""All-reduce by size and wire: the table by which `rooftop.comm` chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

SIZES = tuple(1 << n for n in range(16, 29, 2))  # bytes


def sizes(group: Any, wires: Sequence[str] = ("bf16", "fp8", "int8", "int4"), say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Microseconds of torch's all-reduce and of ours in bfloat16, by size and wire: of the slowest rank, the median of seven runs of many calls. Collective."""
    from rooftop.comm import collectives, symmetric

    device = torch.device("cuda", torch.cuda.current_device())
    rows = []
    for size in SIZES:
        x = torch.randn(size // 2, device=device).bfloat16()
        plain = _microseconds(lambda x=x: dist.all_reduce(x, group=group), group)  # type: ignore[misc]
        for wire in wires:
            row: dict[str, Any] = {"bytes": size, "wire": wire, "plain_us": plain}
            for path in ("portable",) if symmetric.unable(x, group) else ("portable", "symmetric"):
                row[f"{path}_us"] = _microseconds(
                    lambda x=x, wire=wire, path=path: collectives.all_reduce(x, group, wire=wire, path=path, verify=False), group  # type: ignore[misc]
                )  # fmt: skip
            rows.append(row)
            say(str(row))
    return rows


def _microseconds(call: Callable[[], Any], group: Any, calls: int = 20) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(7):
        dist.barrier(group=group)
        torch.cuda.synchronize()
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        for _ in range(calls):
            call()
        ended.record()
        torch.cuda.synchronize()
        times.append(1000 * begun.elapsed_time(ended) / calls)
    slowest = torch.tensor(sorted(times)[3], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return round(float(slowest), 2)
