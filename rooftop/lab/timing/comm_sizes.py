"""Collectives by size and wire: the table by which `rooftop.comm` chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

SIZES = tuple(1 << n for n in (14, 16, 18, 19, 20, 21, 22, 24, 26, 28))  # bytes
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
MOST_CALLS, SAMPLE_US = 20, 4000.0  # calls of a graph; how long a sample is at least


def sizes(group: Any, wires: Sequence[str] = ("bf16", "fp8", "int8", "int4"), say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Microseconds of torch's collectives and of ours in bfloat16, by size of a rank's tensor and wire: of the slowest rank, the median of
    seven replays of a CUDA graph, so that what a call costs the CPU is in none of them. Collective."""
    from rooftop.ranks import symmetric

    device = torch.device("cuda", torch.cuda.current_device())
    rows = []
    for kind in KINDS:
        for size in SIZES if kind == "all_reduce" else SIZES[1::2]:
            x = torch.randn(size // 2, device=device).bfloat16()
            y = torch.zeros_like(x)  # which torch's all-reduce adds up in place: of zeros, so that it does not overflow
            plain = _microseconds(partial(_called, kind, y, group, "", "plain"), group)
            for wire in wires if kind == "all_reduce" else [w for w in wires if w != "fp8"]:
                row: dict[str, Any] = {"kind": kind, "bytes": size, "wire": wire, "plain_us": plain}
                for path in ("portable",) if symmetric.unable(x, group) else ("portable", "symmetric"):
                    row[f"{path}_us"] = _microseconds(partial(_called, kind, x, group, wire, path), group)
                rows.append(row)
                say(str(row))
    return rows


def _called(kind: str, x: torch.Tensor, group: Any, wire: str, path: str) -> Any:
    from rooftop.ranks import collectives

    if path == "plain" and kind == "all_reduce":
        return dist.all_reduce(x, group=group)
    return getattr(collectives, kind)(x, group, wire=wire or "bf16", path=path, verify=False)


def _slowest(value: float, group: Any) -> float:
    said = torch.tensor([value], dtype=torch.float64, device="cuda")
    dist.all_reduce(said, dist.ReduceOp.MAX, group=group)
    return float(said.item())


def _microseconds(call: Callable[[], Any], group: Any, most_calls: int = MOST_CALLS, sample_us: float = SAMPLE_US) -> float:
    """A sample is as many replays as take `sample_us`: the ranks begin it some tens of microseconds apart, which a sample of a few calls
    would show as their time. How long a replay takes is measured after it has run once: the first calls on a stream wait for memory of the
    driver."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(most_calls):
            call()
    graph.replay()
    once = _slowest(_timed(graph.replay, 1, group), group)
    replays = max(1, round(sample_us / once))

    def sample() -> None:
        for _ in range(replays):
            graph.replay()

    return round(_slowest(sorted(_timed(sample, most_calls * replays, group) for _ in range(7))[3], group), 2)


def _timed(run: Callable[[], Any], calls: int, group: Any) -> float:
    """Microseconds a call."""
    dist.barrier(group=group)
    torch.cuda.synchronize()
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    run()
    ended.record()
    torch.cuda.synchronize()
    return 1000 * begun.elapsed_time(ended) / calls
