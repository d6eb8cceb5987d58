"""Translated CUDA C++ to a shared library, by the host's own compiler, with a disk cache."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock

from rooftop.core import sandbox, settings
from rooftop.core.compile import STANDARD, CompileError, ToolchainError
from rooftop.core.helpers import SHARED, Folders, included
from rooftop.core.sandbox import on_the_clock
from rooftop.lab.simt import host, link, macros, ordinary, precompiled
from rooftop.lab.simt.clang_accesses import keep
from rooftop.lab.simt.precompiled import as_made, sum_of
from rooftop.lab.simt.translate import MARK, cluster_dims, constants, translate

RUNTIME = Path(__file__).parent / "runtime"
MODES = ("check", "count")
FEATURES = (  # names that a source may have and the simulator has not: what they are of
    (r"cuda\w*(?:Array|Channel|Texture|Resource(?:Desc|Type)|(?:Address|Filter|Read)Mode|Surface|Mipmapped)|tex(?:ture|\dD|Cubemap)|surf",
     "textures and surfaces are"),
    (r"cu(?:Init|Driver|Device|Ctx|Module|Launch|Mem|Func|Stream|Event|Link|Library|Kernel|Get)(?![a-z])|CU[a-z_]\w*$|CUDA_\w+$",
     "the driver API is"),
    (r"cudaGraphics|gl[A-Z]|GL[a-z]", "graphics are"),
    (r"cudaDev(?:ice)?(?:Get)?P2P", "several GPUs are"), (r"cublasLt", "cuBLASLt is"), (r"nvrtc", "NVRTC in a program is"),
)
ENGINE = ("common.cpp",)  # what all modes share
PROGRAM = ("program", "device_memory", "devices", "graphs", "launches", "host_calls", "libraries")  # and what a program runs on
# the modules that change a source or lay it out
STEPS = ("translate", "ptx", "whole", "link", "host", "build", "program_text", "program_build")
SPARE_STACK = 60 << 10  # bytes of a thread's stack beside its largest frames
COMMON = ("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-math-errno", "-w")
# Aggregates stay whole (no scalar replacement): copying a float4 is one access, as on the GPU. Everything is inlined that can be.
KERNEL = (
    "-g1", "-gdwarf-4", "-fstack-usage", "-fsanitize=thread,bounds", "-fno-optimize-sibling-calls",
    "-fno-strict-aliasing", "-ffp-contract=fast", "-fno-trapping-math", "-fpermissive", "-fno-rtti", "-fdata-sections", "-fno-finite-loops",
)
GCC = (
    "-O2", "-fno-gnu-unique", "-fno-tree-sra", "-fno-ipa-sra", "-fno-tree-vectorize", "-fno-store-merging", "-fno-ipa-icf",
    "-fno-tree-tail-merge", "-fno-crossjumping", "-fno-tree-sink", "-fno-code-hoisting", "-finline-functions",
    "-fno-ipa-reference-addressable",
    "--param=tsan-instrument-func-entry-exit=0", "--param=tsan-distinguish-volatile=1", "--param=inline-unit-growth=1000",
    "--param=large-function-growth=100000", "--param=large-function-insns=100000", "--param=max-inline-insns-single=100000",
    "--param=max-inline-insns-auto=100000", "--param=large-stack-frame-growth=100000", "--param=early-inlining-insns=1000",
)
# Without columns, two accesses of a line that become one are at that line, not at none. Its `bounds` would stop at the array's end;
# `array-bounds` tells and goes on, as g++'s does. A null pointer is read where the source says so.
CLANG = (
    "-O1", "-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops", "-gno-column-info", "-fno-sanitize=local-bounds",
    "-fno-delete-null-pointer-checks",
)
# Options of LLVM's own: arms of a branch keep their own lines and stay where they stand, no path gets a copy of its own, a loop of copies
# stays one, and a read before a write of the same place is one.
STEADY = (
    "tsan-instrument-func-entry-exit=0", "tsan-distinguish-volatile=1", "tsan-instrument-read-before-write=1",
    "simplifycfg-sink-common=0", "simplifycfg-hoist-common=0", "simplifycfg-merge-cond-stores=0", "sink-common-insts=0",
    "hoist-common-insts=0",
    "simplifycfg-max-small-block-size=0", "jump-threading-threshold=0", "enable-tail-merge=0", "disable-block-placement",
    "disable-machine-sink",
    "disable-licm-promotion", "disable-loop-idiom-all", "disable-vector-combine",
)


class NoCompilerError(ToolchainError):
    """There is no C++ compiler that can build a simulation; the text says what is needed."""


@dataclass(frozen=True)
class Compiler:
    path: Path
    version: str
    clang: bool


@cache
def _version(path: Path) -> str:
    return subprocess.run([str(path), "--version"], capture_output=True, text=True).stdout.partition("\n")[0]


@cache
def compiler() -> Compiler:
    """The host's C++ compiler: g++, or clang++ where it is absent. Raises NoCompilerError."""
    for name in ("g++", "clang++", "c++"):
        path = settings.tool_path(name)
        if path is None:
            continue
        version = _version(path)
        return Compiler(path, version, "clang" in version)
    raise NoCompilerError(
        "no C++ compiler on PATH: simulating CUDA C++ needs g++ (11 or later) or clang++, with binutils (apt install g++)"
    )


