"""Launches in a loaded library: whether their arguments fit, in which memory they run, what came of them. All of it happens in the child
process."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rooftop.core.spec import Launch
from rooftop.lab.simt import native
from rooftop.lab.simt.link import Variable
from rooftop.lab.simt.memory import CONSTANT, INITIALISED, READABLE, WRITABLE, Held, Memory
from rooftop.lab.simt.ordinary import Struct
from rooftop.lab.simt.report import KINDS, Index

Mode = Literal["check", "count"]
POISONS = (0xFF, 0xC3, 0x3C)  # of memory that nothing has written: NaN, then a negative and a positive number
ELEMENTS = {  # what a kernel's pointer points to -> torch's name of the elements; integers may be a view of any bits
    **{f"float{n}": "float32" for n in ("", "2", "3", "4")}, **{f"double{n}": "float64" for n in ("", "2", "3", "4")}, "__half": "float16",
    "__half2": "float16", "__nv_bfloat16": "bfloat16", "__nv_bfloat162": "bfloat16",
}
SAMPLE = 32  # blocks that are counted where nothing is said
SHARED_LIMIT = 227 << 10  # bytes that a block can have on sm_90


class LaunchError(ValueError):
    """The arguments do not fit the kernel's parameters, or the geometry is none that a GPU takes."""


@dataclass(frozen=True)
class Program:
    """How a program is run. `pairs`: see program_build.Program; `repeat`: how often a launch is watched that is made again and again;
    `budget`: seconds of CPU time for the watched blocks of one launch, `most`: for all of it; `poison`: of memory that nobody has written.
    `listed`: no launch is made, each is listed; `files`: that it may read; `input`: of these, its standard input."""

    pairs: Sequence[tuple[int, int]]
    arguments: Sequence[str]
    repeat: int = 1
    budget: float = 10.0
    most: float = 60.0
    poison: int = POISONS[0]
    listed: bool = False
    files: Sequence[Path] = ()
    input: Path | None = None
    here: str = "."  # the folder that its relative names start from


@dataclass(frozen=True)
class Request:
    """One simulation. `numbers`: name expression -> number of its symbol. `values`: what is no tensor, by name. `widths`: see
    `Native.widths`.

    `held`: what the source's variables that may be written hold, as `Memory.held` gives it; None: what they are initialised to.
    `dynamic`: where dynamic shared memory begins on the GPU, by kernel. `program`: its main() is run, and launches what it launches."""

    library: Path
    numbers: Mapping[str, int]
    launches: Sequence[Launch]
    tensors: Mapping[str, Held]
    values: Mapping[str, Any]
    variables: Sequence[Variable]
    mode: Mode
    stack: int
    workers: int
    patience: int
    seconds: int
    uninitialised: Collection[str] = ()
    constant: Collection[str] | None = None
    seed: int = 0
    schedules: int = 1
    blocks: int | None = None
    widths: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]] = ((), ())
    dynamic: Mapping[str, int] = field(default_factory=dict)
    program: Program | None = None
    held: bytes | None = None


@dataclass
class Answer:
    """What came of it: bytes are the engine's structures as they lie in memory."""

    ran: int = 0
    total: int = 0
    threads: int = 0
    status: int = 0
    findings: bytes = b""
    counts: bytes = b""
    printed: str = ""
    fma: int = 0
    other: int = 0
    journal: str = ""  # of a program: what it did, as JSON
    held: bytes = b""


def answer(request: Request, lib: native.Native, storage: int) -> Answer:
    """Run a request. `storage`: the address of the tensors' contents, one behind the other, which are written in place (by the first
    schedule).

    Raises LaunchError, MemoryError."""
    if request.program is not None:
        return _run_program(request, request.program, lib)
    launches, tensors, numbers, mode = request.launches, request.tensors, request.numbers, request.mode
    for launch in launches:
        _fits(lib, numbers[launch.kernel], launch, tensors)
    constants = _constants(lib, numbers, launches, tensors) if request.constant is None else set(request.constant)
    lib.forget()
    if mode == "count":
        lib.widths([native.Site(*site) for site in request.widths[0]], request.widths[1])
    answered = Answer()
    contents: list[bytes] = []
    place: Memory | None = None
    for schedule in range(request.schedules if mode == "check" else 1):
        place = Memory(
            lib, tensors, request.variables, storage, uninitialised=request.uninitialised, constant=_apart(tensors, constants), held=request.held
        )
        for launch in launches:
            if mode == "count":
                lib.dynamic_at(request.dynamic.get(launch.kernel, 0))
            counted, of, answered.status = _launch(lib, request, launch, place, request.seed + schedule, POISONS[0])
            answered.ran, answered.total, answered.threads = answered.ran + counted, answered.total + of, answered.threads + counted * _product(launch.block)
            if answered.status:
                break
        if schedule == 0:
            contents, answered.held = place.contents(), place.held()
        if answered.status == native.ENDLESS:
            break  # another order of warps would take as long
    raw, answered.printed = lib.findings(), lib.printed()
    # it would not end with other contents either
    unwritten = answered.status != native.ENDLESS and any(KINDS[f.kind] == "uninitialised" for f in raw)
    if unwritten and not _affects_results(lib, request, storage):
        raw = [f for f in raw if KINDS[f.kind] != "uninitialised"]
    assert place is not None
    place.store(contents)
    answered.findings = b"".join(bytes(f) for f in raw)
    answered.fma, answered.other = lib.floats()
    if mode == "count":
        answered.counts = b"".join(bytes(c) for c in lib.counts())
    return answered


