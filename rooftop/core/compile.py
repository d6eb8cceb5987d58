"""Compiles CUDA C++ to machine code by NVRTC, through cuda-core, with a disk cache. Needs no GPU, driver or toolkit."""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rooftop.core import child, settings
from rooftop.core.digests import without_comments
from rooftop.core.helpers import INCLUDE, SHARED, Folders, headers, whole_lines, with_headers
from rooftop.core.names import package_of
from rooftop.core.whole_file import regular

STANDARD = "c++17"
_NAMES = "__nv_name_map"  # the pseudo-file in which NVRTC reports name expressions


class CompileError(ValueError):
    """The source does not compile. The text is the compiler's, with file and line of the user's source."""


class BinaryError(RuntimeError):
    """A cubin that cannot be read."""


class ToolchainError(RuntimeError):
    """NVRTC or CUDA's headers are not found; the text says what to install."""


@dataclass(frozen=True)
class Binary:
    """Machine code for one target. `names` maps each kernel's name expression to its symbol."""

    cubin: bytes
    names: dict[str, str]
    target: str
    log: str = ""
    cached: bool = False


_IMPORTING = threading.Lock()  # cuda-core's modules import each other: a second thread could see a half-imported one


@cache
def _cuda_core() -> tuple[type, type]:
    with _IMPORTING:
        return _import_cuda_core()


def _import_cuda_core() -> tuple[type, type]:
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        if "bindings" in str(error):
            raise ToolchainError(_absent(error)) from None
        try:
            from cuda.core.experimental import Program, ProgramOptions  # cuda-core before 0.5
        except ImportError as old:
            raise ToolchainError(_absent(old)) from None
    return Program, ProgramOptions


def _absent(error: ImportError) -> str:
    """Which package to install: cuda-core itself imports cuda-bindings."""
    package = "cuda-bindings" if "bindings" in str(error) else package_of(error.name or "cuda") or "cuda-core"
    return f"{package} is not installed ({error}): pip install cuda-core cuda-bindings nvidia-cuda-nvrtc"


@cache
def nvrtc_version() -> str:
    """The version of the loaded NVRTC, such as `13.0`. Raises ToolchainError if there is none."""
    try:
        with _IMPORTING:
            from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except ImportError as error:
        raise ToolchainError(_absent(error)) from None
    except Exception as error:  # the loader raises RuntimeError or its own class, depending on the version
        raise ToolchainError(f"NVRTC cannot be loaded ({error}): pip install nvidia-cuda-nvrtc") from None
    if int(status) != 0:
        raise ToolchainError(f"NVRTC answers {status}")
    return f"{major}.{minor}"


@cache
def cuda_include() -> tuple[str, ...]:
    """The folders of CUDA's headers; those of wheels come before the toolkit's. Raises ToolchainError if there are none."""
    found: list[Path] = []
    try:
        import nvidia.cu13 as wheels

        found += [Path(folder) / "include" for folder in wheels.__path__]
    except ImportError:
        pass
    if nvcc := settings.tool_path("nvcc"):
        found.append(nvcc.resolve().parent.parent / "include")
    found.append(Path("/usr/local/cuda/include"))
    parts = list(dict.fromkeys(p for folder in found for p in (folder, folder / "cccl") if p.is_dir()))
    if any((p / "cuda_fp16.h").is_file() for p in parts) and any((p / "nv" / "target").is_file() for p in parts):
        return tuple(map(str, parts))  # torch's own wheels have the first without the second, which the toolkit then provides
    raise ToolchainError("CUDA's headers are not found: pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl (13.0)")


def whole_elf(found: bytes) -> bool:
    """Whether the bytes are an ELF object, library or cubin that is as long as its header says."""
    sections = int.from_bytes(found[40:48], "little") + int.from_bytes(found[58:60], "little") * int.from_bytes(found[60:62], "little")
    return found[:4] == b"\x7fELF" and len(found) >= sections


def check_includes(source: str, name: str, folders: Folders = (SHARED,)) -> None:
    """Raises CompileError, with file and line, for an include of a file that the cache key does not cover: one that is neither in `folders`
    nor CUDA's. Such a file could change while the cached binary stays the same. `name` is the path shown. The headers in `folders` are
    searched too."""
    own = {p.name: p for folder in reversed(folders) for p in sorted(folder.glob("*.cuh"))}
    allowed = f"CUDA's own headers and those of {' and '.join(map(_shown, folders))}: {', '.join(own)}"
    for path, text in ((name, source), *((str(p), p.read_text(encoding="utf-8")) for p in headers(source, folders))):
        bare = without_comments(whole_lines(text))
        for found in INCLUDE.finditer(bare):
            quoted, angled, other = found[1], found[2], found[3]
            wanted = Path(quoted or angled or "")
            shown = f'"{quoted}"' if quoted is not None else f"<{angled}>"
            beside = Path(name).parent / wanted  # NVRTC looks there too, for both forms of include
            if other is not None:
                why = f"an include must name its file, not {other.strip()!r}"
            elif wanted.is_absolute() or ".." in wanted.parts:
                why = f"cannot include {shown} by its path"
            elif beside.is_file() and not any((folder / wanted).is_file() and beside.samefile(folder / wanted) for folder in folders):
                why = f"cannot include {shown}, which stands beside the file"
            elif quoted is not None and not any((Path(part) / wanted).is_file() for part in (*map(str, folders), *cuda_include())):
                why = f"cannot include {shown}"
            else:
                continue
            line = bare.count("\n", 0, found.end()) + 1
            raise CompileError(f"{name} does not compile:\n{path}({line}): error: {why}; a kernel may include {allowed}")