@cache
def steady(tool: Compiler) -> tuple[str, ...]:
    """Those of STEADY that this clang++ has: what one version calls an option, another may not know."""

    def known(options: Sequence[str]) -> tuple[str, ...] | None:
        words = tuple(word for option in options for word in ("-mllvm", f"-{option}"))
        command = [str(tool.path), "-fsyntax-only", *words, "-x", "c++", os.devnull]
        return words if subprocess.run(command, capture_output=True).returncode == 0 else None

    every = known(STEADY)
    return every if every is not None else tuple(word for option in STEADY for word in known((option,)) or ())


@cache
def _folders(tool: Path) -> tuple[Path, ...]:
    """Where a compiler that is not the system's has its own files: the folder it is installed in, unless that is a user's whole home."""
    places = {p.parent.parent for p in (tool, tool.resolve())}
    return tuple(p for p in places if not Path.home().is_relative_to(p) and p != Path("/usr"))


@cache
def _headers_of(tool: Path) -> tuple[Path, ...]:
    """The folders of headers that a compiler knows by itself."""
    said = subprocess.run([str(tool), "-E", "-v", "-x", "c++", os.devnull], capture_output=True, text=True).stderr
    listed = said.partition("search starts here:\n")[2].partition("End of search list")[0].splitlines()
    return tuple(Path(line.strip()).resolve() for line in listed if line[:1] == " ")


def _check_read(dependencies: Path, tool: Path, work: Path, path: str) -> None:
    """Raises CompileError where the compiler says that it has read a file which the library's key does not cover: it may change, and the
    library would stay."""
    text = dependencies.read_text(encoding="utf-8", errors="replace").partition(":")[2].replace("\\\n", " ")
    known = (work, RUNTIME, _folder(), *_headers_of(tool))
    for name in re.findall(r"(?:\\.|[^\s\\])+", text):
        file = (work / name.replace("\\ ", " ")).resolve()
        if not any(file.is_relative_to(folder.resolve()) for folder in known):
            said = f"it includes {file}, which is no header of CUDA's, of the compiler's or beside the source"
            raise CompileError(f"{path} does not compile for simulation: {said}")


