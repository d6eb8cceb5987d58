"""Tune kernels: every config that an implementation lists, checked, then timed beside the heuristic's in one field, case by case.

`rooftop.lab.tune.contest` says who wins."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rooftop.core import implementation, settings
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.compile import compile_many
from rooftop.core.digests import digest
from rooftop.core.implementation import Implementation
from rooftop.core.spec import DTYPES, Case, Device
from rooftop.lab.aot import compile_triton, word_of
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, judgement
from rooftop.lab.exit_codes import NoGpuError
from rooftop.lab.records import store
from rooftop.lab.records.identity import DIGITS, Identity
from rooftop.lab.timing.bench_group import LONGEST_S, MEMORY, Bench, BenchGroup
from rooftop.lab.timing.bench_group import Summary as BenchSummary
from rooftop.lab.timing.timer import ImpossibleTime, Timer, sets_needed
from rooftop.lab.timing.timer_cuda import CudaBackend
from rooftop.lab.tune.contest import CASE_S, Outcome, contest
from rooftop.lab.tune.tables import Entry, TuneError, label, require_writable, save, table_path


@dataclass(frozen=True)
class Job:
    """One implementation on one case."""

    subject: Subject
    case: Case

    @property
    def implementation(self) -> Implementation:
        assert self.subject.implementation is not None
        return self.subject.implementation

    @property
    def title(self) -> str:
        return f"{self.implementation.name}: {self.case.id}"

    def configs(self, device: Device) -> list[Any]:
        """The heuristic's first."""
        return self.implementation.configs(self.subject.kernel_problem(self.case, device)[1])

    def signature(self, device: Device) -> str:
        return self.subject.kernel_problem(self.case, device)[1].tune_key

    def identity(self, device: Device) -> Identity:
        """What a record of the tuning depends on."""
        tried = [self.implementation.config_dict(c) for c in self.configs(device)]
        return Identity(digest(self.subject.op.digest(self.case), tried), self.implementation.digest[:DIGITS])


@dataclass
class Summary:
    """What a run did. `wrong`: configs whose results are wrong, or times that cannot be; `failed`: configs that do not run."""

    written: list[store.Record] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def jobs(found: Sequence[Subject], *, case: str | None = None, dtype: str | None = None) -> list[Job]:
    """What is to be tuned: each implementation once, however many names led to it, on its bench cases or the one named."""
    made: dict[tuple[str, str], Job] = {}
    for s in found:
        if s.implementation is not None:
            for c in checker.select_cases(s, name=case, tags=() if case else ("bench",), dtype=dtype):
                made.setdefault((s.implementation.name, c.id), Job(s, c))
    return list(made.values())


def plan(todo: Iterable[Job], device: Device, known: Iterable[store.Record], summary: Summary) -> list[Job]:
    """The jobs worth running, those first that were never tuned as they now stand, then the longest ago; `summary` says what is left
    out."""
    latest = store.latest(known, "tune")
    found: list[tuple[str, Job]] = []
    seen: dict[tuple[str, str], str] = {}
    for job in todo:
        if reason := job.subject.supports(job.case, device):
            summary.skipped.append(f"{job.title}: {reason}")
            continue
        key = (job.implementation.name, job.signature(device))
        if len(job.configs(device)) < 2:
            summary.skipped.append(f"{job.title}: it lists no config but the heuristic's")
        elif any(
            m is not None and not (m.contiguous and m.align >= 16) for _, m in job.subject.kernel_problem(job.case, device)[1].tensors
        ):
            summary.skipped.append(f"{job.title}: tables are keyed by shapes, and these strides or alignments are not the usual ones")
        elif key in seen:
            summary.skipped.append(f"{job.title}: the same shapes as {seen[key]}")
        else:
            seen[key] = job.case.id
            record = latest.get((device.name, job.implementation.name, f"{job.subject.op.name} {job.case.id}"))
            fresh = record is not None and job.identity(device).made(record)
            found.append((record.at if record is not None and fresh else "", job))
    return [job for _, job in sorted(found, key=lambda f: f[0])]


def pinned(subject: Subject, config: Any) -> Subject:
    """The same subject, always with this config: what checks it and what times it need not know of tuning."""
    fixed = copy.copy(subject.implementation)
    assert fixed is not None
    vars(fixed)["resolve"] = lambda problem, explicit=None, chosen=None: (config, "tried")
    return dataclasses.replace(subject, implementation=fixed)


# -- running ---------------------------------------------------------------------------------------------------------


class _OutOfTime(Exception):
    pass


