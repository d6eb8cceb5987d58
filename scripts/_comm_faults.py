"""What scripts/comm_on_gpus.py tries with ranks that are late: those that never come, random stragglers in 10^4 calls, and how samples of a time are made."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from _comm_checks import BF16, FORMATS, FUNCTIONS, PRODUCTS, SOON, Here, called, differing, expected, raises
from torch import Tensor

from rooftop import comm
from rooftop.ranks import groups, symmetric


def warm(h: Here, group: Any, path: str) -> Tensor:
    x = torch.ones(4096, device=h.device)
    assert bool((comm.all_reduce(x, group, wire="bf16", path=path, verify=False) == h.ranks).all())
    h.settle()
    return x


def another_call(h: Here) -> None:
    """Not compared before: the kernels find it."""
    if not h.on_gpus:
        return
    group = dist.new_group()
    x = warm(h, group, "symmetric")
    got = comm.all_reduce(x, group, wire=h.pick("int8", "int4"), path="symmetric", verify=False, timeout=5)
    torch.cuda.synchronize()
    assert bool(got.isnan().all())
    with raises(comm.Disagreement, text="the ranks were given different arguments"):
        comm.synchronize(group)
    with raises(comm.Disagreement, text="the ranks were given different arguments"):
        comm.all_reduce(x, group, path="symmetric", verify=False)


def another_norm(h: Here) -> None:
    """all_reduce_norm with another eps, or format, on rank 1, not compared before: the kernels find it, and no rank has a sum."""
    if not h.on_gpus:
        return
    for name, value in (("eps", h.pick(1e-5, 1e-6)), ("format", h.pick(None, "int8"))):
        group = dist.new_group()
        x = torch.ones(4, 4096, device=h.device)
        comm.all_reduce_norm(x, group=group, path="symmetric", verify=False)
        h.settle()
        _, s = comm.all_reduce_norm(x, group=group, path="symmetric", verify=False, timeout=5, **{name: value})  # type: ignore[arg-type]
        torch.cuda.synchronize()
        assert bool(s.isnan().all()), name
        with raises(comm.Disagreement, text="the ranks were given different arguments"):
            comm.synchronize(group)


def another_dispatch(h: Here) -> None:
    """dispatch_rows with another capacity on rank 1, and combine_rows with routes of another dispatch, not compared before: the kernels find it, no rank has
    a row."""
    if not h.on_gpus:
        return
    x, n = torch.ones(64, 256, device=h.device), torch.full((2 * h.ranks,), 8, dtype=torch.int32, device=h.device)
    group = dist.new_group()
    comm.dispatch_rows(x, n, group, capacity=128, path="symmetric", verify=False)
    h.settle()
    rows, routes = comm.dispatch_rows(x, n, group, capacity=h.pick(128, 120), path="symmetric", verify=False, timeout=5)
    torch.cuda.synchronize()
    assert bool(rows.isnan().all()) and not routes.received.any()
    with raises(comm.Disagreement, text="the ranks were given different arguments"):
        comm.synchronize(group)
    group = dist.new_group()
    rows, routes = comm.dispatch_rows(x, n, group, path="symmetric", verify=False)
    _, others = comm.dispatch_rows(x, n - 1, group, path="symmetric", verify=False)
    assert bool(comm.combine_rows(rows, routes, group, path="symmetric", verify=False)[:-1].isfinite().all())
    h.settle()
    back = comm.combine_rows(rows, h.pick(routes, others), group, path="symmetric", verify=False, timeout=5)
    torch.cuda.synchronize()
    assert bool(back.isnan().all())
    with raises(comm.Disagreement, text="the ranks were given different arguments"):
        comm.synchronize(group)


def no_call(h: Here, what: str) -> None:
    """Rank 1 makes none: the others give it up at the timeout."""
    if not h.on_gpus:
        return
    group = dist.new_group()
    x, a = warm(h, group, "symmetric"), torch.ones(64 * h.ranks, 64, device=h.device)
    for name in PRODUCTS:
        getattr(comm, name)(a, a.t(), group, path="symmetric", verify=False)
    functions: dict[str, Any] = dict.fromkeys((*FUNCTIONS, "all_reduce_norm"), (x,))
    functions["dispatch_rows"] = a, torch.ones(h.ranks, dtype=torch.int32, device=h.device)
    if what in functions:  # the room of this kind of call; a rank that makes it alone hears of that at once: `no_first_call`
        getattr(comm, what)(*functions[what], group=group, path="symmetric", verify=False)
    h.settle()
    if h.rank == 1:
        return
    begun = time.monotonic()
    more: dict[str, Any] = {"path": "symmetric", "verify": False, "timeout": 1.5}
    got = getattr(comm, what)(*functions.get(what, (a, a.t())), group=group, **more)
    got = got[what == "all_reduce_norm"] if isinstance(got, tuple) else got
    with raises(comm.CommError, text="a rank did not come in time"):
        comm.synchronize(group)
    assert time.monotonic() - begun < SOON + 3
    assert what in PRODUCTS or bool(got.isnan().all())
    with raises(comm.CommError, text="a rank did not come in time"):
        comm.all_reduce(x, group, path="symmetric", verify=False)


def no_first_call(h: Here) -> None:
    """As `no_call`, of the first call of its kind, for which the ranks make a room together: CommError from the call itself, after its timeout."""
    if not h.on_gpus:
        return
    group = dist.new_group()
    x = warm(h, group, "symmetric")
    if h.rank == 1:
        return
    begun = time.monotonic()
    with raises(comm.CommError, text="late by more than 1.5 s"):
        comm.reduce_scatter(x, group, path="symmetric", verify=False, timeout=1.5)
    assert 1.4 < time.monotonic() - begun < SOON
    with raises(comm.CommError, text="cannot be used on"):
        comm.all_reduce(x, group, path="symmetric", verify=False)


def late(h: Here, path: str, verify: bool) -> None:
    """Rank 1 makes no call within the timeout: CommError, the process lives on, and other groups work."""
    group = dist.new_group()
    x = warm(h, group, path)
    if h.rank != 1:
        begun = time.monotonic()
        with raises(comm.CommError, text="late by more than 1 s"):
            comm.all_reduce(x, group, path=path, verify=verify, timeout=1)
        assert time.monotonic() - begun < SOON
        with raises(comm.CommError, text="cannot be used on"):
            comm.all_reduce(x, group, path=path)
    time.sleep(4)  # in which a watchdog would have ended the process
    assert bool((comm.all_reduce(torch.ones(8, device=h.device), h.group, wire="bf16", verify=True) == h.ranks).all())


def killed(h: Here) -> None:
    """Rank 1 dies; the others hear of it."""
    group = dist.new_group()
    x = warm(h, group, "portable")
    if h.rank == 1:
        sys.stdout.flush()
        os._exit(0)
    with raises(comm.CommError):
        comm.all_reduce(x, group, path="portable", verify=True, timeout=3)
    time.sleep(1)


ABSENT = ("all_reduce", "reduce_scatter", "all_reduce_norm", "dispatch_rows", *PRODUCTS)
FAULTS: dict[str, Callable[[Here], None]] = {
    "another call": another_call, "another all_reduce_norm": another_norm, "another dispatch_rows": another_dispatch,
    **{f"no call of {name}": partial(no_call, what=name) for name in ABSENT},
    "no first call of reduce_scatter": no_first_call,
    "late, compared": partial(late, path="portable", verify=True), "late, not compared": partial(late, path="portable", verify=False), "killed": killed,
}


def stragglers(h: Here, iterations: int, seconds: float, seed: int) -> dict[str, Any]:
    """Random collectives, sizes, wires and paths; before each one rank is late by a random time, on its GPU or its CPU. Every result is compared with the
    contract's, bit for bit, those of products with what the same product gave first."""
    rng, begun = random.Random(seed), time.monotonic()
    wrong = torch.zeros(iterations, dtype=torch.int64, device=h.device)
    counted: Counter[str] = Counter()
    told: list[str] = []
    a, b = h.inputs(1, (128 * h.ranks, 128), BF16)[h.rank], h.inputs(2, (128, 256), BF16)[h.rank]
    firsts = {(w, path): getattr(comm, w)(a, b, h.group, path=path, verify=False).clone() for w in PRODUCTS for path in h.paths}
    late_s, i, ended = 0.0, 0, False
    while i < iterations:
        if i % 100 == 0:  # the ranks end together
            h.settle()
            symmetric.raise_faults(h.group)
            more = torch.tensor([float(time.monotonic() - begun < seconds)], device=h.device)
            dist.all_reduce(more, dist.ReduceOp.MIN)
            if ended := not float(more):
                break
        who, delay, by_gpu = rng.randrange(h.ranks), rng.choice((0.0, 0.0, 1e-5, 1e-4, 3e-4, 2e-3)) * rng.random(), rng.random() < 0.7
        path, form = rng.choice((*h.paths, h.paths[-1], h.paths[-1])), rng.choice(FORMATS)
        what, shots, special = rng.choice((*FUNCTIONS, "all_reduce")), rng.choice((1, 2)), rng.random() < 0.05
        size = int(2 ** rng.uniform(0, 19 if h.on_gpus else 12))
        late_s += delay
        if h.rank == who and delay:
            if by_gpu and h.on_gpus:
                torch.cuda._sleep(int(delay * 1.7e9))
            else:
                time.sleep(delay)
        if rng.random() < 0.04:
            what = rng.choice(PRODUCTS)
            got, want = getattr(comm, what)(a, b, h.group, path=path, verify=False), firsts[what, path].reshape(-1)
        else:
            rows = h.ranks if what in ("reduce_scatter", "all_to_all") else 1
            xs = h.inputs(1000 + i, (rows, -(-size // rows)), form[4])
            if special:
                xs[:, 0, -1] = float("inf")
                xs[0, 0, 0] = float("nan")
            got = called(h, what, xs[h.rank], form, path, seed=i, verify=False, **({"shots": shots} if what == "all_reduce" else {}))
            want = expected(h, what, xs, *form[:4], i, shots)
            counted[f"wire {form[0]}"] += 1
            told.append(f"{i}: {what} of {tuple(xs.shape[1:])}, {path}, {form}, shots {shots}")
        wrong[i] = differing(got, want)
        counted[what] += 1
        counted[f"path {path}"] += 1
        counted["called late by a rank"] += delay > 0
        i += 1
    comm.synchronize(h.group)
    dist.all_reduce(wrong, dist.ReduceOp.MAX)
    bad = wrong.nonzero().flatten().tolist()
    return {
        "iterations": i, "asked": iterations, "seconds": round(time.monotonic() - begun, 1), "seed": seed, "wrong": len(bad), "time_ended_it": ended,
        "first wrong": [t for t in told if int(t.split(":")[0]) in bad[:5]], "delays_s": round(late_s, 2), "counts": dict(sorted(counted.items())),
    }


def sampling(h: Here) -> dict[str, Any]:
    """Microseconds of a call by how a sample is made: a graph of one call or of twenty replayed once, and replayed for four milliseconds."""
    from rooftop.lab.timing import comm_sizes

    rows = []
    for what in FUNCTIONS:
        for size in (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26):
            x = torch.randn(size // 2, device=h.device).bfloat16()
            for wire, path in (("", "plain"), ("bf16", "symmetric"), ("int8", "symmetric"), ("int4", "symmetric")):
                call = partial(comm_sizes._called, what, torch.zeros_like(x) if path == "plain" else x, h.group, wire, path)
                row: dict[str, Any] = {"kind": what, "bytes": size, "wire": wire or "NCCL"}
                for name, calls, sample in (("one call", 1, 0.0), ("twenty calls", 20, 0.0), ("4 ms", 20, 4000.0)):
                    row[name] = comm_sizes._microseconds(call, h.group, calls, sample)
                rows.append(row)
                if h.rank == 0:
                    print(row, flush=True)
    return {"us": rows}


def gaps(h: Here) -> dict[str, Any]:
    """Microseconds of one-shot all-reduces of 4 MiB, one after another in a graph, three graphs each: by the number of blocks, with cooperative launches as
    they are shipped, without, and where the ranks' meeting looks at the host's memory after every 32nd poll in place of the 256th. With all blocks also the
    time of a kernel and between two, as torch's profiler has them."""
    from dataclasses import replace

    from rooftop.core import settings
    from rooftop.lab.timing import comm_sizes
    from rooftop.ranks import kernels
    from rooftop.ranks.steps import Options

    if not h.on_gpus:
        return {}
    header = (settings.PACKAGE / "kernels" / "comm" / "_ranks.cuh").read_text(encoding="utf-8").replace("#pragma once", "")
    assert "tries % 256" in header
    x, rows = torch.randn(1 << 21, device=h.device).bfloat16(), []
    o = Options.of("gaps", "int8", 128, False, False, 0)
    symmetric.all_reduce(x, h.group, o, 1)
    room, prepared, source = groups.state(h.group).rooms[1], kernels.prepared, kernels._source

    def often(stem: str) -> tuple[str, str]:
        text, name = source(stem)
        return text.replace('#include "_ranks.cuh"', header.replace("tries % 256", "tries % 32")), name

    for how in ("as shipped", "not cooperative", "32 polls"):
        room.prepared.clear()
        kernels._module.cache_clear()
        if how == "not cooperative":
            kernels.prepared = lambda stem, launch, *more: prepared(stem, replace(launch, cooperative=False), *more)
        if how == "32 polls":
            kernels._source = often  # type: ignore[assignment]
        try:
            for blocks in (32, 96, 128, 132):
                call = partial(symmetric.all_reduce, x, h.group, o, 1, None, blocks)
                call()
                times = [comm_sizes._microseconds(call, h.group, 20, 2000.0) for _ in range(3)]
                rows.append({"how": how, "blocks": blocks, "us": times, **(traced(call) if blocks == 132 else {})})
                if h.rank == 0:
                    print(rows[-1], flush=True)
        finally:
            kernels.prepared, kernels._source = prepared, source
            room.prepared.clear()
            kernels._module.cache_clear()
    return {"gaps": rows}


def traced(call: Callable[[], Any]) -> dict[str, Any]:
    """Of twenty calls in a graph, replayed once: the medians of a kernel's microseconds and of those between two."""
    from torch.profiler import ProfilerActivity, profile

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(20):
            call()
    graph.replay()
    torch.cuda.synchronize()
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as told:
            dist.barrier()
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
        spans = sorted((e.time_range.start, e.time_range.end) for e in told.events() or () if "one_shot" in e.name)
    except RuntimeError as error:
        return {"profiler": str(error)[:200]}
    if len(spans) < 2:
        return {"profiler": f"{len(spans)} kernels seen"}
    between = [b[0] - a[1] for a, b in pairwise(spans)]
    return {"kernel": round(median(e - b for b, e in spans), 2), "between": round(median(between), 2), "longest between": round(max(between), 2)}