@cache
def machine() -> tuple[str, ...]:
    """What the compiler may use of this CPU: fused multiply-add and conversions of 16-bit numbers, as the GPU has them."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2].partition("\n")[0].split())
    except OSError:
        return ()
    return (("-mavx2", "-mfma", "-mf16c") if "f16c" in flags else ("-mavx2", "-mfma")) if {"avx2", "fma"} <= flags else ()


@cache
def _runtime_digest(steps: bool = True) -> str:
    """Of the runtime and, with `steps`, of what changes a source on its way to the compiler."""
    own = [p for p in RUNTIME.parent.glob("*.py") if steps and p.stem.startswith(STEPS)]
    files = sorted([*(p for p in RUNTIME.rglob("*") if p.is_file()), *own])
    return hashlib.sha256("\0".join(f"{p.name}\0{p.read_text(encoding='utf-8')}" for p in files).encode()).hexdigest()


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _binutils(name: str) -> Path:
    path = settings.tool_path(name)
    if path is None:
        raise NoCompilerError(f"{name} is not on PATH: simulating CUDA C++ needs binutils (apt install binutils)")
    return path


def _flags(tool: Compiler) -> tuple[str, ...]:
    return (f"-std={STANDARD}", *COMMON, *machine(), f"-I{RUNTIME}")


def marks_of_places(tool: Compiler) -> tuple[str, ...]:
    """Options that mark the places a warp passes, for counting."""
    if tool.clang:
        return "-fsanitize-coverage=bb,no-prune,trace-pc", "-fno-sanitize=bounds"  # its checks of indices are places
    # A loop to be unrolled whose length is not a constant stays a loop: there would be translate.MOST copies of it.
    return "-fsanitize-coverage=trace-pc", "-fno-reorder-blocks", "-fno-reorder-blocks-and-partition", "-fdisable-rtl-loop2_unroll"


ENTRY = "the launched kernel"  # where a kernel's name expression stands, to the compiler
_NO_HEADER = re.compile(r"^(\S.*?):(\d+):(?:\d+:)? fatal error: '?([^'\n]+?)(?:: No such file or directory|' file not found)$", re.M)
_UNDECLARED = re.compile(  # by g++, then by clang++; of calls whose arguments' types are templates' too
    r"^(\S.*?):(\d+):(?:\d+:)? error: (?:.*?[‘']([\w:]+)[’'] (?:was not declared|has not been declared|is not a member of|does not name a|is not a class)"
    r"|there are no arguments to [‘'](\w+)[’']|(?:use of undeclared identifier|unknown type name|no member named) '(\w+)')", re.M,
)


def base_name(expression: str) -> str:
    """`softmax` of `mine::softmax<float, 256>`."""
    return expression.partition("<")[0].rpartition("::")[2].strip()


def family(text: str, kernels: Sequence[str]) -> list[str]:
    """`kernels` and, where they are plain names, all kernels of the source that are and stand under no `#if`: so one build serves them
    all."""
    plain = {k.name for k in ordinary.kernels(text) if not k.template and (k.name in kernels or not k.conditional)}
    return sorted({*kernels, *plain} if plain & set(kernels) and set(kernels) <= plain else set(kernels))


@dataclass(frozen=True)
class Library:
    """A built simulation. `kernels`: name expression -> number of its symbol."""

    path: Path
    kernels: dict[str, int]
    seconds: float  # spent building: 0 where it was in the cache


def build(
    text: str, *, path: str, kernels: Sequence[str], mode: str, arch: int = 90, folders: Folders = (SHARED,),
    values: Mapping[str, str] | None = None,
    rtc: bool = False,
) -> Library:
    """The library that runs `kernels` (name expressions) of the source `text`. `path` is the name shown; `folders` hold what it includes.
    `values`: functions of C++ to add, by name: they make structs that a kernel takes by value (arguments.py). `rtc`: the source finds the
    macros of NVRTC (macros.py), not those of nvcc and the host.

    Raises CompileError with the compiler's own words and the user's lines, NoCompilerError where there is none."""
    started = time.perf_counter()
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    tool = compiler()
    places = marks_of_places(tool) if mode == "count" else ()
    flags = (*_flags(tool), *KERNEL, *((*CLANG, *steady(tool)) if tool.clang else GCC))
    own = dict(sorted(included(text, folders).items()))
    order = family(text, kernels)
    made_values = "\n".join((values or {}).values())
    texts = [text, *(p.read_text(encoding="utf-8") for p in own.values())]
    predefined = macros.nvrtc(tool.path, flags, RUNTIME / "simt.h", arch) if rtc else "#define __NVCC__ 1\n"
    key = _key(path, str(arch), predefined, made_values, *texts, *order, *flags, *places, tool.version, _runtime_digest())
    cache_folder = settings.load().cache / "simt" / key[:2]
    numbers = {name: i for i, name in enumerate(order)}
    target = cache_folder / f"{key}.{mode}.so"
    if _whole(target):
        _, under_way = _part(*WORKER)  # which it loads
        if under_way is not None:
            under_way.result()
        return Library(target, numbers, 0.0)
    cache_folder.mkdir(parents=True, exist_ok=True)
    if progress is not None:
        progress(f"compiling {path} to {mode} {', '.join(kernels)}")
    with tempfile.TemporaryDirectory(prefix=_UNDER_CONSTRUCTION.format(os.getpid()), dir=cache_folder) as temporary:
        work = Path(temporary)
        (work / "include").mkdir()
        unroll = mode == "count" and not tool.clang  # fewer places to pass, as in the GPU's code
        marks = host.marks(texts) if any(map(host.present, texts)) else None
        for (name, header), written in zip(own.items(), texts[1:], strict=True):
            (work / "include" / name).parent.mkdir(parents=True, exist_ok=True)
            (work / "include" / name).write_text(translate(written, _shown(header), unroll=unroll, marks=marks), encoding="utf-8")
        entries = "".join(f'#line {i + 1} "{ENTRY}"\nSIMT_KERNEL({i}, {name})\n' for name, i in numbers.items())
        dims = cluster_dims("\n".join(texts))
        entries += "".join(f"SIMT_CLUSTER({i}, {dims[base]})\n" for name, i in numbers.items() if (base := base_name(name)) in dims)
        source = translate(text, path, unroll=unroll, marks=marks) + "\n" + entries + made_values
        (work / "kernel.cpp").write_text(f'#include "simt.h"\n#define SIMT_ARCH {arch * 10}\n{predefined}{source}', encoding="utf-8")
        command = [*flags, *places, f"-I{work / 'include'}", f"-I{RUNTIME / 'include'}"]
        read = (*flags, *places) if tool.clang else flags  # a header that g++ has read does not depend on the marks
        kept = _folder() / _key(str(RUNTIME), _runtime_digest(steps=False), tool.version, *read)
        first = [str(tool.path), *precompiled.options(tool.path, tool.clang, read, RUNTIME / "simt.h", kept)]
        listed = ("-MD", "-MF", "read.d")
        if tool.clang:
            _run(
                [*first, *command, "-Xclang", "-disable-llvm-passes", "-S", "-emit-llvm", *listed, "kernel.cpp", "-o", "written.ll"], work,
                path, text, order
            )
            (work / "kernel.ll").write_text(keep((work / "written.ll").read_text(encoding="utf-8")), encoding="utf-8")
        made = [*first[:1], *command, "kernel.ll"] if tool.clang else [*first, *command, *listed, "kernel.cpp"]
        _run([*made, "-c", "-o", "kernel.o"], work, path, text, order)
        _check_read(work / "read.d", tool.path, work, path)
        if tool.clang:  # larger aggregates it copies by calls of memcpy, which are accesses like others
            names = [f"--redefine-sym={n}=__tsan_{n}" for n in ("memcpy", "memmove", "memset")]
            _run([str(_binutils("objcopy")), *names, "kernel.o"], work, path)
        # What the host would run before `main` is not run: on the GPU nothing is initialised so.
        _run([str(_binutils("objcopy")), "--remove-section=.init_array*", "--remove-section=.rela.init_array*", "kernel.o"], work, path)
        named = constants("\n".join(texts))
        script, theirs = link.script(_binutils("nm"), work / "kernel.o", named)
        (work / "layout").write_text(script, encoding="utf-8")
        worker, objects = engine(mode)
        shared = (f"-L{worker.parent}", f"-l:{worker.name}", "-Wl,-rpath,$ORIGIN/../engine", "-Wl,-T,layout")
        _run([str(tool.path), "-shared", "-Wl,-Bsymbolic", "-o", "out.so", "kernel.o", *map(str, objects), *shared, "-pthread"], work, path)
        (work / "variables").write_text(link.written(_binutils("nm"), work / "out.so", theirs), encoding="utf-8")
        frames = _frames((work / "kernel.su").read_text(encoding="utf-8")) if (work / "kernel.su").is_file() else 0
        (work / "stack").write_text(str(2 * frames + SPARE_STACK), encoding="utf-8")
        (work / "sum").write_text(sum_of(*(work / beside for beside in ("out.so", *BESIDE))), encoding="utf-8")
        for beside in (*BESIDE, "sum"):  # before the library: who finds that finds all
            os.replace(work / beside, target.with_suffix(f".{beside}"))
        os.replace(work / "out.so", target)
    return Library(target, numbers, time.perf_counter() - started)


LEAST_MEMORY = 4 << 30  # bytes of addresses that a compiler may have, however little a simulation may
MOST_SAID = 1 << 20  # bytes of its messages that are read
_NO_MEMORY = re.compile(r"out of memory|virtual memory exhausted|std::bad_alloc|[Cc]annot allocate memory")
_UNDER_CONSTRUCTION = "tmp-of-{}-"  # how a folder's name begins, by the process that builds in it


def remove_left_by(process: int) -> None:
    """The folders in which a process was building that has been ended."""
    for folder in (settings.load().cache / "simt").glob(f"*/{_UNDER_CONSTRUCTION.format(process)}*"):
        shutil.rmtree(folder, ignore_errors=True)


BESIDE = ("stack", "variables")  # files that belong to a library: what a stack must hold, and the source's variables


def _whole(library: Path) -> bool:
    """Whether a library of the cache is there with all that belongs to it, as it was made."""
    return as_made(library, *(library.with_suffix(f".{beside}") for beside in BESIDE))


@lru_cache(maxsize=256)
def stack_bytes(library: Path) -> int:
    """What a thread's stack must hold: the largest frame of the kernels' code, the engine's own and some to spare."""
    return int(library.with_suffix(".stack").read_text(encoding="utf-8"))