@dataclass
class Tuner:
    """Tunes job after job; each is on disk (record and table) before the next begins."""

    folder: Path  # of the tables
    device: Device
    timer: Timer
    writer: store.Writer
    deadline: float  # of time.monotonic
    summary: Summary = field(default_factory=Summary)
    case_s: float = CASE_S
    compile: Callable[[Job, Device], object] = lambda job, device: None  # ahead of the checks

    def run(self, todo: Iterable[Job], say: Callable[[str], None]) -> Summary:
        for job in todo:
            begun = time.monotonic()
            try:
                if begun > self.deadline:
                    raise _OutOfTime
                self.compile(job, self.device)
                row = self.one(job)
            except _OutOfTime:
                self.summary.left.append(job.title)
                continue
            if row is not None:
                gain = f"{row['over_heuristic']:.3f} times the heuristic's speed: {label(row['pick'])}" if row["pick"] else row["verdict"]
                say(f"{job.title}: {len(row['configs'])} configs in {time.monotonic() - begun:.1f} s: {gain}")
        return self.summary

    def one(self, job: Job) -> store.Record | None:
        """Check and time the configs of one job, write its record and its entry. None where it could not be tuned; the summary says why."""
        configs = {label(values): (values, c) for c in job.configs(self.device) for values in [job.implementation.config_dict(c)]}
        heuristic = next(iter(configs))
        faults = self.faults(job, {n: c for n, (_, c) in configs.items()})
        if heuristic in faults:
            self.summary.skipped.append(f"{job.title}: the heuristic's own config, {heuristic}: {faults[heuristic]}")
            return None
        able = {n: c for n, (_, c) in configs.items() if n not in faults}
        if len(able) < 2:
            self.summary.skipped.append(f"{job.title}: no config but the heuristic's can run")
            return None
        try:
            outcome = self.measure(job, able)
        except ImpossibleTime as error:
            self.summary.wrong.append(f"{job.title}: {error}")
            return None
        if outcome is None:
            return None
        rows = [
            {
                "config": values, "seconds": outcome.seconds.get(n), "dropped_at": outcome.dropped.get(n),
                "fault": faults.get(n) or (None if n in outcome.seconds else "one call takes too long"),
            }
            for n, (values, _) in configs.items()
        ]
        t, chosen = outcome.last[heuristic], configs[outcome.pick][0] if outcome.pick else None
        gain = round(1 / outcome.ratio, 4) if outcome.ratio else None
        work = job.subject.op.work(job.subject.op.problem(job.case, self.device))
        row = self.writer.write({
            "kind": "tune", "op": job.subject.op.name, "case": job.case.id, "subject": job.implementation.name,
            **job.identity(self.device).facts, "signature": job.signature(self.device), "verdict": outcome.verdict, "pick": chosen,
            "over_heuristic": gain, "config": configs[heuristic][0], "config_from": "heuristic", "configs": rows,
            "clocks": {"kernel": {**t.json(), "noise": outcome.last.noise, "reached": outcome.last.reached}},
            "versus": {n: c.json() for n, c in outcome.last.versus.items()},
            "work": {"read": work.read, "write": work.write, "ops": dict(work.ops)},
            "device": dict(outcome.last.device), "versions": store.versions(), "sensors": dict(outcome.last.sensors),
        })
        self.summary.written.append(row)
        if outcome.verdict != "unresolved":  # then nothing is known, and what the table says may stay
            kernel = job.implementation.digest
            at = datetime.now(UTC).isoformat(timespec="seconds")
            entry: Entry = {"config": chosen, "over_heuristic": gain, "case": job.case.id, "at": at, "digest": kernel}
            path = table_path(self.folder, self.device.name, job.implementation.name)
            if save(path, {row["signature"]: entry}, kernel) and str(path) not in self.summary.tables:
                self.summary.tables.append(str(path))
        return row

    def faults(self, job: Job, configs: Mapping[str, Any], where: str = "gpu") -> dict[str, str]:
        """Why a config cannot enter: its results are wrong against float64, or it does not run. Wrong ones go into the summary as such."""
        import torch

        place = "cuda" if where == "gpu" else "cpu"
        try:
            expected = judgement.expect(job.subject.op, job.case, place, 1)
        except torch.OutOfMemoryError:
            return dict.fromkeys(configs, "the float64 reference does not fit the device's memory")
        found: dict[str, str] = {}
        for name, config in configs.items():
            if time.monotonic() > self.deadline:
                raise _OutOfTime
            result = checker.check(pinned(job.subject, config), job.case, backend=where, expected=expected)
            if result.status == "ok":
                continue
            found[name] = f"{result.status}: {result.message}"
            listed = self.summary.wrong if result.status == "wrong" else self.summary.failed
            listed.append(f"{job.title}: {name}: {found[name]}")
            if place == "cuda":
                try:
                    torch.cuda.synchronize()
                except Exception as error:  # torch's class for it differs by version
                    raise TuneError(
                        f"{job.title}: config {name} broke the CUDA context ({str(error).splitlines()[0]}): take it out of the kernel's "
                        f"configs; "
                        "what was tuned before it is written"
                    ) from None
        del expected
        if place == "cuda":
            torch.cuda.empty_cache()
        return found

    def measure(self, job: Job, configs: Mapping[str, Any]) -> Outcome | None:
        """The contest on the GPU. Configs take turns on the same inputs and outputs, each with scratch of its own."""
        import torch

        from rooftop.lab.inputs import make

        bench = Bench(
            BenchGroup(job.subject.op, job.case, [job.subject]), self.device, self.timer, self.case_s, ("kernel",), BenchSummary()
        )
        call = job.subject.call(job.case, self.device)
        problem, seen = call.called, call.problem
        size = max(sum(m.nbytes for _, m in problem.tensors if m is not None), 1)
        count = sets_needed(size, self.device.l2_bytes)
        scratch = sum(m.nbytes for c in configs.values() for m in job.implementation.scratch(seen, c).values())
        if count * (size + scratch) > torch.cuda.mem_get_info()[0] * MEMORY:
            self.summary.skipped.append(
                f"{job.title}: {count} sets of {size >> 20} MiB, and {scratch >> 20} MiB of scratch each, do not fit the device"
            )
            return None
        try:
            sets = []
            for seed in range(count):
                inputs = make(job.subject.op, job.case, "cuda", seed)[0]
                outputs = {
                    n: torch.empty_strided(m.shape, m.strides, dtype=getattr(torch, DTYPES[m.dtype].torch), device="cuda")
                    for n, m in call.outputs
                    if n not in call.reused and m is not None
                }
                sets.append({**inputs, **outputs})
            candidates = [replace(bench.kernel(job.subject, sets, c), name=n) for n, c in configs.items()]
            quick = [c for i, c in enumerate(candidates) if bench.once(c) <= LONGEST_S or i == 0]
            if len(quick) < 2:
                self.summary.skipped.append(f"{job.title}: a call of any other config takes more than {LONGEST_S} s")
                return None
            return contest(self.timer, quick, size=size, floor_s=bench.floor("kernel"), budget_s=self.case_s)
        except torch.OutOfMemoryError as error:
            self.summary.skipped.append(f"{job.title}: out of device memory ({str(error).splitlines()[0]})")
            return None
        finally:
            torch.cuda.empty_cache()


