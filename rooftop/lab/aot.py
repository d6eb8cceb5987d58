"""Compile what is about to run, on all cores, before anything is checked or timed: CUDA C++ into rooftop's cache, Triton and Gluon into
Triton's.

A Triton kernel otherwise compiles on one core at its first launch, which takes longer than most checks."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.call import Call
from rooftop.core.compile import compile_many
from rooftop.core.spec import Case, Device
from rooftop.lab.candidates import Subject

FEW = 3  # binaries that this process compiles as soon as it has started others


def compile_first(todo: Iterable[tuple[Subject, Case]], device: Device) -> int:
    """Compile every kernel that these subjects run on these cases. Returns how many CUDA programs and Triton binaries that is.

    What does not compile is left to the run, which says why."""
    programs: set[tuple[CudaImplementation, tuple[str, ...]]] = set()
    jobs: dict[str, tuple[str, Case, Mapping[str, Any]]] = {}  # of the Triton binaries that are not marked as compiled: what makes each
    binaries: set[str] = set()
    for subject, case in todo:
        kernel = subject.implementation
        if not isinstance(kernel, (CudaImplementation, TritonImplementation)) or subject.supports(case, device) is not None:
            continue
        problem = subject.kernel_problem(case, device)[1]
        config, _ = kernel.resolve(problem)
        if isinstance(kernel, CudaImplementation):
            programs.add((kernel, tuple(sorted({x.kernel for x in kernel.launches(problem, config)}))))
        else:
            new = {t for t in _texts(kernel, problem, config) if t not in binaries}
            binaries |= new
            jobs |= {t: (word_of(subject), case, kernel.config_dict(config)) for t in new if not _mark(t).exists()}
    waiting = _triton(jobs, device)
    compile_many([k.compile_job(names, device.target) for k, names in programs])
    for text, done in waiting.items():
        try:
            if done.result():
                _mark(text).parent.mkdir(parents=True, exist_ok=True)
                _mark(text).touch()
        except (BrokenProcessPool, OSError):  # LLVM ends its process over some kernels; a cache that cannot be written
            break
    return len(programs) + len(binaries)


def compile_calls(todo: Iterable[tuple[Call, Case]], device: Device) -> int:
    """The same for calls of cases, with the configs that they have."""
    programs: set[tuple[CudaImplementation, tuple[str, ...]]] = set()
    jobs: list[tuple[int, str, Case, Mapping[str, Any]]] = []  # of a call, all of whose binaries it compiles; how many no job before has
    known: set[str] = set()
    for call, case in todo:
        kernel = call.implementation
        if isinstance(kernel, CudaImplementation):
            programs.add((kernel, tuple(sorted({x.kernel for x in call.launches}))))
        elif isinstance(kernel, TritonImplementation) and (new := set(_texts(kernel, call.problem, call.config)) - known):
            jobs.append((len(new), str(kernel.path), case, kernel.config_dict(call.config)))
            known |= new
    waiting = []
    if len(known) > FEW:
        with ProcessPoolExecutor(min(settings.load().jobs, len(jobs)), mp_context=multiprocessing.get_context("spawn")) as pool:
            waiting = [pool.submit(compile_triton, word, case, device, values) for _, word, case, values in jobs]
            compile_many([k.compile_job(names, device.target) for k, names in programs])
    else:
        compile_many([k.compile_job(names, device.target) for k, names in programs])
    return len(programs) + sum(job[0] for job, done in zip(jobs, waiting, strict=False) if done.exception() is None and done.result())


def _texts(kernel: TritonImplementation, problem: Any, config: Any) -> list[str]:
    """A text for each binary of a call; none where its arguments cannot be told without running it."""
    tensors = {**dict(problem.tensors), **kernel.scratch(problem, config)}
    arch = problem.device.arch
    try:
        return [f"{kernel.digest} {arch} {kernel.variant(x, tensors, problem)}" for x in kernel.launches(problem, config)]
    except (TypeError, ValueError):
        return []


def _mark(text: str) -> Path:
    """A file that is there once the binary has been compiled. Triton's own cache is keyed by what only Triton knows."""
    return settings.load().cache / "ahead" / hashlib.sha256(text.encode()).hexdigest()[:32]


def word_of(subject: Subject) -> str:
    """By what another process finds the kernel."""
    from rooftop.lab import candidates

    kernel = subject.implementation
    assert kernel is not None
    if candidates.is_own_file(str(kernel.path)):
        return str(kernel.path)
    return subject.rung.name if subject.rung else kernel.name  # a file may hold kernels of several ops


def _triton(jobs: Mapping[str, tuple[str, Case, Mapping[str, Any]]], device: Device) -> dict[str, Future[bool]]:
    """One job a subject, case and config, however many binaries it makes."""
    if len(jobs) <= FEW:
        return {}
    # spawned: a forked process would share this one's CUDA context
    pool = ProcessPoolExecutor(min(settings.load().jobs, len(jobs)), mp_context=multiprocessing.get_context("spawn"))
    started: dict[tuple[str, str, str], Future[bool]] = {}
    found = {}
    for text, (word, case, values) in jobs.items():
        key = word, case.id, str(values)
        if key not in started:
            started[key] = pool.submit(compile_triton, word, case, device, values)
        found[text] = started[key]
    pool.shutdown(wait=False)
    return found


def compile_triton(word: str, case: Case, device: Device, values: Mapping[str, Any] | None = None) -> bool:
    """In a process of its own: compile what a kernel launches for a case, with the config of these values or its own. Whether it
    compiled."""
    from rooftop.lab import candidates

    try:
        subject = candidates.find([word])[0]
        kernel = subject.implementation
        assert kernel is not None
        _, problem = subject.kernel_problem(case, device)
        config = kernel.resolve(problem)[0] if values is None else kernel.config_of(values)
        scratch = kernel.scratch(problem, config)
        for launch in kernel.launches(problem, config):
            kernel.machine_code(problem, launch, scratch)
    except Exception:  # the run meets it again, and says it
        return False
    return True
