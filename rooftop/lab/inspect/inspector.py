"""What the compiled binary says of a kernel, for any target, with no GPU: registers, spills, shared memory, occupancy, instructions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from rooftop.core import child, disk_cache, settings
from rooftop.core.cubins import AbsentCompiler
from rooftop.core.implementation import Implementation
from rooftop.core.spec import TARGETS, Case, Device, Launch, Meta, Problem
from rooftop.lab.candidates import Memo, Subject
from rooftop.lab.inspect import binary, dependent_launch
from rooftop.lab.inspect.occupancy import Occupancy, occupancy

Facts = dict[str, Any]
KEYS = {"kernel", "registers", "spills", "shared", "threads", "grid", "occupancy", "counts", "opcodes", "unmet"}  # of a kernel's
T = TypeVar("T", bound=int | str)  # a target: an architecture, or a card by name


def device_of(target: int | str) -> Device:
    """The card that stands for a target: an architecture, or a card by name. Raises ValueError for another."""
    if target not in TARGETS:
        said = f"sm_{target}" if str(target).isdigit() else repr(target)
        listed = (*(f"sm_{a}" if a.isdigit() else a for a in TARGETS.architectures), *TARGETS.names)
        raise ValueError(f"{said} is not one of {', '.join(listed)}")
    return TARGETS[target]


def facts_of(subject: Subject, case: Case, target: int | str) -> Facts:
    """The kernels that `subject` launches for `case` on `target`, each with the facts of its machine code.

    ``{"arch", "target", "config", "config_from", "kernels": [...]}``, or ``{"arch", "target", "refused": why not}``; with ``"absent":
    True`` where it is its compiler that is not installed here, or is too old."""
    if (known := kept(subject, case, target)) is not None:
        return known
    try:
        found = _found(subject, case, target)
    except AbsentCompiler as error:  # not kept: it may be installed tomorrow
        return {"arch": device_of(target).arch, "target": device_of(target).target, "refused": str(error), "absent": True}
    disk_cache.write_json(_path(key_of(subject, case, target)), found)
    return found


def kept(subject: Subject, case: Case, target: int | str, memo: Memo | None = None) -> Facts | None:
    """Facts that were found before, of the same code by the same tools; None where there are none."""
    return kept_at(key_of(subject, case, target, memo), target)


def kept_at(key: str, target: int | str) -> Facts | None:
    """As `kept`, of what has this key (`key_of`)."""
    found = disk_cache.read_json(_path(key))
    whole = isinstance(found, dict) and found.get("target") == device_of(target).target and (
        "refused" in found or isinstance(found.get("kernels"), list)
    )
    return found if whole and all(isinstance(k, dict) and k.keys() >= KEYS for k in found.get("kernels", [])) else None


def key_of(subject: Subject, case: Case, target: int | str, memo: Memo | None = None) -> str:
    """Hash of all that the facts follow from."""
    device = device_of(target)
    assert subject.implementation is not None
    demands = json.dumps(dict(subject.implementation.demands), sort_keys=True, default=str)
    path = subject.implementation.path
    # of a user's file also what the kernel does not use, which may be what does not compile
    own = "" if path.is_relative_to(settings.PACKAGE) else path.read_text(encoding="utf-8", errors="replace")
    parts = (tools(), str(device), subject.name, case.id, subject.digest(case, device, memo), demands, own)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _path(key: str) -> Path:
    return settings.load().cache / "facts" / key[:2] / f"{key}.of.json"


@cache
def tools() -> str:
    """The versions of compilers and disassemblers, and the code that reads what they say."""
    said = [p.read_text(encoding="utf-8") for p in sorted(Path(__file__).parent.glob("*.py"))]
    languages = ("cuda-tile", "nvidia-cuda-tileiras", "nvidia-cutlass-dsl")
    for name in ("nvidia-cuda-nvrtc", "triton", *languages, "nvidia-cuda-nvdisasm", "nvidia-cuda-cuobjdump"):
        try:
            said.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            said.append(f"{name} none")
    return hashlib.sha256("\0".join(said).encode()).hexdigest()


def _found(subject: Subject, case: Case, target: int | str) -> Facts:
    device = device_of(target)
    if device.gfx:
        raise ValueError(
            f"machine code of AMD's {device.gfx} is not listed here; rooftop targets {subject.name} --target {device.gfx} has its figures"
        )
    base: Facts = {"arch": device.arch, "target": device.target}
    implementation = subject.implementation
    assert implementation is not None
    _, problem = subject.kernel_problem(case, device)
    if reason := implementation.supports(problem):
        return {**base, "refused": reason}
    config, source = implementation.resolve(problem)
    launches = implementation.launches(problem, config)
    if not launches:
        calls = implementation.where().place == "torch"
        return {**base, "refused": "calls torch: there is no machine code of its own" if calls else f"launches nothing for {case.id}"}
    scratch = implementation.scratch(problem, config)
    kernels = [kernel_facts(implementation, problem, launch, scratch) for launch in launches]
    # what must be there may be in any of the kernels; what must not be, and spills, hold for each
    has = list(implementation.demands.get("has", []))
    missing = [w for w in has if not any(binary.count(k["opcodes"], w) for k in kernels)]
    kernels[0]["unmet"] += [f"no {w} in any kernel" for w in missing]
    return {**base, "config": implementation.config_dict(config), "config_from": source, "kernels": kernels}


def kernel_facts(implementation: Implementation, problem: Problem, launch: Launch, scratch: Mapping[str, Meta]) -> Facts:
    device = problem.device
    made = implementation.machine_code(problem, launch, scratch)
    found = cached_facts(made.cubin, made.symbol)
    demands = {k: v for k, v in implementation.demands.items() if k != "has"}
    limit = occupancy(
        device.arch, registers=found.registers, threads=made.threads, static_shared=found.shared, dynamic_shared=made.shared,
        cluster=made.cluster
    )
    return {
        "kernel": made.name, "symbol": made.symbol, "registers": found.registers, "stack": found.stack,
        "spills": found.stack, "spill_stores": found.spill_stores, "spill_loads": found.spill_loads,
        "static_shared": found.shared, "dynamic_shared": made.shared, "shared": found.shared + made.shared, "threads": made.threads,
        "grid": list(launch.grid),
        "occupancy": {"percent": limit.percent, "limiter": limit.limiter, "blocks": limit.blocks, "refused": limit.refused},
        "counts": found.counts, "instructions": found.instructions, "loop": found.loop.counts if found.loop else {},
        "opcodes": dict(found.opcodes), "unmet": [
            *binary.unmet(found, demands),
            *dependent_launch.faults(found.kernel, found.before_wait, launch.pdl, found.kernel in demands.get("waits_last", ())),
            *([limit.refused] if limit.refused else []), *_check_cooperative(implementation, launch, made.blocks, limit, device),
        ],
    }


def _check_cooperative(implementation: Implementation, launch: Launch, blocks: int, limit: Occupancy, device: Device) -> list[str]:
    """What is wrong with a launch whose blocks wait for each other: it must say so, and all of them must run at once."""
    if implementation.head is not None and "this_grid" in implementation.head.source and not launch.cooperative:
        return [f"{launch.kernel} is launched as any other, and its file waits for the whole grid (this_grid): cooperative = true"]
    if not launch.cooperative or limit.refused or blocks <= limit.blocks * device.sms:
        return []
    return [
        f"a cooperative grid of {blocks} blocks; {limit.blocks} a multiprocessor, {limit.blocks * device.sms} in all, run at once on "
        f"{device.name}"
    ]


def symbols(cubin: bytes) -> list[str]:
    """Those of a cubin's kernels, in the order of its text sections."""
    names = re.findall(rb"\0\.text\.([\w$.]+)(?=\0)", cubin)
    return list(dict.fromkeys(n.decode() for n in names))