def compile_configs(todo: Iterable[Job], device: Device) -> int:
    """Compile every config of the CUDA kernels on all cores; one that does not compile is found again by its check. Returns how many."""
    programs: dict[tuple[str, tuple[str, ...]], CudaImplementation] = {}
    for job in todo:
        if isinstance(job.implementation, CudaImplementation) and job.subject.supports(job.case, device) is None:
            problem = job.subject.kernel_problem(job.case, device)[1]
            for config in job.configs(device):
                kernels = tuple(sorted({x.kernel for x in job.implementation.launches(problem, config)}))
                programs[(job.implementation.name, kernels)] = job.implementation

    compile_many([i.compile_job(kernels, device.target) for (_, kernels), i in programs.items()])
    return len(programs)


class TritonCompiler:
    """Compiles the configs of a Triton kernel in processes of their own, into Triton's cache, where the check then finds them.

    Whatever fails there is left to the check, which says what it is. Nothing is compiled while anything is timed."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, job: Job, device: Device) -> int:
        """Returns how many configs were compiled or found in the cache."""
        if not isinstance(job.implementation, TritonImplementation):
            return 0
        if self._pool is None:  # spawned: a forked process would share this one's CUDA context
            self._pool = ProcessPoolExecutor(settings.load().jobs, mp_context=multiprocessing.get_context("spawn"))
        word = word_of(job.subject)
        tried = [job.implementation.config_dict(c) for c in job.configs(device)]
        try:
            return sum(self._pool.map(compile_triton, *zip(*((word, job.case, device, values) for values in tried), strict=True)))
        except BrokenProcessPool:  # LLVM ends its process over some kernels
            self.close()
            return 0

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def run(
    todo: Sequence[Job], folder: Path, keep: Path | None = None, *, budget_s: float = 240.0, say: Callable[[str], None] = print
) -> Summary:
    """Tune until `budget_s` seconds are spent. `folder`: of the records; `keep`: of the tables (None: the package's).

    Raises NoGpuError without a GPU, TuneError where tables cannot be written or a config breaks the device."""
    import torch

    if not torch.cuda.is_available():
        raise NoGpuError(
            "tune needs an NVIDIA GPU: torch.cuda.is_available() is False (tables of another machine: rooftop tune --from DIR)"
        )
    from rooftop.lab.timing import sensors

    started = time.monotonic()
    tables = implementation.TUNED if keep is None else keep
    require_writable(tables)
    if keep is None:
        require_shipped(todo)
    index = torch.cuda.current_device()
    device = implementation.device_of(index)

    summary = Summary()
    known = [r for where in {folder, settings.load().results} for r in store.read(where)]
    planned = plan(todo, device, sorted(known, key=lambda r: r.at), summary)
    programs = compile_configs(planned, device)
    say(f"compiled {programs} CUDA programs in {time.monotonic() - started:.1f} s; {len(planned)} cases to tune")
    compiler = TritonCompiler()
    try:
        with store.Writer(folder, device.name) as writer:
            return Tuner(
                tables, device, Timer(CudaBackend(), sensors=partial(sensors.told, index)), writer, started + budget_s, summary, compile=compiler
            ).run(planned, say)
    finally:
        compiler.close()


def require_shipped(todo: Iterable[Job]) -> None:
    """Raises TuneError for a user's own file: its table has no place among the package's."""
    for job in todo:
        path = job.implementation.path.resolve()
        if not path.is_relative_to(settings.PACKAGE):
            raise TuneError(f"{path} is not one of the package's kernels: say with --keep DIR where its table is to lie")