def _frames(usage: str) -> int:
    """The largest frame that the compiler reports, in bytes."""
    return max((int(line.split("\t")[1]) for line in usage.splitlines() if line.count("\t") >= 2), default=0)


_ENGINES = Lock()  # kernels are built by several threads at once, the engine for all of them by the first
_UNDER_WAY: dict[Path, Future[None]] = {}
WORKER = ("worker.cpp", ".so", "-shared")  # a part of the runtime, as `_part` takes it
progress: Callable[[str], None] | None = None  # is told what is built, where somebody wants to know


def _folder() -> Path:
    return settings.load().cache / "simt" / "engine"


def _part(name: str, suffix: str, *options: str) -> tuple[Path, Future[None] | None]:
    """A file of the runtime, compiled once for each compiler and version of the runtime; and what is to be waited for, if that is under
    way."""
    tool, folder = compiler(), _folder()
    flags = (*_flags(tool), "-O2", *options)
    target = folder / f"{_key(name, _runtime_digest(steps=False), tool.version, *flags)}{suffix}"

    def make() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_UNDER_CONSTRUCTION.format(os.getpid()), dir=folder) as temporary:
            _run([str(tool.path), *flags, str(RUNTIME / name), "-o", f"part{suffix}"], Path(temporary), name)
            (Path(temporary) / "sum").write_text(sum_of(Path(temporary) / f"part{suffix}"), encoding="utf-8")
            os.replace(Path(temporary) / "sum", target.with_suffix(".sum"))
            os.replace(Path(temporary) / f"part{suffix}", target)

    with _ENGINES:
        if not as_made(target) and (target not in _UNDER_WAY or _UNDER_WAY[target].done()):
            if progress is not None and not _UNDER_WAY:
                progress(f"building the simulator with {tool.version}: once, some ten seconds")
            _UNDER_WAY[target] = _pool().submit(make)
        return target, _UNDER_WAY.get(target)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(settings.load().jobs)


