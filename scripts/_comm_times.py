"""What scripts/comm_on_gpus.py times: the CPU's share of a small call, all-reduces by shots, all_reduce_norm, and matmul_reduce_scatter at shapes of a seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from statistics import geometric_mean, median
from typing import Any

import torch
import torch.distributed as dist
from _comm_checks import BF16, Here

from rooftop import comm
from rooftop.lab.timing import comm_sizes
from rooftop.ops.rms_norm import rms_norm
from rooftop.ranks import link_model, symmetric
from rooftop.ranks.steps import Options

WIRES = ("bf16", "int8", "int4", "fp8")
TIMED = tuple((wire, 128, False, False, BF16) for wire in WIRES)
SIZES = tuple(n << 10 for n in (32, 128, 384, 1 << 10, 3 << 9, 6 << 10, 24 << 10, 96 << 10))  # bytes


def us(h: Here, call: Callable[[], Any], calls: int = 20) -> float:
    return round(comm_sizes._microseconds(call, h.group, calls, 3000.0), 2)


def shown(h: Here, row: dict[str, Any]) -> dict[str, Any]:
    if h.rank == 0:
        print(row, flush=True)
    return row


def host(h: Here) -> dict[str, Any]:
    """Microseconds of the CPU in a call like earlier ones, 256 KiB: the median of 15 runs of 20 calls."""
    x, rows, w = (torch.randn(*shape, device=h.device).to(BF16) for shape in ((1 << 17,), (128, 1024), (1024,)))
    counts = torch.full((64,), 2, dtype=torch.int32, device=h.device)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: comm.all_reduce(x), "reduce_scatter": lambda: comm.reduce_scatter(x), "NCCL": lambda: dist.all_reduce(x),
        "all_reduce_norm": lambda: comm.all_reduce_norm(rows, rows, w), "dispatch_rows": lambda: comm.dispatch_rows(rows, counts, capacity=128),
    }
    found = {}
    for name, call in calls.items():
        x.zero_()
        for _ in range(40):
            call()
        times = []
        for _ in range(15):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(20):
                call()
            times.append((time.perf_counter() - begun) / 20 * 1e6)
        found[name] = round(median(times), 1)
    return {"us": [shown(h, found)]}


def shots(h: Here) -> dict[str, Any]:
    """Microseconds of all-reduces in one and in two shots beside NCCL, and of what the link model chooses over the fastest of these."""
    rows = []
    for size in SIZES:
        x, y, calls = torch.randn(size // 2, device=h.device).to(BF16), torch.zeros(size // 2, device=h.device, dtype=BF16), 20 if size < 8 << 20 else 4
        row: dict[str, Any] = {"bytes": size, "NCCL": us(h, partial(dist.all_reduce, y), calls)}
        for wire in WIRES:
            o = Options.of("times", wire, 128, False, False, 0)
            for n in (1, 2):
                row[f"{wire}, shots {n}"] = us(h, partial(symmetric.all_reduce, x, h.group, o, n), calls)
            n = link_model.shots(size // 2, 2, h.ranks, wire)
            chosen = "NCCL" if link_model.plain(size // 2, 2, h.ranks, wire, n) else f"{wire}, shots {n}"
            row[f"{wire}, regret"] = round(row[chosen] / min(row["NCCL"], *(row[f"{wire}, shots {k}"] for k in (1, 2))), 3)
        rows.append(shown(h, row))
    regrets = [row[f"{wire}, regret"] for row in rows for wire in WIRES]
    return {"us": rows, "regret": shown(h, {"mean": round(geometric_mean(regrets), 3), "largest": max(regrets)})}


def reduced_then_normed(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, wire: str) -> Any:
    return rms_norm(comm.all_reduce(x, wire=wire, shots=1, verify=False), x.shape[-1], weight, 1e-5, residual=residual)


def norm(h: Here) -> dict[str, Any]:
    """Microseconds of all_reduce_norm, and of an all-reduce in one shot with the norm after it."""
    rows = []
    for n, columns in ((1, 8192), (16, 8192), (64, 8192), (256, 8192), (512, 4096)):
        x, r, w = (torch.randn(*shape, device=h.device).to(BF16) for shape in ((n, columns), (n, columns), (columns,)))
        row: dict[str, Any] = {"rows": n, "columns": columns}
        for wire in ("bf16", "int8"):
            row[f"{wire}, one kernel"] = us(h, partial(comm.all_reduce_norm, x, r, w, 1e-5, wire=wire, verify=False))
            row[f"{wire}, two kernels"] = us(h, partial(reduced_then_normed, x, r, w, wire))
        rows.append(shown(h, row))
    return {"us": rows}


def products(h: Here, seed: int = 20261130) -> dict[str, Any]:
    """Microseconds of matmul_reduce_scatter, of the product and NCCL after it, and of torch's fused one, interleaved: medians of 11, the slower rank's."""
    import torch.distributed._symmetric_memory  # the library of torch.ops.symm_mem

    draw, name, rows = random.Random(seed), h.group.group_name, []
    for _ in range(6):
        m, n, k = (draw.randrange(4, 65) * 256 for _ in range(3))
        a, b = (torch.randn(m, k // 2, device=h.device) / 16).to(BF16), (torch.randn(k // 2, n, device=h.device) / 16).to(BF16)
        out = torch.empty(m // h.ranks, n, device=h.device, dtype=BF16)
        calls: dict[str, Callable[[], Any]] = {
            "ours": partial(comm.matmul_reduce_scatter, a, b, verify=False),
            "product, NCCL": partial(lambda out, a, b: dist.reduce_scatter_tensor(out, a @ b), out, a, b),
            "torch": partial(torch.ops.symm_mem.fused_matmul_reduce_scatter, a, b, "sum", scatter_dim=0, group_name=name),
            "product alone": partial(torch.matmul, a, b),
        }
        rows.append(shown(h, {"m": m, "n": n, "k": k, **interleaved(calls)}))
    ahead = [min(row["product, NCCL"], row["torch"]) / row["ours"] for row in rows]
    return {"us": rows, "ahead": shown(h, {"mean": round(geometric_mean(ahead), 3), "least": round(min(ahead), 3)})}


def interleaved(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Each call between two events, behind a kernel that waits until its launches are queued."""
    for call in calls.values():
        for _ in range(3):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(11):
        for name, call in calls.items():
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(1_500_000)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(1000 * begin.elapsed_time(end))
    return {name: round(comm_sizes._slowest(median(each), dist.group.WORLD), 1) for name, each in times.items()}


TIMES: dict[str, Callable[..., Any]] = {"host": host, "shots": shots, "norm": norm, "products": products}