def _run_program(request: Request, program: Program, lib: native.Native) -> Answer:
    if request.mode == "count":
        lib.widths([native.Site(*site) for site in request.widths[0]], request.widths[1])
    end = lib.program_memory()
    for v in request.variables:
        lib.mark(end + v.at, 1, (v.size,), (1,), INITIALISED | READABLE | (CONSTANT if v.constant else WRITABLE))
    journal = lib.program(
        program.pairs, program.arguments, workers=request.workers, repeat=program.repeat, poison=program.poison, patience=request.patience,
        sample=(request.blocks or SAMPLE) if request.mode == "count" else 0, seed=request.seed, stack=request.stack,
        budget=program.budget if request.mode == "check" else 0.0, most=program.most, listed=int(program.listed),
    )
    answered = Answer(printed=lib.printed(), journal=journal, findings=b"".join(bytes(f) for f in lib.findings()))
    answered.fma, answered.other = lib.floats()
    if request.mode == "count":
        answered.counts = b"".join(bytes(c) for c in lib.counts())
    return answered


def _affects_results(lib: native.Native, request: Request, storage: int) -> bool:
    """Whether anything comes of memory that was read before it was written: the same run with other contents there has other results.

    A kernel may load what it never uses (the slice after the last one, the columns past the edge): that is no fault."""
    seen: list[list[bytes]] = []
    written: list[bytes] = []
    for poison in POISONS[1:]:
        place = Memory(
            lib, request.tensors, request.variables, storage, uninitialised=request.uninitialised, poison=poison, held=request.held
        )
        for launch in request.launches:
            if _launch(lib, request, launch, place, request.seed, poison, workers=1)[2]:
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


def _fits(lib: native.Native, number: int, launch: Launch, tensors: Mapping[str, Held]) -> None:
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
        dtype = tensors[value].dtype if isinstance(value, str) and value in tensors else None
        taken = ELEMENTS.get(parameter.target)
        if kind == "ptr" and dtype is not None and taken is not None and dtype not in (taken, "uint8", "int8"):  # bytes may hold anything
            raise LaunchError(
                f"{launch.kernel}: parameter {i + 1} points to {parameter.target} and takes a tensor of {taken}; {value} is {dtype}"
            )
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


def _constants(lib: native.Native, numbers: Mapping[str, int], launches: Sequence[Launch], tensors: Mapping[str, Held]) -> set[str]:
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


def _apart(tensors: Mapping[str, Held], constant: set[str]) -> set[str]:
    """Those of `constant` whose memory is not that of a tensor that may be written."""
    written = {t.at for n, t in tensors.items() if n not in constant}
    return {n for n in constant if tensors[n].at not in written}


def _launch(
    lib: native.Native, request: Request, launch: Launch, place: Memory, seed: int, poison: int, *, workers: int | None = None
) -> tuple[int, int, int]:
    """Blocks run, blocks of the grid, status."""
    memory, numbers = {**request.values, **request.tensors}, request.numbers
    cells: list[Any] = []
    for value, kind in zip(launch.args.values(), launch.types, strict=True):
        argument = memory.get(value, value) if isinstance(value, str) else value
        if isinstance(argument, str):
            raise LaunchError(f"{launch.kernel}: the argument {argument!r} is not in memory, which has {', '.join(memory)}")
        if kind == "struct":
            size = lib.kernel(numbers[launch.kernel]).parameters[len(cells)].bytes
            passed = lib.made(argument.maker, [place.address(n) for n in argument.tensors], size) if isinstance(argument, Struct) else argument
            cells.append((ctypes.c_char * size).from_buffer_copy(passed))
            continue
        cells.append(native.CTYPES[kind](place.address(value) if isinstance(argument, Held) else 0 if argument is None else argument))
    grid, cluster = _three(launch.grid), _cluster(lib, numbers[launch.kernel], launch)
    total, in_cluster = _product(grid), _product(cluster)
    units = total // in_cluster
    chosen: list[int] | None = None
    if request.mode == "count" and not launch.cooperative:
        wanted = max(1, (SAMPLE if request.blocks is None else request.blocks) // in_cluster)
        if wanted < units:
            chosen = sorted({i * units // wanted + random.Random(seed + i).randrange(max(units // wanted, 1)) for i in range(wanted)})
    geometry = native.Launch(
        grid=grid, block=_three(launch.block), cluster=cluster, dynamic=launch.shared, cooperative=int(launch.cooperative),
        workers=workers or request.workers, unit_count=len(chosen) if chosen else 0, seed=seed, poison=poison, stack=request.stack,
        patience=request.patience,
    )
    if chosen is not None:
        units_array = (ctypes.c_uint32 * len(chosen))(*chosen)
        geometry.units = units_array
    status = lib.run(lib.kernel(numbers[launch.kernel]), cells, geometry)
    if status == 2:
        raise MemoryError(f"no memory for the threads of {launch.kernel}")
    return (len(chosen) * in_cluster if chosen is not None else total), total, status
