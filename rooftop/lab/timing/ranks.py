"""Time ops of several ranks on the GPUs that torchrun has started processes for, and write records of the card and their number ("NVIDIA
H200 x2").

All processes take the same number of samples, which the slowest decides before the first; a sample is as long as it was on the slowest
rank, which every rank learns at the end. What takes long is called one by one between two events; what is short is replayed as a CUDA
graph, since Python's calls would be what is timed. Before each sample the ranks wait for each other."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.implementation import device_of
from rooftop.core.spec import TARGETS, Case, Work
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.check import ranks as judging
from rooftop.lab.inputs import make
from rooftop.lab.records import identity, store
from rooftop.lab.timing.bench_group import Bench, BenchGroup, Summary
from rooftop.lab.timing.statistics import compare, estimate, paired_ratio, spread
from rooftop.lab.timing.timer import AGAIN, PACES, Measurement, Timing, sets_needed

EAGER_S = 400e-6  # a call that takes longer than this hides what its launch costs the CPU
SAMPLE_S = 8e-3
ROUNDS = (7, 41)  # fewest and most
ONE_OF_SEVERAL = re.compile(r", true(, \d)?>$")  # the template argument that says whether one device plays all ranks


@dataclass
class Entry:
    """One candidate: its calls by input set, and seconds a call, sample by sample."""

    name: str
    calls: Sequence[Callable[[], Any]]
    subject: Subject | None = None
    replays: int = 1
    graph: Any = None
    samples: list[float] = field(default_factory=list)

    def run(self) -> None:
        for i in range(self.replays):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.calls[i % len(self.calls)]()

    @property
    def made(self) -> int:
        """Calls of a sample."""
        return self.replays * (len(self.calls) if self.graph is not None else 1)


def name_of(device: str, ranks: int) -> str:
    """What records call so many cards of a host."""
    return f"{device} x{ranks}"


def cases(subject: Subject, ranks: int, tag: str, name: str | None = None) -> list[Case]:
    found = checker.select_cases(subject, name=name, tags=() if name else (tag,))
    return [c for c in found if "huge" not in c.tags and all(v.shape[0] == ranks for _, v in c.tensors())]


def run(
    found: Sequence[Subject], folder: Path, *, case: str | None, budget_s: float, say: Callable[[str], None], case_budget_s: float = 3.0
) -> Summary:
    """Check and time, field by field, until `budget_s` seconds are spent, of which samples of a field take `case_budget_s`; rank 0 writes
    records. Collective: every process of the default group calls it."""
    group, summary = dist.group.WORLD, Summary()
    ranks, first, started = dist.get_world_size(), dist.get_rank() == 0, time.monotonic()
    device = replace(device_of(torch.cuda.current_device()), name=name_of(torch.cuda.get_device_name(), ranks))
    fields: dict[tuple[str, str], BenchGroup] = {}
    for s in found:
        if judging.of(s) is None:
            summary.skipped.append(f"{s.name}: its file does not say how it runs on several GPUs (on_ranks)")
            continue
        for c in cases(s, ranks, "bench", case):
            fields.setdefault((s.op.name, c.id), BenchGroup(s.op, c, [], s.rung.ladder if s.rung else "")).entries.append(s)
    compile_first([(s, f.case) for f in fields.values() for s in f.entries], device)
    writer = store.Writer(folder, device.name) if first else None
    for f in fields.values():
        if _slowest(time.monotonic() - started) > budget_s:
            summary.left.append(f.title)
            continue
        begun = time.monotonic()
        rows = Several(f, device, group, summary, case_budget_s).rows()
        torch.cuda.empty_cache()
        for row in rows if writer is not None else []:
            summary.written.append(writer.write(row))  # type: ignore[union-attr]
        said = "".join(f"\n    {r['subject']:44s} {r['clocks']['kernel']['median'] * 1e6:10.1f} us" for r in rows if r["kind"] == "bench")
        say(f"{f.title}: {len(rows)} records in {time.monotonic() - begun:.1f} s{said}")
    if writer is not None:
        writer.close()
    return summary


def compile_first(todo: Sequence[tuple[Subject, Case]], device: Any) -> None:
    """Compile on all cores what these kernels launch as one rank of several: the first process does, the others wait. A kernel that plays
    one rank has the same template arguments as the one that plays all, but for the one that says so."""
    from rooftop.core.compile import compile_many
    from rooftop.ranks import kernels

    if dist.get_rank() == 0:
        made: set[tuple[str, str]] = set()
        for s, c in todo:
            kernel = s.implementation
            if not isinstance(kernel, CudaImplementation) or s.supports(c, device) is not None:
                continue
            [stem] = [n for n, path in kernels.FILES.items() if path.endswith(f"/{kernel.path.name}")]
            problem = s.kernel_problem(c, device)[1]
            config, _ = kernel.resolve(problem)
            made |= {
                (stem, ONE_OF_SEVERAL.sub(r", false\1>", x.kernel) if stem != "steps" else x.kernel)
                for x in kernel.launches(problem, config)
            }
        sources = {stem: kernels.source(stem) for stem, _ in made}
        compile_many([(*sources[stem][:2], device.target, (name,), sources[stem][2]) for stem, name in sorted(made)])
    dist.barrier()


def _slowest(value: float) -> float:
    """The largest of all ranks' values."""
    said = torch.tensor([value], dtype=torch.float64, device="cuda")
    dist.all_reduce(said, dist.ReduceOp.MAX)
    return float(said.item())