def engine(*modes: str) -> tuple[Path, list[Path]]:
    """The library that says which worker a thread is, for all simulations of a process, and the engine's objects. They are made at the same
    time."""
    names = (*ENGINE, *(f"{mode}.cpp" for mode in modes))
    thrown = dict.fromkeys((f"{name}.cpp" for name in PROGRAM), ("-fexceptions",))  # by the user's host code
    parts = [_part(*WORKER), *(_part(name, ".o", "-g1", "-pthread", "-c", *thrown.get(name, ())) for name in names)]
    for _, under_way in parts:
        if under_way is not None:
            under_way.result()
    return parts[0][0], [path for path, _ in parts[1:]]


def _run(command: list[str], folder: Path, path: str, text: str = "", kernels: Sequence[str] = ()) -> None:
    """Run a step of building `path`. `text`, `kernels`: the source and the kernels asked for, which the error then speaks of."""
    seconds = settings.load().simt_seconds
    own = settings.environment({"TMPDIR": str(folder)})  # a compiler's temporary files lie on the disk of the cache: another may be full
    readable = [RUNTIME, settings.load().cache / "simt", *_folders(Path(command[0])), *settings.library_folders()]
    confined = sandbox.tool(
        command, readable=readable, writable=[folder], seconds=seconds, memory=max(settings.load().simt_mib << 20, LEAST_MEMORY)
    )
    with (
        tempfile.TemporaryFile(dir=folder) as said,
        subprocess.Popen(confined, cwd=folder, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said) as process,
    ):
        try:
            process.wait(timeout=on_the_clock(seconds))
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                late = f"had not ended after {on_the_clock(seconds)} s: it may take {seconds} s of CPU time (ROOFTOP_SIMT_SECONDS)"
                raise CompileError(f"{path}: {Path(command[0]).name} {late}") from None
            raise
        said.seek(0)
        done = subprocess.CompletedProcess(command, process.returncode, "", said.read(MOST_SAID).decode(errors="replace"))
    if done.returncode == -signal.SIGXCPU or (done.returncode != 0 and re.search(r"CPU time limit|signal terminated program", done.stderr)):
        raise CompileError(f"{path}: {Path(command[0]).name} took more than {seconds} s of CPU time (ROOFTOP_SIMT_SECONDS), or was killed")
    if done.returncode != 0 and _NO_MEMORY.search(done.stderr):
        raise CompileError(f"{path}: {Path(command[0]).name} took more than {settings.load().simt_mib} MiB of memory (ROOFTOP_SIMT_MIB)")
    if done.returncode != 0 and "No space left on device" in done.stderr:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))
    if done.returncode != 0 and not done.stderr.strip():
        how = f"signal {-done.returncode} ended it" if done.returncode < 0 else f"it ended with {done.returncode} and said nothing"
        raise NoCompilerError(f"{command[0]} does not work: {how}, building {path}")
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        if found := _NO_HEADER.search(done.stderr):
            raise CompileError(
                f"{found[1].replace(MARK, '')}:{found[2]}: not simulated: #include <{found[3]}>: the simulator has no such header"
            )
        errors = [line for line in lines if re.search(r"\b(error|undefined reference|multiple definition|relocation)\b", line)] or lines
        errors = [line for line in errors if not line.startswith(f"{RUNTIME}/")] or errors  # the user's own lines say it
        if (unknown := re.search(rf"^{ENTRY}:(\d+)\b.*error: (.*)", done.stderr, re.M)) and kernels:
            have = ", ".join(k.name + ("<...>" if k.template else "") for k in ordinary.kernels(text)) or "none"
            asked = kernels[int(unknown[1]) - 1]
            if any(k.name == asked.partition("<")[0].strip() and not k.template for k in ordinary.kernels(text)):
                raise CompileError(
                    f"{path}: the kernel {asked} is not compiled ({unknown[2]}): a condition of the preprocessor or a string around it?"
                )
            raise CompileError(f"{path}: a launch names the kernel {asked}, which the source does not have ({unknown[2]}); it has {have}")
        if (named := _UNDECLARED.search(done.stderr)) and named[1].startswith(MARK):
            name, where = named[3] or named[4] or named[5], f"{named[1].replace(MARK, '')}:{named[2]}"
            absent = [
                h for h in re.findall(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>", text, re.M) if h.partition("/")[0].partition(".")[0] in name
            ]
            feature = next((f" ({what} not simulated)" for pattern, what in FEATURES if re.match(pattern, name)), "")
            why = feature or (f" (no header <{absent[0]}> is here)" if absent else "")
            raise CompileError(f"{where}: {name!r} is declared neither by the source nor by what the simulator knows of CUDA{why}")
        raise CompileError(f"{path} does not compile for simulation:\n" + "\n".join(errors[:40]).replace(MARK, ""))


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(settings.CHECKOUT))
    except ValueError:
        return str(path)
