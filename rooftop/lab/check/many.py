"""Many checks at once: what no record proves, and several kernels in processes of their own."""

from __future__ import annotations

import faulthandler
import multiprocessing
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import zip_longest
from queue import SimpleQueue

from rooftop.core import registry
from rooftop.core.implementation import device_of
from rooftop.core.spec import Case, Device
from rooftop.lab import aot, candidates
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, compiled
from rooftop.lab.check.checker import Result
from rooftop.lab.check.proofs import Proofs
from rooftop.lab.records.store import Record

Chunk = tuple[Subject, list[Case]]
Todo = Sequence[tuple[Subject, Case]]
KEPT = 1 << 30  # bytes of the GPU's memory that a process may keep between two cases
HANGS_S = 240  # a case that takes longer on a GPU never ends: its process is ended, and the kernel with it
SAMPLE = 40  # cases of a kernel in a quick check
LONGEST = 32  # cases of a chunk: a kernel of many cases is shared among processes


def lacking(todo: Todo, records: Iterable[Record], card: str, device: Device) -> list[tuple[Subject, Case]]:
    """Those of `todo` that no check record of this card and of the present kernel, contract and config says to be right; what is not
    launched needs none.
    `card`: its name in records."""
    proofs = Proofs(records)

    def runs(subject: Subject, case: Case) -> bool:
        return subject.supports(case, device) is None and not subject.op.idle(subject.op.problem(case, device))

    left = [(s, c) for s, c in todo if runs(s, c)]
    aot.compile_first([(s, c) for s, c in left if proofs.by_machine_code(s, c, card, device)], device)  # on all cores, before each is compared
    return [(s, c) for s, c in left if not proofs.hold(s, c, card, device)]


def sampled(todo: Todo, backend: str, seed: int, most: int = SAMPLE) -> list[tuple[Subject, Case]]:
    """At most so many cases of each kernel, of those that run here, drawn by the seed: one of every dtype and kind (the first word of its
    name) before a second of any. All cases of a kernel of which none runs here: each says why."""
    draw = random.Random(seed)
    found: list[tuple[Subject, Case]] = []
    for subject, cases in _by_subject(todo):
        where, reason = checker.backend_of(subject, backend)
        device = _device(subject, where)
        left = [c for c in cases if checker.left_out(subject, c, where, device, reason) is None]
        draw.shuffle(left)
        kinds: dict[tuple[str, str], int] = {}
        order: list[tuple[int, Case]] = []
        for case in left:
            kind = case.dtype, case.name.partition(" ")[0]
            order.append((kinds.setdefault(kind, 0), case))
            kinds[kind] += 1
        taken = {case.id for _, case in sorted(order, key=lambda item: item[0])[:most]} if left else {c.id for c in cases}
        found += [(subject, c) for c in cases if c.id in taken]
    return found


def _device(subject: Subject, where: str) -> Device:
    import torch

    assert subject.implementation is not None
    on_gpu = where == "gpu" and torch.cuda.is_available()
    return device_of(torch.cuda.current_device()) if on_gpu else subject.implementation.stand_in(90)


def check_many(todo: Todo, backend: str, seed: int, jobs: int = 1) -> Iterator[tuple[Subject, Case, Result]]:
    """Check each of `todo`, `jobs` kernels at a time in processes of their own. In the order of `todo` with one job, else as they end.

    What lacked memory beside other kernels is checked again by itself when these are done, and so is what a fault on the GPU left
    unchecked. A process that a kernel ends (such a fault, the system's lack of memory) is an error of the case that it had."""
    if jobs == 1:
        for subject, case in todo:
            yield subject, case, check_one(subject, case, backend, seed)
        return
    again: list[tuple[Subject, Case]] = []
    for (subject, cases), results in _run(_chunks(todo), jobs, backend, seed):
        yield from ((subject, c, r) for c, r in zip(cases, results, strict=False) if not _lacked_memory(r))
        again += [(subject, c) for c, r in zip_longest(cases, results) if r is None or _lacked_memory(r)]
    for (subject, [case]), results in _run([(s, [c]) for s, c in again], 1, backend, seed):
        yield subject, case, results[0] if results else _ended(subject, case)