def _shown(folder: Path) -> str:
    return str(folder.relative_to(settings.CHECKOUT)) if folder.is_relative_to(settings.CHECKOUT) else str(folder)


def cache_key(source: str, target: str, kernels: Sequence[str], options: Sequence[str], folders: Folders = (SHARED,)) -> str:
    """Hash of everything that determines the machine code: source, included headers, options, target, compiler."""
    parts = [*with_headers(source, folders), target, STANDARD, nvrtc_version(), *sorted(kernels), *options]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compile_cuda(
    source: str,
    *,
    name: str,
    target: str,
    kernels: Sequence[str],
    folders: Folders = (SHARED,),
    options: Sequence[str] = (),
    use_cache: bool = True,
    of_many: bool = False,
) -> Binary:
    """Compile `source` for `target` (`sm_80`, `sm_90a`); `kernels` are name expressions such as ``softmax<float, 256>``.

    `name` is the path shown in errors; `folders` are searched for includes (helpers.py). `of_many`: NVRTC precompiles the headers, which
    speeds up later compilations in this process and costs a second and about 100 MB; the machine code is the same. Raises CompileError with
    the compiler's own text, ToolchainError if NVRTC is missing."""
    check_includes(source, name, folders)
    key = cache_key(source, target, kernels, options, folders)
    folder = settings.load().cache / "cuda" / key[:2]
    if use_cache and (hit := _read(folder / key, target)):
        return hit
    own = _own(name)
    asked = (source, name, target, kernels, options, folders)
    binary = compiled(*asked, of_many=of_many) if own else _compiled_apart(*asked)
    if use_cache:
        _write(folder / key, binary)
    return binary


def compiled(
    source: str, name: str, target: str, kernels: Sequence[str], options: Sequence[str], folders: Folders = (SHARED,), of_many: bool = False
) -> Binary:
    """What NVRTC makes of a source, in this process. Raises as `compile_cuda`."""
    program_class, options_class = _cuda_core()
    import io

    log = io.StringIO()
    try:
        program = program_class(
            source, "c++",
            options_class(
                name=name, arch=target, std=STANDARD, include_path=[*cuda_include(), *map(str, folders)],
                device_as_default_execution_space=True, lineinfo=True, **_flags(options), **(_kept_headers() if of_many else {}),
            ),
        )
        made = program.compile("cubin", name_expressions=tuple(kernels), logs=log)
    except (ToolchainError, CompileError):
        raise
    except Exception as error:  # cuda-core raises NVRTCError, from different modules depending on the version
        raise CompileError(_readable(str(error), log.getvalue(), name)) from None
    names = {k: v.decode() if isinstance(v, bytes) else v for k, v in made.symbol_mapping.items()}
    return Binary(bytes(made.code), names, target, log.getvalue())


def _own(name: str) -> bool:
    """Whether a source is a file of the package, or is made of one: `name` is its path as errors show it."""
    path = settings.CHECKOUT / name
    return path.is_relative_to(settings.PACKAGE) and path.is_file() and not (Path(name).is_file() and not path.samefile(name))


@dataclass(frozen=True)
class Made:
    """An answer of `compile_child`: machine code in base64."""

    cubin: str
    names: dict[str, str]
    log: str


@dataclass(frozen=True)
class Refused:
    """The same: what the compiler says."""

    refused: str


@dataclass(frozen=True)
class Absent:
    """The same: what is not installed."""

    absent: str


_PROCESSES: dict[int, child.Process] = {}  # by process: one that is forked starts its own


def _compiled_apart(source: str, name: str, target: str, kernels: Sequence[str], options: Sequence[str], folders: Folders) -> Binary:
    """What NVRTC makes of somebody's source, in a process that has limits and reads no files but headers: NVRTC itself has neither."""
    _cuda_core()  # raises ToolchainError
    if os.getpid() not in _PROCESSES:
        _PROCESSES[os.getpid()] = child.Process(Path(sys.executable), "rooftop.core.compile_child", {}, what="NVRTC")
        atexit.register(_PROCESSES[os.getpid()].end)
    job = {"what": "compilation", "kernel": name, "source": source, "target": target, "kernels": list(kernels), "options": list(options),
           "folders": list(map(str, folders))}
    try:
        found = _PROCESSES[os.getpid()].ask(job, settings.load().step_seconds, Made, Refused, Absent)
        if isinstance(found, Made):
            return Binary(base64.b64decode(found.cubin, validate=True), found.names, target, found.log)
    except (child.ChildError, ValueError) as error:
        raise CompileError(f"{name} does not compile: {error}") from None
    raise CompileError(found.refused) if isinstance(found, Refused) else ToolchainError(found.absent)