def cached_facts(cubin: bytes, symbol: str) -> binary.Facts:
    """Facts by the hash of the machine code: disassembling takes longer than compiling."""
    key = hashlib.sha256(cubin + symbol.encode()).hexdigest()
    path = settings.load().cache / "facts" / key[:2] / f"{key}.json"
    try:
        found = binary.Facts.from_json(disk_cache.read_json(path))
        numbers = (found.arch, found.registers, found.stack, found.spill_stores, found.spill_loads, found.shared, found.constant)
        counted = (*numbers, *found.opcodes.values(), *(found.loop.opcodes.values() if found.loop else ()))
        if all(type(n) is int for n in counted) and all(type(o) is str and o for o in found.before_wait or ()):
            return found
    except (KeyError, TypeError, AttributeError):  # absent, or not what is written below
        pass
    found = binary.facts(cubin, symbol)
    disk_cache.write_json(path, found.to_json())
    return found


def inspect_case(subject: Subject, name: str | None, target: int | str, memo: Memo | None = None) -> Case:
    """The case to inspect: the one named, else a ladder's headline, the first bench case or the first of all, whichever the subject
    supports."""
    if name:
        return subject.op.case(name)
    found = sorted((c for c in subject.op.cases if "huge" not in c.tags), key=lambda c: "bench" not in c.tags)
    if subject.rung is not None:
        from rooftop.core import registry

        ladder = registry.ladder(subject.rung.ladder)
        found = [c for c in subject.op.cases if c.name == ladder.headline and c.dtype == ladder.dtypes[0]] + found
    return next((c for c in found if subject.supports(c, device_of(target), memo) is None), found[0])


def many(
    jobs: Iterable[tuple[Subject, Case, T]], done: Callable[[tuple[Subject, Case, T], Facts], None] | None = None
) -> dict[tuple[str, T], Facts]:
    """Facts of several subjects on all cores. `done` is called as each is ready."""

    def one(job: tuple[Subject, Case, T]) -> tuple[tuple[str, T], Facts]:
        subject, case, target = job
        found = facts_of(subject, case, target)
        child.alive()
        if done:
            done(job, found)
        return (subject.name, target), found

    with ThreadPoolExecutor(settings.load().jobs) as pool:
        return dict(pool.map(one, jobs))


def text(subject: Subject, case: Case, target: int | str, kind: str) -> str:
    """SASS or PTX of everything the case launches. Raises ValueError where there is none of that kind."""
    _, problem = subject.kernel_problem(case, device_of(target))
    implementation = subject.implementation
    assert implementation is not None
    if reason := implementation.supports(problem):
        raise ValueError(f"{subject.name}: {reason}")
    config, _ = implementation.resolve(problem)
    scratch, parts = implementation.scratch(problem, config), []
    for launch in implementation.launches(problem, config):
        made = implementation.machine_code(problem, launch, scratch)
        if kind == "sass":
            parts.append(binary.sass(made.cubin, made.symbol))
        elif made.ptx:
            parts.append(made.ptx)
        else:
            raise ValueError(f"{subject.name} is compiled straight to machine code: there is SASS, no PTX")
    if not parts:
        raise ValueError(f"{subject.name} launches nothing of its own for {case.id}: there is no {kind.upper()}")
    return "\n".join(parts)
