"""Time kernels beside their peers and write records: compiled first, checked, then timed in one field, case by case.

What has no fresh record comes first; every case is on disk before the next begins, so a run that is cut off loses one case at most, and
the next takes up where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rooftop.core import settings
from rooftop.core.spec import Device
from rooftop.lab import aot, candidates
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.exit_codes import gpu_for
from rooftop.lab.records import identity, store
from rooftop.lab.timing import roofline, streams
from rooftop.lab.timing.bench_group import DUTIES, Bench, BenchGroup, Summary
from rooftop.lab.timing.timer import Timer
from rooftop.lab.timing.timer_cuda import CudaBackend


def fields(
    found: Sequence[Subject], *, case: str | None = None, dtype: str | None = None, peers: bool = True, compiled: bool = True
) -> list[BenchGroup]:
    """The fields of what was asked for: implementations of an op with its peers, rungs of a ladder with theirs. `compiled`: torch.compile
    among the peers."""
    made: dict[tuple[str, str, str], BenchGroup] = {}
    for subject in found:
        ladder = subject.rung.ladder if subject.rung else ""
        for c in checker.select_cases(subject, name=case, tags=() if case else ("bench",), dtype=dtype):
            key = (subject.op.name, ladder, c.id)
            if key not in made:
                made[key] = BenchGroup(
                    subject.op, c, [p for p in (candidates.peers(subject.op) if peers else ()) if compiled or p.peer != "torch.compile"],
                    ladder
                )
            made[key].entries.append(subject)
    return list(made.values())


def compile_first(todo: Iterable[BenchGroup], device: Device) -> int:
    """Compile every kernel of the fields on all cores. Returns how many programs."""
    return aot.compile_first(((s, f.case) for f in todo for s in f.entries), device)


def run(
    todo: list[BenchGroup],
    folder: Path,
    *,
    budget_s: float = 480.0,
    case_budget_s: float = 4.0,
    clocks: Sequence[str] = ("kernel", "cold", "hot", "host"),
    duty: Sequence[str] = ("auto",),
    again: bool = False,
    foresee: bool = False,
    say: Callable[[str], None] = print,
) -> Summary:
    """Check and time the fields until `budget_s` seconds are spent; write a record for each subject.

    `foresee`: begin no field of a ladder or an op for which the time would not last, as long as its longest so far took. `duty`: of the
    kernel clock, some of DUTIES; auto is burst and sustained where a case is bound by arithmetic, else normal. Raises NoGpuError without
    a GPU, ValueError for another duty, or for normal beside burst."""
    import torch

    if unknown := set(duty) - set(DUTIES):
        raise ValueError(f"duty {', '.join(sorted(unknown))} is not one of {', '.join(DUTIES)}")
    if not duty or {"normal", "burst"} <= set(duty) or ("auto" in duty and len(set(duty)) > 1):
        raise ValueError(
            f"duty is {','.join(duty)}; accepted are auto, or normal or burst, or sustained, or one of those two and sustained"
        )
    gpu_for("timing")
    from rooftop.core.implementation import device_of
    from rooftop.lab.timing import sensors

    started = time.monotonic()
    device = device_of(torch.cuda.current_device())
    read = sensors.read(torch.cuda.current_device())
    timer = Timer(
        CudaBackend(),
        sensors=lambda: sensors.read(torch.cuda.current_device()).to_json() if hasattr(read, "to_json") else {"absent": str(read)}
    )
    summary = Summary()
    kept = {where: store.read(where) for where in (folder, settings.load().results)}
    present = store.latest(kept.get(folder, []), "bench")
    stale: list[BenchGroup] = []
    fresh: list[BenchGroup] = []
    for f in todo:
        (fresh if not again and all(_fresh(f, s, device, present) for s in f.entries) else stale).append(f)
    summary.skipped += [f"{f.title}: has fresh records" for f in fresh]
    programs = compile_first(stale, device)
    say(
        f"compiled {programs} programs in {time.monotonic() - started:.1f} s; {len(stale)} fields to measure, {len(fresh)} have fresh "
        f"records"
    )
    copies = streams.Streams(torch.cuda.current_device()) if stale else None
    known = [r for records in kept.values() for r in records]
    ceilings = roofline.Ceilings.from_records(known, device.name)
    proofs = store.proven(known, device.name) | store.judged_peers(known, device.name, store.versions())
    if ceilings.stale:
        say(f"{device.name} was calibrated with other kernels than these: no share of the roof before rooftop calibrate has run again")
    longest: dict[str, float] = {}
    with store.Writer(folder, device.name) as writer:
        for f in stale:
            if time.monotonic() - started + (longest.get(f.ladder or f.op.name, 0.0) if foresee else 0.0) > budget_s:
                summary.left.append(f.title)
                continue
            begun = time.monotonic()
            if any(s.peer is not None for s in f.entries):  # past its limit of recompilations torch.compile would run a peer eagerly
                torch.compiler.reset()
            try:
                said = Bench(f, device, timer, case_budget_s, clocks, summary, copies, ceilings, duty, proofs).write(writer)
            except torch.OutOfMemoryError as error:
                said = f"out of device memory ({str(error).splitlines()[0]})"
                summary.skipped.append(f"{f.title}: {said}")
            torch.cuda.empty_cache()
            longest[f.ladder or f.op.name] = max(longest.get(f.ladder or f.op.name, 0.0), time.monotonic() - begun)
            first, _, more = said.partition("\n")
            say(f"{f.title}: {first} in {time.monotonic() - begun:.1f} s" + (f"\n{more}" if more else ""))
    return summary


def _fresh(f: BenchGroup, subject: Subject, device: Device, present: dict[tuple[str, str, str], store.Record]) -> bool:
    record = present.get((device.name, subject.name, f"{f.op.name} {f.case.id}"))
    if record is None:
        return subject.absent() is not None or (subject.implementation is not None and subject.supports(f.case, device) is not None)
    return identity.fresh(record, subject, [f.case], device)
