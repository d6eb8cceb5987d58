"""Several processes of a gloo group, each of which runs one function; what they return, or how they failed."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# What the process has imported that all of them are forked from: in each of them it would take longer than most of what they do.
multiprocessing.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "rooftop.comm"])


def start(function: Callable[..., Any], args: tuple[Any, ...], ranks: int, join: bool) -> Any:
    """`function(rank, *args)` in a process a rank."""
    return mp.start_processes(function, args, ranks, join=join, start_method="forkserver")  # type: ignore[no-untyped-call]


def _work(rank: int, folder: str, ranks: int, function: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout))
    try:
        found = ("ok", function(rank, ranks, *args))
    except Exception as error:
        found = ("failed", (type(error).__name__, str(error), traceback.format_exc()))
    torch.save(found, Path(folder) / f"{rank}.pt")
    if found[0] == "ok":
        dist.destroy_process_group()


def run(function: Callable[..., Any], ranks: int, *args: Any, timeout: float = 120, fails: bool = False) -> list[Any]:
    """What `function(rank, ranks, *args)` returns on each rank; with `fails`, (name of the error, its text) of each that raised, None of one that vanished."""
    with tempfile.TemporaryDirectory() as folder:
        context = start(_work, (folder, ranks, function, args, timeout), ranks, join=False)
        for process in context.processes:
            process.join(300)
        found: list[Any] = []
        for rank in range(ranks):
            path = Path(folder) / f"{rank}.pt"
            kind, value = torch.load(path, weights_only=False) if path.is_file() else ("vanished", None)
            if not fails and kind != "ok":
                raise AssertionError(f"rank {rank} {kind}: {value[2] if value else ''}")
            found.append(value[:2] if kind == "failed" else value)
        return found