class Several:
    """One field on several GPUs."""

    def __init__(self, f: BenchGroup, device: Any, group: Any, summary: Summary, budget_s: float) -> None:
        self.f, self.device, self.group, self.summary, self.budget_s = f, device, group, summary, budget_s
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.bench = Bench(f, device, None, 0.0, ("kernel",), summary)  # type: ignore[arg-type]
        whole = self.bench.work
        self.bench.work = Work(whole.read // self.ranks, whole.write // self.ranks, {u: n / self.ranks for u, n in whole.ops.items()})

    def rows(self) -> list[store.Record]:
        f, where = self.f, torch.device("cuda", torch.cuda.current_device())
        able = []
        for s in f.entries:
            call = judging.of(s)
            if call is None or (reason := s.supports(f.case, self.device)):
                self.summary.skipped.append(f"{s.name} at {f.case.id}: {reason if call is not None else 'no on_ranks'}")
                continue
            result = judging.judged(f.op, s.name, call, f.case, self.group, where, 1)
            self.bench.checks[s.name] = result
            if result.status == "ok":
                able.append((s, call))
            else:
                self.summary.wrong.append(f"{s.name} at {f.case.id}: {result.message}")
        torch.cuda.empty_cache()
        if not able:
            return []
        sets, options = self._sets(where), f.op.options(f.case)
        entries = [Entry(s.name, [partial(call, t, options, self.group) for t in sets], s) for s, call in able]
        theirs = [{n: t if t is None else t.clone() for n, t in each.items()} for each in sets]  # which a peer may overwrite
        entries += [Entry(f"peer:{n}", [partial(call, t, options, self.group) for t in theirs]) for n, call in f.op.ranks_peers.items()]
        entries = [e for e in entries if self._ready(e)]
        for n, call in f.op.ranks_peers.items():
            if f"peer:{n}" in {e.name for e in entries}:
                self.bench.checks[f"peer:{n}"] = self._judged(f"peer:{n}", call, where)
        twin = entries[0]
        entries.append(replace(twin, name=twin.name + AGAIN, samples=[]))
        self._sample(entries)
        return self._records(entries) if self.rank == 0 else []

    def _judged(self, name: str, call: Callable[..., Any], where: torch.device) -> checker.Result:
        """A peer is timed whatever it computes, and its record says whether that is the op."""

        def outputs(tensors: Any, options: Any, group: Any) -> dict[str, Any]:
            found = call(tensors, options, group)
            return {self.f.op.output_names[0]: found if isinstance(found, torch.Tensor) else next(iter(tensors.values()))}

        try:
            return judging.judged(self.f.op, name, outputs, self.f.case, self.group, where, 1)
        except (RuntimeError, ValueError) as error:
            return checker.Result(name, self.f.op.name, self.f.case.id, "wrong", message=str(error).splitlines()[0][:200])

    def _sets(self, where: torch.device) -> list[dict[str, Any]]:
        """This rank's slices of as many inputs as L2 does not hold."""
        problem = self.f.op.problem(self.f.case, self.device)
        size = max(1, sum(m.nbytes for _, m in problem.tensors if m is not None) // self.ranks)
        found = []
        for seed in range(min(sets_needed(size, self.device.l2_bytes), 64)):
            tensors = make(self.f.op, self.f.case, where, seed)[0]
            found.append({n: t if t is None else t[self.rank].clone() for n, t in tensors.items()})
        return found

    def _ready(self, e: Entry) -> bool:
        """Warm it up, and choose how it is called; False where it cannot run here, which the ranks agree about."""
        failed = 0.0
        try:
            with torch.no_grad():
                e.calls[0]()
        except (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError) as error:
            failed = 1.0
            self.summary.skipped.append(f"{e.name} at {self.f.case.id}: {str(error).splitlines()[0][:200]}")
        if _slowest(failed):
            return False
        seconds = self._seconds(e, 3)
        if seconds < EAGER_S:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(stream):
                for call in e.calls:
                    call()
            torch.cuda.synchronize()
            graph: Any = torch.cuda.CUDAGraph()
            try:
                with torch.no_grad(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    kept = [call() for call in e.calls]
                del kept
            except RuntimeError:  # of a peer that no graph can hold: it is called, as its user would
                graph = None
            if not _slowest(float(graph is None)):
                e.graph = graph
                seconds = self._seconds(e, 2)
        e.replays = max(1, math.ceil(SAMPLE_S / seconds / (len(e.calls) if e.graph is not None else 1)))
        return True

    def _seconds(self, e: Entry, times: int) -> float:
        """A call of the slowest rank, the quickest of some."""
        e.replays = max(1, min(len(e.calls), 4)) if e.graph is None else 1
        return _slowest(min(self._one(e) for _ in range(times)))

    def _one(self, e: Entry) -> float:
        dist.barrier()
        torch.cuda.synchronize()
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        with torch.no_grad():
            e.run()
        ended.record()
        torch.cuda.synchronize()
        return begun.elapsed_time(ended) * 1e-3 / e.made

    def _sample(self, entries: list[Entry]) -> None:
        once = sum(self._one(e) * e.made for e in entries)
        rounds = int(max(ROUNDS[0], min(ROUNDS[1], self.budget_s / _slowest(once))))
        for r in range(rounds):
            for e in entries if r % 2 == 0 else reversed(entries):
                e.samples.append(self._one(e))
        for e in entries:
            slowest = torch.tensor(e.samples, dtype=torch.float64, device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            e.samples = slowest.tolist()

    def _records(self, entries: list[Entry]) -> list[store.Record]:
        base, again = entries[0], entries[-1]
        noise = paired_ratio(again.samples, base.samples).off_one
        timings = {e.name: _timing(e) for e in entries[:-1]}
        versus = {e.name: compare(e.samples, base.samples, noise) for e in entries[1:-1]}
        error = max((paired_ratio(e.samples, base.samples).error for e in entries[1:]), default=0.0)
        about = {**store.about(self.device), "ranks": self.ranks}
        m = Measurement(
            "kernel", "normal", base.name, timings, _timing(again), versus, noise, 0.0, 0.0, error, 0.0, 0.0, 0.0, 1.0, PACES["normal"], 0,
            {}, about
        )
        rows = []
        for e in entries[:-1]:
            subject = e.subject or Subject(e.name, self.f.op, peer=e.name.removeprefix("peer:"))
            rows.append(self.bench._record(subject, {"kernel": m}))
        return rows


def _timing(e: Entry) -> Timing:
    t = estimate(e.samples)
    method = "graph" if e.graph is not None else "events"
    return Timing(e.name, t.median, t.low, t.high, spread(e.samples), t.n, e.made, 1, len(e.calls), method, "", tuple(e.samples))


def check(
    found: Sequence[Subject], folder: Path | None, *, case: str | None, seed: int, say: Callable[[str], None]
) -> list[checker.Result]:
    """Judge kernels that say how they run on several processes, on those of the default group; rank 0 writes check records. Collective."""
    ranks, first = dist.get_world_size(), dist.get_rank() == 0
    on_gpus = dist.get_backend() == "nccl"
    where = torch.device("cuda", torch.cuda.current_device()) if on_gpus else torch.device("cpu")
    device = replace(device_of(where.index), name=name_of(torch.cuda.get_device_name(), ranks)) if on_gpus else None
    writer = store.Writer(folder, device.name) if first and folder is not None and device is not None else None
    if device is not None:
        compile_first([(s, c) for s in found if judging.of(s) is not None for c in cases(s, ranks, "edge", case)], device)
    results = []
    for s in found:
        call = judging.of(s)
        if call is None:
            say(f"{s.name}: its file does not say how it runs on several processes (on_ranks)")
            continue
        for c in cases(s, ranks, "edge", case):
            if s.supports(c, device or TARGETS[90]) is not None:
                continue
            try:
                result = judging.judged(s.op, s.name, call, c, dist.group.WORLD, where, seed)
            except RuntimeError as error:  # what these processes cannot do, which is the same on all of them: no symmetric memory, no GPU
                result = checker.Result(s.name, s.op.name, c.id, "skipped", dist.get_backend(), str(error).splitlines()[0][:200])
            results.append(result)
            if writer is not None and device is not None and result.status != "skipped":
                writer.write(
                    {"kind": "check", "op": s.op.name, "case": c.id, "subject": s.name, "error": result.error(),
                              **identity.facts(s, [c], device), "path": [], "backend": "ranks",
                              "device": {**store.about(device), "ranks": ranks}, "versions": store.versions()})
    if writer is not None:
        writer.close()
    return results
