"""Where the headers of a program lie."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rooftop.lab.simt import build

HOSTS = re.compile(  # of C, of C++, of the system, and of CUDA what NVRTC has by itself
    r"\w+|\w+/\w+_t|(?:sys|bits|arpa|netinet)/[\w+]+\.h|(?:std\w+|strings?|math|assert|time|float|limits|unistd|errno|ctype|memory|signal|pthread|omp|windows|malloc"
    r"|getopt|dirent|inttypes|wchar|glob|direct|io|fcntl|cxxabi|device_launch_parameters|(?:cuda(?:_\w+)?|driver_types|vector_\w+|host_defines|builtin_types|math_\w+"
    r"|device_\w+|curand|cublas\w*|sm_\d+_\w+|texture_\w+|surface_\w+|common_functions))\.h"
)
HEADERS = (".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".cu", ".c", ".cc", ".cpp", ".cxx", ".inl", ".inc", ".ipp", ".tpp")
_NEAR = ("", "include", "inc", "common", "Common", "src", "utils", "util", "headers")  # folders, here and above, in which a header may lie
ROOT = (".git", "Makefile", "makefile", "CMakeLists.txt", "README.md", "readme.md")  # what a repository's outermost folder holds
LEVELS = 4  # above a file's folder in which that is looked for
WALKED = 5000  # files and folders that are looked at in search of a header


def known(name: str) -> bool:
    inside = not Path(name).is_absolute() and ".." not in Path(name).parts
    return inside and any((build.RUNTIME / folder / name).is_file() for folder in ("include", "libraries"))


def found(name: str, quoted: bool, here: Path, top: Path, folders: Sequence[Path]) -> Path | None:
    """A header of the user's: in the folder `here` of the file that names it, in `folders`, or where such files keep them, from the
    program's folder `top` on. None where the simulator has it, or nobody."""
    for folder in (*([here] if quoted else []), *folders):
        if (one := folder / name).is_file() and _may_be_read(one.resolve(), (top, *folders)):
            return one.resolve()
    own = known(name) and not Path(name).name.startswith("helper_")  # which the samples themselves have
    if own or (not quoted and HOSTS.fullmatch(name)):
        return None
    for above in (top, *list(top.parents)[:4]):
        for near in _NEAR:
            if (one := above / near / name).is_file() and _may_be_read(one.resolve(), (top, *folders)):
                return one.resolve()
    return _elsewhere(name, top)


def _elsewhere(name: str, top: Path) -> Path | None:
    """A header in another folder of the repository, as its makefile may name it: of several the one that lies nearest."""
    roots = [p for p in (top, *list(top.parents)[:LEVELS]) if any((p / mark).exists() for mark in ROOT)]
    if not roots or ".." in Path(name).parts:
        return None
    every: list[Path] = []
    seen = 0
    for folder, folders, files in os.walk(roots[-1]):
        folders[:] = sorted(d for d in folders if not d.startswith("."))
        seen += len(files) + len(folders)
        if Path(name).name in files and (one := Path(folder) / Path(name).name).parts[-len(Path(name).parts) :] == Path(name).parts:
            every.append(one)
        if seen > WALKED:
            break
    every = [p for p in every if _may_be_read(p.resolve(), (top,))]
    return max(every, key=lambda p: len(os.path.commonpath([p, top])), default=None)


def _may_be_read(found: Path, folders: Iterable[Path]) -> bool:
    """A header: by its name, links followed, or since it lies in one of these folders. No other file of the user's is one, whatever an
    include says."""
    return found.suffix in HEADERS or any(found.is_relative_to(f.resolve()) for f in folders)
