"""Many checks at once: what no record proves, and several kernels in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

from rooftop.core import registry
from rooftop.core.spec import Case, Device
from rooftop.lab import candidates
from rooftop.lab.ahead import word_of
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, compiled
from rooftop.lab.check.checker import Result
from rooftop.lab.records.store import Record

Chunk = tuple[Subject, list[Case]]
Todo = Sequence[tuple[Subject, Case]]
LONGEST = 32  # cases of a chunk: a kernel of many cases is shared among processes


def lacking(todo: Todo, records: Iterable[Record], card: str, device: Device) -> list[tuple[Subject, Case]]:
    """Those of `todo` that no check record of this card and of the present kernel, contract and config says to be right; what is not launched needs none.
    `card`: its name in records."""
    right = {
        (r["op"], r["subject"], r["case"], r["digest"])
        for r in records
        if r["kind"] == "check" and r["error"].get("ok") and r["device"]["name"] == card
    }  # fmt: skip

    def runs(subject: Subject, case: Case) -> bool:
        return subject.supports(case, device) is None and not subject.op.idle(subject.op.problem(case, device))

    return [(s, c) for s, c in todo if runs(s, c) and (s.op.name, s.name, c.id, s.digest(c, device)) not in right]


def check_many(todo: Todo, backend: str, seed: int, jobs: int = 1) -> Iterator[tuple[Subject, Case, Result]]:
    """Check each of `todo`, `jobs` kernels at a time in processes of their own. In the order of `todo` with one job, else as they end.

    A process that a kernel ends (a fault on the GPU, the system's lack of memory) is an error of the cases that it still had."""
    if jobs == 1:
        for subject, case in todo:
            yield subject, case, check_one(subject, case, backend, seed)
        return
    chunks = _chunks(todo)
    killed = []
    for chunk, results in _run(chunks, jobs, backend, seed):
        if results is None:
            killed.append(chunk)
        else:
            yield from ((chunk[0], c, r) for c, r in zip(chunk[1], results, strict=True))
    for chunk in killed:  # one of them ended its process and with it the others'
        [(_, results)] = _run([chunk], 1, backend, seed)
        yield from ((chunk[0], c, r) for c, r in zip(chunk[1], results or [_ended(chunk[0], c) for c in chunk[1]], strict=True))


def check_one(subject: Subject, case: Case, backend: str, seed: int) -> Result:
    """Check one case. What the simulator is to run must compile for a GPU first."""
    where, absent = checker.backend_of(subject, backend)
    if where == "simt" and absent is None and (said := compiled.refused(subject, case)):
        return Result(subject.name, subject.op.name, case.id, "wrong", where, said)
    return checker.check(subject, case, backend=backend, seed=seed)


def _run(chunks: Sequence[Chunk], jobs: int, backend: str, seed: int) -> Iterator[tuple[Chunk, list[Result] | None]]:
    """Each chunk with its results, or with None where its process was killed."""
    context = multiprocessing.get_context("spawn")  # a forked process would share this one's CUDA context
    turn = context.Value("i", 0)
    with ProcessPoolExecutor(min(jobs, len(chunks)), mp_context=context, initializer=_take_gpu, initargs=(turn,)) as pool:
        asked = {pool.submit(_check, word_of(s), s.op.name, cases, backend, seed): (s, cases) for s, cases in chunks}
        for done in as_completed(asked):
            try:
                yield asked[done], done.result()
            except BrokenProcessPool:
                yield asked[done], None


def _take_gpu(turn: Any) -> None:
    """In a process of its own, as it starts: the processes share the GPUs evenly."""
    import torch

    with turn.get_lock():
        mine, turn.value = turn.value, turn.value + 1
    if (gpus := torch.cuda.device_count()) > 1:
        torch.cuda.set_device(mine % gpus)


def _check(word: str, op: str, cases: Sequence[Case], backend: str, seed: int) -> list[Result]:
    """In a process of its own."""
    subject = candidates.find([word])[0]
    subject = replace(subject, op=registry.op(op))  # a kernel has its op's in-place twin as well
    return [check_one(subject, c, backend, seed) for c in cases]


def _chunks(todo: Todo) -> list[Chunk]:
    of: dict[tuple[str, str], Chunk] = {}
    for subject, case in todo:
        of.setdefault((subject.op.name, subject.name), (subject, []))[1].append(case)
    return [(s, cases[i : i + LONGEST]) for s, cases in of.values() for i in range(0, len(cases), LONGEST)]


def _ended(subject: Subject, case: Case) -> Result:
    message = "the process that checked it was killed: by a fault of the kernel, or for lack of memory"
    return Result(subject.name, subject.op.name, case.id, "error", message=message)