def check_one(subject: Subject, case: Case, backend: str, seed: int) -> Result:
    """Check one case. What the simulator is to run must compile for a GPU first."""
    where, absent = checker.backend_of(subject, backend)
    if where != "simt" or absent is not None:
        return checker.check(subject, case, backend=backend, seed=seed)
    if said := compiled.refused(subject, case):
        return Result(subject.name, subject.op.name, case.id, "wrong", where, said)
    result, *others = (checker.check(subject, case, backend=backend, seed=seed, arch=arch) for arch in compiled.simulated(subject))
    archs = compiled.simulated(subject)
    for other, arch in zip(others, archs[1:], strict=True):
        if result.status == "ok" and other.status in ("wrong", "error"):
            result = replace(other, message=f"on sm_{arch}: {other.message}")
    return replace(result, unasked=compiled.unasked(subject) or "", archs=archs if result.status in ("ok", "wrong") else ())


def _run(chunks: Sequence[Chunk], jobs: int, backend: str, seed: int) -> Iterator[tuple[Chunk, list[Result]]]:
    """Each chunk with the results of its cases; of the first of them alone, or of none, where its process was lost."""
    free: SimpleQueue[_Process] = SimpleQueue()
    for number in range(jobs):
        free.put(_Process(number))

    def run(chunk: Chunk) -> list[Result]:
        process = free.get()
        try:
            return process.check(chunk, backend, seed)
        finally:
            free.put(process)

    with ThreadPoolExecutor(jobs) as threads:
        asked = {threads.submit(run, chunk): chunk for chunk in chunks}
        for done in as_completed(asked):
            yield asked[done], done.result()
    for _ in range(jobs):
        free.get().end()


class _Process:
    """A process that checks kernels, replaced when a kernel has ended it or spoiled its CUDA context. Processes share the GPUs evenly, by
    their number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pool: ProcessPoolExecutor | None = None

    def check(self, chunk: Chunk, backend: str, seed: int) -> list[Result]:
        if self.pool is None:
            context = multiprocessing.get_context("spawn")  # a forked process would share this one's CUDA context
            self.pool = ProcessPoolExecutor(1, mp_context=context, initializer=_take_gpu, initargs=(self.number,))
        subject, cases = chunk
        try:
            results, lost = self.pool.submit(_check, aot.word_of(subject), subject.op.name, cases, backend, seed).result()
        except BrokenProcessPool:
            results, lost = [], True
        if lost:
            self.end()
        return results

    def end(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
        self.pool = None


def _take_gpu(number: int) -> None:
    """In a process of its own, as it starts."""
    import torch

    if (gpus := torch.cuda.device_count()) > 1:
        torch.cuda.set_device(number % gpus)


def _check(word: str, op: str, cases: Sequence[Case], backend: str, seed: int) -> tuple[list[Result], bool]:
    """In a process of its own: results up to a fault that makes every later call of CUDA fail, and whether there was one. The case at which
    it showed is among them if it is the only one: else an earlier case may have caused it."""
    subject = candidates.find([word])[0]
    subject = replace(subject, op=registry.op(op))  # a kernel has its op's in-place twin as well
    results: list[Result] = []
    on_gpu = checker.backend_of(subject, backend)[0] == "gpu"
    for case in cases:
        if on_gpu:
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
        result = check_one(subject, case, backend, seed)
        faulthandler.cancel_dump_traceback_later()
        if _context_lost():
            return [result] if len(cases) == 1 else results, True
        results.append(result)
    return results, False


def _context_lost() -> bool:
    """Whether this process can use its GPU no more. Frees what torch keeps of the GPU's memory, which other processes need."""
    import torch

    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > KEPT:
            torch.cuda.empty_cache()
    except RuntimeError:
        return True
    return False


def _lacked_memory(result: Result) -> bool:
    """Whether a case ended for want of memory, as torch says it, or as a call of CUDA does."""
    said = result.message.lower().replace("_", " ")
    return (result.status == "skipped" and "the gpu's memory" in said) or (result.status == "error" and "out of memory" in said)


def _by_subject(todo: Todo) -> list[Chunk]:
    of: dict[tuple[str, str], Chunk] = {}
    for subject, case in todo:
        of.setdefault((subject.op.name, subject.name), (subject, []))[1].append(case)
    return list(of.values())


def _chunks(todo: Todo) -> list[Chunk]:
    return [(s, cases[i : i + LONGEST]) for s, cases in _by_subject(todo) for i in range(0, len(cases), LONGEST)]


def _ended(subject: Subject, case: Case) -> Result:
    message = (
        f"the process that checked it was killed: by a fault of the kernel, for lack of memory, or because it had not ended after "
        f"{HANGS_S} s"
    )
    return Result(subject.name, subject.op.name, case.id, "error", message=message)
