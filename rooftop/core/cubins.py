"""A disk cache of cubins that a compiler in another process makes: those of cuTile and CuTe DSL kernels.

The key of a cubin is the text of its kernel, what it was compiled with, and its target, but not the compiler. So a cubin that was made
elsewhere, and copied into the cache's folder, runs where the compiler is not installed. If the compiler is installed, a cubin of another
version is compiled again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.compile import ToolchainError
from rooftop.core.whole_file import regular


class AbsentCompiler(ToolchainError):
    """There is no cubin of the kernel, and its compiler is not installed, or too old; the text says what to install."""


@dataclass(frozen=True)
class Cubin:
    """Machine code of one kernel, and facts about its compilation."""

    code: bytes
    symbol: str
    compiler: str  # its packages and versions: "cuda-tile 1.7.0, nvidia-cuda-tileiras 13.4.92"
    seconds: float  # CPU time of the compiler
    facts: Mapping[str, Any]  # further facts from the compiler's side: how the kernel is launched
    cached: bool = False


@cache
def versions(packages: Sequence[str]) -> str:
    """Name and version of each installed package, in the form of `Cubin.compiler`."""
    found = []
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def key(*parts: Any) -> str:
    """Hash of everything that determines a cubin except its compiler."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def folder_of(part: str, name: str) -> Path:
    """The path of a key's cubin, without its suffix. `part`: the folder of the cache (rooftop.core.disk_cache.PARTS)."""
    return settings.load().cache / part / name[:2] / name


def read(part: str, name: str, compiler: str) -> Cubin | None:
    """The cached cubin; None if there is none, if it is damaged, or if it was made by another compiler than `compiler` (empty: none is
    installed)."""
    try:
        head, _, code = regular(folder_of(part, name).with_suffix(".cubin")).partition(b"\n")
        text = json.loads(head)
        if hashlib.sha256(code).hexdigest() != text["sha256"]:
            return None
        found = Cubin(code, str(text["symbol"]), str(text["compiler"]), float(text["seconds"]), dict(text["facts"]), cached=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # absent, or not written by `write`
        return None
    return found if compiler in ("", found.compiler) else None


def write(part: str, name: str, cubin: Cubin) -> None:
    """Writes one file, a line of JSON and then the cubin: complete or absent, even if others write at the same time. A cache that cannot be
    written is not an error."""
    text = {
        "symbol": cubin.symbol, "compiler": cubin.compiler, "seconds": cubin.seconds, "facts": dict(cubin.facts),
        "sha256": hashlib.sha256(cubin.code).hexdigest(),
    }
    path = folder_of(part, name).with_suffix(".cubin")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(text).encode() + b"\n" + cubin.code)
        os.replace(temporary, path)
    except OSError:  # a full disk, or a folder of that name
        with contextlib.suppress(OSError):
            Path(temporary).unlink()


@contextlib.contextmanager
def alone(part: str, name: str) -> Iterator[None]:
    """Makes other processes wait that are about to compile the same until this one has; without file locks they compile it too."""
    path = folder_of(part, name).with_suffix(".lock")
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except (ImportError, OSError):
        yield
        return
    with file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
