"""What the compiled binary says of a kernel, for any target, with no GPU: registers, spills, shared memory, occupancy, instructions."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

from rooftop.core import parameters, settings
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.spec import TARGETS, Case, Device, Launch, Problem
from rooftop.lab.candidates import Subject
from rooftop.lab.inspect import binary, dependent_launch
from rooftop.lab.inspect.occupancy import occupancy

Facts = dict[str, Any]


def device_of(arch: int) -> Device:
    """The card that stands for a target. Raises ValueError for another."""
    if arch not in TARGETS:
        raise ValueError(f"sm_{arch} is not one of {', '.join(f'sm_{a}' for a in TARGETS)}")
    return TARGETS[arch]


def facts_of(subject: Subject, case: Case, arch: int) -> Facts:
    """The kernels that `subject` launches for `case` on `arch`, each with the facts of its machine code.

    ``{"arch", "target", "config", "config_from", "kernels": [...]}``, or ``{"arch", "target", "refused": why not}``."""
    device = device_of(arch)
    base: Facts = {"arch": arch, "target": device.target}
    implementation = subject.implementation
    assert implementation is not None
    _, problem = subject.kernel_problem(case, device)
    if reason := implementation.supports(problem):
        return {**base, "refused": reason}
    config, source = implementation.resolve(problem)
    launches = implementation.launches(problem, config)
    if not launches:
        return {**base, "refused": f"launches nothing for {case.id}"}
    kernels = [kernel_facts(subject, problem, launch, arch) for launch in launches]
    has = list(implementation.demands.get("has", []))  # what must be there may be in any of the kernels; what must not be, and spills, hold for each
    missing = [w for w in has if not any(binary.count(k["opcodes"], w) for k in kernels)]
    kernels[0]["unmet"] += [f"no {w} in any kernel" for w in missing]
    return {**base, "config": implementation.config_dict(config), "config_from": source, "kernels": kernels}


def compiled(subject: Subject, problem: Problem, launch: Launch) -> tuple[bytes, str, str, int, int, str]:
    """(cubin, symbol, shown name, threads a block, dynamic shared bytes, ptx where there is one) of one launch.

    Raises HeadError where the head of CUDA C++ hands the kernel other parameters than it takes."""
    implementation = subject.implementation
    if isinstance(implementation, CudaImplementation):
        made = implementation.compile([launch.kernel], problem.device.target)
        parameters.check(launch, made.cubin, made.names[launch.kernel], implementation.head.path)
        return made.cubin, made.names[launch.kernel], launch.kernel, prod(launch.block), launch.shared, ""
    from rooftop.core.triton_compat import compile_launch

    assert implementation is not None
    config, _ = implementation.resolve(problem)
    triton = compile_launch(launch, {**dict(problem.tensors), **implementation.scratch(problem, config)}, problem.device.arch)
    return triton.cubin, triton.name, triton.name, 32 * triton.num_warps, triton.shared, triton.ptx


def kernel_facts(subject: Subject, problem: Problem, launch: Launch, arch: int) -> Facts:
    cubin, symbol, shown, threads, dynamic, _ = compiled(subject, problem, launch)
    found = _cached(cubin, symbol)
    assert subject.implementation is not None
    demands = {k: v for k, v in subject.implementation.demands.items() if k != "has"}
    limit = occupancy(
        arch, registers=found.registers, threads=threads, static_shared=found.shared, dynamic_shared=dynamic, cluster=prod(launch.cluster or (1,))
    )
    return {
        "kernel": shown, "symbol": symbol, "registers": found.registers, "stack": found.stack,
        "spills": found.stack, "spill_stores": found.spill_stores, "spill_loads": found.spill_loads,
        "static_shared": found.shared, "dynamic_shared": dynamic, "shared": found.shared + dynamic, "threads": threads, "grid": list(launch.grid),
        "occupancy": {"percent": limit.percent, "limiter": limit.limiter, "blocks": limit.blocks, "refused": limit.refused},
        "counts": found.counts, "instructions": found.instructions, "loop": found.loop.counts if found.loop else {}, "opcodes": dict(found.opcodes),
        "unmet": [
            *binary.unmet(found, demands), *dependent_launch.faults(found.kernel, found.before_wait, launch.chained),
            *([limit.refused] if limit.refused else []),
        ],
    }  # fmt: skip


def _cached(cubin: bytes, symbol: str) -> binary.Facts:
    """Facts by the hash of the machine code: disassembling takes longer than compiling."""
    key = hashlib.sha256(cubin + symbol.encode()).hexdigest()
    path = settings.load().cache / "facts" / key[:2] / f"{key}.json"
    try:
        found = binary.Facts.from_json(json.loads(path.read_text(encoding="utf-8")))
        numbers = (found.arch, found.registers, found.stack, found.spill_stores, found.spill_loads, found.shared, found.constant)
        counted = (*numbers, *found.opcodes.values(), *(found.loop.opcodes.values() if found.loop else ()))
        if all(type(n) is int for n in counted) and all(type(o) is str and o for o in found.before_wait or ()):
            return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # absent, or not what is written below
        pass
    found = binary.facts(cubin, symbol)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(found.to_json(), file)
        os.replace(temporary, path)
    except OSError:
        pass  # a cache that cannot be written costs time, nothing else
    return found


def inspect_case(subject: Subject, name: str | None, arch: int) -> Case:
    """The case to inspect: the one named, a ladder's headline, or the first bench case that the subject supports."""
    if name:
        return subject.op.case(name)
    if subject.rung is not None:
        from rooftop.core import registry

        ladder = registry.ladder(subject.rung.ladder)
        headline = [c for c in subject.op.cases if c.name == ladder.headline and c.dtype == ladder.dtypes[0]]
        if headline:
            return headline[0]
    supported = [c for c in subject.op.cases if "bench" in c.tags and subject.supports(c, device_of(arch)) is None]
    return supported[0] if supported else subject.op.cases[0]


def many(jobs: Iterable[tuple[Subject, Case, int]], done: Callable[[tuple[Subject, Case, int], Facts], None] | None = None) -> Mapping[tuple[str, int], Facts]:
    """Facts of several subjects on all cores. `done` is called as each is ready."""

    def one(job: tuple[Subject, Case, int]) -> tuple[tuple[str, int], Facts]:
        subject, case, arch = job
        found = facts_of(subject, case, arch)
        if done:
            done(job, found)
        return (subject.name, arch), found

    with ThreadPoolExecutor(settings.load().jobs) as pool:
        return dict(pool.map(one, jobs))


def text(subject: Subject, case: Case, arch: int, kind: str) -> str:
    """SASS or PTX of everything the case launches. Raises ValueError where there is none of that kind."""
    device = device_of(arch)
    _, problem = subject.kernel_problem(case, device)
    assert subject.implementation is not None
    if reason := subject.implementation.supports(problem):
        raise ValueError(f"{subject.name}: {reason}")
    config, _ = subject.implementation.resolve(problem)
    parts = []
    for launch in subject.implementation.launches(problem, config):
        cubin, symbol, _, _, _, ptx = compiled(subject, problem, launch)
        if kind == "sass":
            parts.append(binary.sass(cubin, symbol))
        elif ptx:
            parts.append(ptx)
        else:
            raise ValueError(f"{subject.name} is compiled straight to machine code: there is SASS, no PTX")
    return "\n".join(parts)
