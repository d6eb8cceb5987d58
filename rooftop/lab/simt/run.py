"""Run launches of CUDA C++ on the CPU: build, lay out memory, run, read what was found."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rooftop.core import head_text, settings
from rooftop.core.compile import DEVICE_HEADERS, headers
from rooftop.core.spec import Case, Launch
from rooftop.lab.simt import counts, findings, machine, native
from rooftop.lab.simt.build import build, stack_bytes
from rooftop.lab.simt.memory import Memory
from rooftop.lab.simt.ordinary import Struct
from rooftop.lab.simt.report import KINDS, Index, Report

if TYPE_CHECKING:
    from rooftop.core.call import Call
    from rooftop.lab.candidates import Subject

Mode = Literal["check", "count"]
POISONS = (0xFF, 0xC3, 0x3C)  # of memory that nothing has written: NaN, then a negative and a positive number
ELEMENTS = {  # what a kernel's pointer points to -> torch's name of the elements; integers may be a view of any bits
    **{f"float{n}": "float32" for n in ("", "2", "3", "4")}, **{f"double{n}": "float64" for n in ("", "2", "3", "4")}, "__half": "float16",
    "__half2": "float16", "__nv_bfloat16": "bfloat16", "__nv_bfloat162": "bfloat16",
}  # fmt: skip
SAMPLE = 32  # blocks that are counted where nothing is said
SHARED_LIMIT = 227 << 10  # bytes that a block can have on sm_90


class LaunchError(ValueError):
    """The arguments do not fit the kernel's parameters, or the geometry is none that a GPU takes."""


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

    Tensors to which the kernel has only pointers to const must not be written. Raises CompileError, LaunchError, NoCompilerError."""
    text, path, folder = source_of(source)
    launch = Launch(
        kernel=entry, grid=tuple(grid), block=tuple(block), cluster=tuple(cluster), cooperative=cooperative, shared=shared,
        types=tuple(kind for _, kind in arguments), args={f"{i}": value for i, (value, _) in enumerate(arguments)},
    )  # fmt: skip
    return run_launches(
        text, path, [launch], memory, uninitialised=uninitialised, arch=arch, mode=mode, seed=seed, schedules=schedules, blocks=blocks, folder=folder
    )


def source_of(source: Path | str) -> tuple[str, str, Path]:
    """Its text, what it is called, and the folder of its headers: its own where it includes one that lies there."""
    if isinstance(source, Path) or ("\n" not in source and source.endswith((".cu", ".cuh"))):
        text, folder = head_text.read(Path(source)), Path(source).resolve().parent
        return text, str(source), folder if any(True for _ in headers(text, folder)) else DEVICE_HEADERS
    return source, "kernel.cu", DEVICE_HEADERS


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
    folder: Path = DEVICE_HEADERS,
    values: Mapping[str, str] | None = None,
    workers: int | None = None,
    widen: bool = True,
) -> Report:
    """Run the launches of one call, in order, on the tensors of `memory`, which are written in place (by the first schedule).

    `widen`: counting, accesses are as wide as NVRTC and ptxas make them at their line, where those can be asked; else as the source has them.
    `constant`: tensors that must not be written; None: those that kernels have only pointers to const to.

    Raises ValueError for less than one schedule or block."""
    for name, given in (("schedules", schedules), ("blocks", blocks)):
        if given is not None and given < 1:
            raise ValueError(f"{name} is {given}; it must be 1 or more")
    library = build(text, path=path, kernels=[x.kernel for x in launches], mode=mode, arch=arch, folder=folder, values=values)
    lib = native.of(library)
    tensors = {n: t for n, t in memory.items() if hasattr(t, "data_ptr")}
    started = time.perf_counter()
    code = machine.MachineCode()
    with lib.lock:
        for launch in launches:
            _fits(lib, library.kernels[launch.kernel], launch, tensors)
        kept = _constants(lib, library.kernels, launches, tensors) if constant is None else set(constant)
        lib.forget()
        if mode == "count":
            target = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
            if widen:
                code = machine.of(text, path, list(library.kernels), target, folder).only([x.kernel for x in launches])
            counts.widen(lib, code)
        ran = total = threads = status = 0
        for schedule in range(schedules if mode == "check" else 1):
            place = Memory(lib, tensors, uninitialised=uninitialised, constant=_apart(tensors, kept))
            for launch in launches:
                if mode == "count":
                    lib.dynamic_at((code.shared.get(launch.kernel, 0) + 15) // 16 * 16)
                counted, of, status = _launch(lib, library.kernels, launch, place, memory, mode, seed + schedule, blocks, workers, POISONS[0])
                ran, total, threads = ran + counted, total + of, threads + counted * _product(launch.block)
                if status:
                    break
            if schedule == 0:
                results = place.contents()
            if status == native.ENDLESS:
                break  # another order of warps would take as long
        raw, printed = lib.findings(), lib.printed()
        unwritten = status != native.ENDLESS and any(KINDS[f.kind] == "uninitialised" for f in raw)  # it would not end with other contents either
        if unwritten and not _matters(lib, library.kernels, launches, memory, tensors, uninitialised, seed):
            raw = [f for f in raw if KINDS[f.kind] != "uninitialised"]
        place.store(results)
        found = findings.read(lib, raw, place, {path: text})
        fma, other = lib.floats()
        seen = counts.read(lib, {path: text}, code) if mode == "count" else counts.Counts()
    return Report(
        findings=found, lines=seen.lines, outputs=tensors, fma=fma + sum(seen.fma.values()), other_flops=other + sum(seen.flops.values()),
        fma_at=seen.fma, other_at=seen.flops, divergent=seen.parted, threads=threads, blocks=ran, grid_blocks=total,
        seconds=time.perf_counter() - started, build_seconds=library.seconds, printed=printed,
    )  # fmt: skip


def _matters(
    lib: native.Native, numbers: Mapping[str, int], launches: Sequence[Launch], memory: Mapping[str, Any], tensors: Mapping[str, Any],
    uninitialised: Collection[str], seed: int,
) -> bool:  # fmt: skip
    """Whether anything comes of memory that was read before it was written: the same run with other contents there has other results.

    A kernel may load what it never uses (the slice after the last one, the columns past the edge): that is no fault."""
    seen: list[list[bytes]] = []
    written: list[bytes] = []
    for poison in POISONS[1:]:
        place = Memory(lib, tensors, uninitialised=uninitialised, poison=poison)
        for launch in launches:
            if _launch(lib, numbers, launch, place, memory, "check", seed, None, 1, poison)[2]:
                return True
        seen.append(place.contents())
        written = place.written()
    import numpy as np

    for one, two, who in zip(*seen, written, strict=True):
        a, b = np.frombuffer(one, np.uint8), np.frombuffer(two, np.uint8)
        if bool(((a != b) & (np.frombuffer(who, np.uint8) != 0)).any()):  # what nobody wrote is poisoned still
            return True
    return False


def _product(values: Sequence[int]) -> int:
    n = 1
    for value in values:
        n *= value
    return n


def _three(values: Sequence[int]) -> Index:
    x, y, z = (*values, 1, 1, 1)[:3]
    return int(x), int(y), int(z)


def _fits(lib: native.Native, number: int, launch: Launch, tensors: Mapping[str, Any]) -> None:
    kernel = lib.kernel(number)
    if kernel.count != len(launch.args):
        raise LaunchError(f"{launch.kernel} has {kernel.count} parameters; {len(launch.args)} arguments are given")
    for i, (name, kind) in enumerate(zip(launch.args, launch.types, strict=True)):
        parameter = kernel.parameters[i]
        value = launch.args[name]
        size = ctypes.sizeof(native.CTYPES[kind]) if kind != "struct" else parameter.bytes if isinstance(value, Struct) else len(value)
        if parameter.bytes != size or (kind == "ptr") != bool(parameter.pointer):
            what = "a pointer" if parameter.pointer else f"{parameter.bytes} bytes"
            raise LaunchError(f"{launch.kernel}: parameter {i + 1} is {what}; the argument {name} is {kind}")
        given = str(tensors[value].dtype).removeprefix("torch.") if isinstance(value, str) and value in tensors else None
        taken = ELEMENTS.get(parameter.target)
        if kind == "ptr" and given is not None and taken is not None and given not in (taken, "uint8", "int8"):  # bytes may hold anything
            raise LaunchError(f"{launch.kernel}: parameter {i + 1} points to {parameter.target} and takes a tensor of {taken}; {value} is {given}")
    grid, block, cluster, said = _three(launch.grid), _three(launch.block), _cluster(lib, number, launch), lib.cluster(number)
    if said and said != cluster:
        raise LaunchError(f"{launch.kernel}: launched with a cluster of {cluster}; its source says __cluster_dims__{said}")
    if not 1 <= _product(block) <= 1024:
        raise LaunchError(f"{launch.kernel}: a block of {_product(block)} threads; it must be 1 to 1024")
    if not 0 <= launch.shared <= SHARED_LIMIT:
        raise LaunchError(f"{launch.kernel}: {launch.shared} bytes of dynamic shared memory; a block can have 0 to {SHARED_LIMIT}")
    if min(grid) < 1 or grid[0] > 2**31 - 1 or max(grid[1:]) > 65535:
        raise LaunchError(f"{launch.kernel}: a grid of {grid}; it must be 1 to 2147483647, 65535, 65535")
    if not 1 <= _product(cluster) <= 16 or any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"{launch.kernel}: a cluster of {cluster} in a grid of {grid}; clusters have 1 to 16 blocks and fill the grid")


def _cluster(lib: native.Native, number: int, launch: Launch) -> Index:
    return _three(launch.cluster or lib.cluster(number) or (1,))


def _constants(lib: native.Native, numbers: Mapping[str, int], launches: Sequence[Launch], tensors: Mapping[str, Any]) -> set[str]:
    """The tensors that no kernel has a pointer to that it may write through."""
    written: set[str] = set()
    for launch in launches:
        kernel = lib.kernel(numbers[launch.kernel])
        for i, value in enumerate(launch.args.values()):
            if isinstance(value, str) and kernel.parameters[i].pointer and not kernel.parameters[i].constant:
                written.add(value)
            elif isinstance(value, Struct):  # what it does with them is not known
                written.update(value.tensors)
    return set(tensors) - written


def _apart(tensors: Mapping[str, Any], constant: set[str]) -> set[str]:
    """Those of `constant` whose memory is not that of a tensor that may be written."""
    written = {t.untyped_storage().data_ptr() for n, t in tensors.items() if n not in constant}
    return {n for n in constant if tensors[n].untyped_storage().data_ptr() not in written}


def _launch(
    lib: native.Native, numbers: Mapping[str, int], launch: Launch, place: Memory, memory: Mapping[str, Any], mode: Mode, seed: int,
    blocks: int | None, workers: int | None, poison: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Blocks run, blocks of the grid, status."""
    cells: list[Any] = []
    for value, kind in zip(launch.args.values(), launch.types, strict=True):
        given = memory.get(value, value) if isinstance(value, str) else value
        if isinstance(given, str):
            raise LaunchError(f"{launch.kernel}: the argument {given!r} is not in memory, which has {', '.join(memory)}")
        if kind == "struct":
            size = lib.kernel(numbers[launch.kernel]).parameters[len(cells)].bytes
            made = lib.made(given.maker, [place.address(n) for n in given.tensors], size) if isinstance(given, Struct) else given
            cells.append((ctypes.c_char * size).from_buffer_copy(made))
            continue
        cells.append(native.CTYPES[kind](place.address(value) if hasattr(given, "data_ptr") else 0 if given is None else given))
    grid, cluster = _three(launch.grid), _cluster(lib, numbers[launch.kernel], launch)
    total, in_cluster = _product(grid), _product(cluster)
    units = total // in_cluster
    chosen: list[int] | None = None
    if mode == "count" and not launch.cooperative:
        wanted = max(1, (SAMPLE if blocks is None else blocks) // in_cluster)
        if wanted < units:
            chosen = sorted({i * units // wanted + random.Random(seed + i).randrange(max(units // wanted, 1)) for i in range(wanted)})
    geometry = native.Launch(
        grid=grid, block=_three(launch.block), cluster=cluster, dynamic=launch.shared, cooperative=int(launch.cooperative),
        workers=workers or settings.load().jobs, unit_count=len(chosen) if chosen else 0, seed=seed, poison=poison, stack=stack_bytes(lib.path),
        patience=settings.load().patience,
    )  # fmt: skip
    if chosen is not None:
        units_array = (ctypes.c_uint32 * len(chosen))(*chosen)
        geometry.units = units_array
    status = lib.run(lib.kernel(numbers[launch.kernel]), cells, geometry)
    if status == 2:
        raise MemoryError(f"no memory for the threads of {launch.kernel}")
    return (len(chosen) * in_cluster if chosen is not None else total), total, status


def run_rung(subject: Subject, case: Case, *, mode: Mode = "check", seed: int = 0, schedules: int = 1, blocks: int | None = None, arch: int = 90) -> Report:
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

    memory = call.memory(given, {n: options[n] for n in op.late}, empty)  # type: ignore[misc]
    fresh = [n for n in (*(n for n, _ in call.outputs), *call.scratch) if n not in call.taken and n not in call.zeroed and memory[n] is not None]
    report = run_launches(
        implementation.head.source, implementation.head.path, call.launches, memory, uninitialised=fresh,
        constant=[n for n in call.inputs if n not in call.mutated and memory[n] is not None],
        arch=device.arch, mode=mode, seed=seed, schedules=schedules, blocks=blocks,
    )  # fmt: skip
    return replace(report, outputs={n: memory[n] for n in (*(n for n, m in call.outputs if m is not None), *call.mutated) if memory[n] is not None})


class NotSimulatedError(RuntimeError):
    """A kernel came to something that the simulator does not do: whether it is right there is not known."""


class SimulatedFault(RuntimeError):
    """A kernel did in the simulator what it must not do. `report` has all of it."""

    def __init__(self, report: Report) -> None:
        first = report.faults[0]
        more = f" (and {len(report.faults) - 1} more)" if len(report.faults) > 1 else ""
        super().__init__(f"{first}{more}")
        self.report = report


def run_simulator(call: Call, memory: dict[str, Any]) -> None:
    """Run a call of CUDA C++ on CPU memory, as the checker runs it on a GPU. Raises SimulatedFault where it does what it must not."""
    head = call.implementation.head
    assert head is not None
    inputs = [n for n in call.inputs if memory[n] is not None]
    fresh = [n for n in (*(n for n, _ in call.outputs), *call.scratch) if n not in call.taken and n not in call.zeroed and memory[n] is not None]
    report = run_launches(
        head.source, head.path, call.launches, memory, uninitialised=fresh, constant=[n for n in inputs if n not in call.mutated],
        arch=call.problem.device.arch,
    )  # fmt: skip
    if report.faults:
        raise SimulatedFault(report)
    if report.findings:
        raise NotSimulatedError(str(report.findings[0]))
