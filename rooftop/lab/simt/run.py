"""Run launches of CUDA C++ on the CPU: build, lay out memory, run, read what was found."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import head_text, helpers, settings
from rooftop.core.layouts import remark
from rooftop.core.spec import Case, Launch
from rooftop.lab.simt import counts, findings, machine, native, process
from rooftop.lab.simt.build import build, stack_bytes
from rooftop.lab.simt.launching import Mode, Request
from rooftop.lab.simt.link import variables
from rooftop.lab.simt.memory import Layout, hold
from rooftop.lab.simt.report import Report

if TYPE_CHECKING:
    from rooftop.core.call import Call
    from rooftop.lab.candidates import Subject

def simulate(
    source: Path | str,
    entry: str,
    memory: Mapping[str, Any],
    *,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[tuple[Any, str]],
    shared: int = 0,
    cluster: Sequence[int] = (),
    cooperative: bool = False,
    uninitialised: Collection[str] = (),
    arch: int = 90,
    mode: Mode = "check",
    seed: int = 0,
    schedules: int = 1,
    blocks: int | None = None,
    folders: helpers.Folders | None = None,
) -> Report:
    """Run one kernel of a source on the CPU.

    source         a file, or the text itself
    entry          the kernel's name expression: ``"softmax<float, 256>"``
    memory         CPU tensors and numbers by name; the tensors that the kernel writes are written in place
    arguments      (value, type) in order: a text names something in `memory`; types are "ptr", "i32", "u32", "i64", "u64", "f32", "f64", "bool", or
                   "struct": bytes, as a kernel takes it by value
    cluster        blocks of a cluster; where none is given, as the source says (`__cluster_dims__`)
    cooperative    all blocks run at once and may meet at a barrier of the grid
    uninitialised  names of tensors whose elements must not be read before they are written
    schedules      how often it is run, each time in another order of its warps; `seed` gives the first
    blocks         counting: how many blocks are run and counted, spread evenly over the grid (32 where None)
    folders        where its includes are looked up; None: in a file's own folder, or in rooftop/kernels/_device

    Tensors to which the kernel has only pointers to const must not be written. Raises CompileError, LaunchError, NoCompilerError."""
    text, path, own = source_of(source)
    launch = Launch(
        kernel=entry, grid=tuple(grid), block=tuple(block), cluster=tuple(cluster), cooperative=cooperative, shared=shared,
        types=tuple(kind for _, kind in arguments), args={f"{i}": value for i, (value, _) in enumerate(arguments)},
    )
    return run_launches(
        text, path, [launch], memory, uninitialised=uninitialised, arch=arch, mode=mode, seed=seed, schedules=schedules, blocks=blocks,
        folders=own if folders is None else folders,
    )


def source_of(source: Path | str) -> tuple[str, str, helpers.Folders]:
    """Its text, what it is called, and the folders of its headers: its own where it includes one that lies there."""
    if isinstance(source, Path) or ("\n" not in source and source.endswith((".cu", ".cuh"))):
        text, path = head_text.read(Path(source)), Path(source).resolve()
        house = helpers.folders(path, "")
        return text, str(source), (path.parent,) if path.parent not in house and helpers.headers(text, (path.parent,)) else house
    return source, "kernel.cu", (helpers.SHARED,)


def run_launches(
    text: str,
    path: str,
    launches: Sequence[Launch],
    memory: Mapping[str, Any],
    *,
    uninitialised: Collection[str] = (),
    constant: Collection[str] | None = None,
    arch: int = 90,
    mode: Mode = "check",
    seed: int = 0,
    schedules: int = 1,
    blocks: int | None = None,
    folders: helpers.Folders = (helpers.SHARED,),
    values: Mapping[str, str] | None = None,
    widen: bool = True,
    rtc: bool = False,
    held: dict[Path, bytes] | None = None,
) -> Report:
    """Run the launches of one call, in order, on the tensors of `memory`, which are written in place (by the first schedule).

    `widen`: counting, accesses are as wide as NVRTC and ptxas make them at their line, where those can be asked; else as the source has
    them. `constant`: tensors that must not be written; None: those that kernels have only pointers to const to.

    `rtc`: NVRTC compiles the source on a GPU, not nvcc. `held`: what `__device__` variables hold, by the library: they begin with that, and
    it is put there.

    Raises ValueError for less than one schedule or block."""
    for name, given in (("schedules", schedules), ("blocks", blocks)):
        if given is not None and given < 1:
            raise ValueError(f"{name} is {given}; it must be 1 or more")
    library = build(text, path=path, kernels=[x.kernel for x in launches], mode=mode, arch=arch, folders=folders, values=values, rtc=rtc)
    tensors = {n: t for n, t in memory.items() if hasattr(t, "data_ptr")}
    started = time.perf_counter()
    code = machine.MachineCode()
    if mode == "count" and widen:
        target = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
        code = machine.of(text, path, list(library.kernels), target, folders).only([x.kernel for x in launches])
    chosen = settings.load()
    placed = hold(tensors)
    request = Request(
        library=library.path, numbers=library.kernels, launches=launches, tensors=placed,
        values={n: v for n, v in memory.items() if n not in tensors},
        variables=variables(library.path), mode=mode, stack=stack_bytes(library.path), workers=chosen.jobs,
        patience=chosen.patience,
        seconds=chosen.simt_seconds, uninitialised=set(uninitialised), constant=None if constant is None else set(constant), seed=seed,
        schedules=schedules,
        blocks=blocks, widths=counts.widths(library.path, code) if mode == "count" else ((), ()),
        dynamic={x.kernel: (code.shared.get(x.kernel, 0) + 15) // 16 * 16 for x in launches}, held=(held or {}).get(library.path),
    )
    answer = process.ask(request, tensors, path)
    if held is not None and answer.held:
        held[library.path] = answer.held
    found = findings.read(library.path, native.array(native.RawFinding, answer.findings), Layout(placed, request.variables), {path: text})
    seen = (
        counts.read(library.path, native.array(native.RawCount, answer.counts), {path: text}, code) if mode == "count" else counts.Counts()
    )
    return Report(
        findings=found, lines=seen.lines, outputs=tensors, fma=answer.fma + sum(seen.fma.values()),
        other_flops=answer.other + sum(seen.flops.values()),
        fma_at=seen.fma, other_at=seen.flops, divergent=seen.parted, threads=answer.threads, blocks=answer.ran, grid_blocks=answer.total,
        seconds=time.perf_counter() - started, build_seconds=library.seconds, printed=answer.printed,
    )


def run_rung(
    subject: Subject, case: Case, *, mode: Mode = "check", seed: int = 0, schedules: int = 1, blocks: int | None = None, arch: int = 90
) -> Report:
    """One case of an op computed by an implementation in CUDA C++: fresh inputs, all launches; `outputs` has what it wrote.

    Raises ValueError where the implementation cannot take the case or is not CUDA C++."""
    import torch

    from rooftop.core.spec import DTYPES, TARGETS
    from rooftop.lab.inputs import make

    op, implementation = subject.op, subject.implementation
    if implementation is None or implementation.head is None or implementation.backend != "cuda":
        raise ValueError(f"{subject.name} is not CUDA C++: only that can be simulated")
    if reason := implementation.where().reason:
        raise ValueError(f"{subject.name} cannot be simulated: {reason}")
    device = TARGETS[max(arch, implementation.arch)]
    if reason := subject.supports(case, device):
        raise ValueError(f"{subject.name} cannot take {case.id}: {reason}")
    tensors, options = make(op, case, "cpu", seed)
    call = subject.call(case, device)
    given = call.given(tensors)
    for name in call.mutated:  # what the kernel writes into is its own
        if (t := given[name]) is not None:
            given[name] = t.clone(memory_format=torch.preserve_format)

    def empty(name: str, meta: Any) -> Any:
        memory = torch.full((max(meta.span, 1) * DTYPES[meta.dtype].bytes,), 0xFF, dtype=torch.uint8)
        made = memory.view(getattr(torch, DTYPES[meta.dtype].torch)).as_strided(meta.shape, meta.strides)
        return made.zero_() if name in call.zeroed else made

    memory = call.memory(given, {n: options[n] for n in op.runtime_options}, empty)  # type: ignore[misc]
    fresh = [
        n for n in (*(n for n, _ in call.outputs), *call.scratch) if n not in call.reused and n not in call.zeroed and memory[n] is not None
    ]
    report = run_launches(
        implementation.head.source, implementation.head.path, call.launches, memory, uninitialised=fresh,
        constant=[n for n in call.inputs if n not in call.mutated and memory[n] is not None],
        arch=device.arch, mode=mode, seed=seed, schedules=schedules, blocks=blocks, folders=implementation.head.folders, rtc=True,
    )
    return replace(
        report, outputs={n: memory[n] for n in (*(n for n, m in call.outputs if m is not None), *call.mutated) if memory[n] is not None}
    )


class NotSimulatedError(RuntimeError):
    """A kernel came to something that the simulator does not do: whether it is right there is not known."""


class SimulatedFault(RuntimeError):
    """A kernel did in the simulator what it must not do. `report` has all of it. `remark`: how its tensors lie."""

    def __init__(self, report: Report, remark: str = "") -> None:
        first = report.faults[0]
        more = f" (and {len(report.faults) - 1} more)" if len(report.faults) > 1 else ""
        super().__init__(f"{first}{more}{remark}")
        self.report = report


_HELD: dict[Path, bytes] = {}  # what variables of a module hold on a GPU, as long as a process has it loaded


def run_simulator(call: Call, memory: dict[str, Any]) -> None:
    """Run a call of CUDA C++ on CPU memory, as the checker runs it on a GPU: the source's variables keep their values from one call of a
    kernel to the next.

    Raises SimulatedFault where it does what it must not."""
    head = call.implementation.head
    assert head is not None
    inputs = [n for n in call.inputs if memory[n] is not None]
    fresh = [
        n for n in (*(n for n, _ in call.outputs), *call.scratch) if n not in call.reused and n not in call.zeroed and memory[n] is not None
    ]
    report = run_launches(
        head.source, head.path, call.launches, memory, uninitialised=fresh, constant=[n for n in inputs if n not in call.mutated],
        arch=call.problem.device.arch, folders=head.folders, rtc=True, held=_HELD,
    )
    if report.faults:
        raise SimulatedFault(report, remark(call.problem, head=True, misaligned=any(f.kind == "misaligned" for f in report.faults)))
    if report.findings:
        raise NotSimulatedError(str(report.findings[0]))