Job = tuple[str, str, str, Sequence[str], Folders]  # source, name, target, kernels, the folders of its headers
FEW, MANY = 2, 4  # programs that justify a process, which takes seconds to start; programs of one source that justify precompiled headers


def compile_many(jobs: Sequence[Job]) -> None:
    """Compile missing programs into the disk cache, on all cores, in processes: within one process NVRTC compiles one program at a time.
    Errors are ignored; whoever compiles the program again gets them."""
    cache = settings.load().cache / "cuda"
    todo = [job for job in jobs if _read(cache / (key := cache_key(job[0], job[2], job[3], (), job[4]))[:2] / key, job[2]) is None]
    workers = min(settings.load().jobs, len(todo) // FEW)
    parts = _parts(todo, max(1, workers))
    if workers < 2:
        for part in parts:
            _compile_part(part)
        return
    # a forked process would share a CUDA context
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile_part, parts))


def _parts(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """The jobs in groups of one source and target each, the largest first, none much larger than a worker's share."""
    alike: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        alike.setdefault((job[0], job[2]), []).append(job)
    share = max(FEW, -(-len(jobs) // workers))
    parts = []
    for found in alike.values():
        count = -(-len(found) // share)
        parts += [found[i::count] for i in range(count)]
    return sorted(parts, key=len, reverse=True)


def _compile_part(jobs: Sequence[Job]) -> None:
    for source, name, target, kernels, folders in jobs:
        try:
            compile_cuda(source, name=name, target=target, kernels=kernels, folders=folders, of_many=len(jobs) >= MANY)
        except (CompileError, ToolchainError):
            continue


@cache
def _kept_headers() -> dict[str, object]:
    """NVRTC's option for precompiled headers: since CUDA 12.8, if cuda-core supports it."""
    _, options_class = _cuda_core()
    known = "pch" in getattr(options_class, "__dataclass_fields__", {})
    return {"pch": True} if known and tuple(map(int, nvrtc_version().split(".")[:2])) >= (12, 8) else {}


def _flags(options: Sequence[str]) -> dict[str, object]:
    allowed: dict[str, dict[str, object]] = {
        "fast-math": {"use_fast_math": True}, "no-fma": {"fma": False}, "relocatable": {"relocatable_device_code": True},
    }
    flags: dict[str, object] = {}
    for option in options:
        if option not in allowed:
            raise ValueError(f"option {option!r} is not one of {', '.join(allowed)}")
        flags.update(allowed[option])
    return flags


def _readable(error: str, log: str, name: str) -> str:
    """Only the compiler's error messages, in its own words, each with the user's file and line."""
    text = log or error
    lines: list[str] = []
    kept = True
    for line in text.splitlines():
        found = re.search(r"\(\d+\): (catastrophic )?error", line)
        if found or line.startswith(" "):  # indented lines belong to the message above
            kept = not line.startswith(_NAMES) if found else kept
            lines += [line] if kept else []
    absent: dict[str, str] = {}
    for why, kernel in re.findall(rf"^{re.escape(_NAMES)}\(\d+\): error: (.*)\n\s*#pragma nv_mangled_name (.*)$", text, re.M):
        absent.setdefault(kernel.strip(), why)
    if absent and not any("error" in line for line in lines):  # else the error in the file is the reason
        return "\n".join(f"{name}: the head's kernel {kernel!r} is not in the file: {why}" for kernel, why in absent.items())
    body = "\n".join(lines[:40]) if any("error" in line for line in lines) else text.strip()
    return f"{name} does not compile:\n{body}"


def _read(path: Path, target: str) -> Binary | None:
    try:
        info = json.loads(regular(path.with_suffix(".json")))
        cubin = regular(path.with_suffix(".cubin"))
        names, log = info["names"], info["log"]
        if hashlib.sha256(cubin).hexdigest() != info["sha256"] or not all(isinstance(v, str) for v in (log, *names.values())):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # not written by `_write`: compiled again
        return None
    return Binary(cubin, names, target, log, cached=True)


def _write(path: Path, binary: Binary) -> None:
    """Each file is complete or absent, even if others write at the same time. A cache that cannot be written is not an error."""
    info = {"names": binary.names, "log": binary.log, "sha256": hashlib.sha256(binary.cubin).hexdigest()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix, content in ((".cubin", binary.cubin), (".json", json.dumps(info).encode())):
            handle, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path.with_suffix(suffix))
    except OSError:
        return
