"""Cubins that a compiler outside this process makes, kept on disk: what cuTile and CuTe DSL kernels run.

A cubin is found again by its kernel's text, what it was compiled with and its target, not by the compiler: so one that was made elsewhere and
carried here in the cache's folder runs where the compiler is not installed. Where it is installed, a cubin of another version is made anew."""

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


class AbsentCompiler(ToolchainError):
    """No cubin is kept for the kernel, and what would make it is not installed, or too old; the text says what to install."""


@dataclass(frozen=True)
class Cubin:
    """Machine code of one kernel, and what there is to say of how it was made."""

    code: bytes
    symbol: str
    compiler: str  # its packages and versions: "cuda-tile 1.7.0, nvidia-cuda-tileiras 13.4.92"
    seconds: float  # of CPU time that the compiler took
    facts: Mapping[str, Any]  # whatever else the compiler's side said: how the kernel is launched
    cached: bool = False


@cache
def versions(packages: Sequence[str]) -> str:
    """Name and version of each package that is installed, as `Cubin.compiler` has them."""
    found = []
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def key(*parts: Any) -> str:
    """Of everything that a cubin follows from but its compiler."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def folder_of(part: str, name: str) -> Path:
    """Where the cubin of a key lies, but for its suffix. `part`: the folder of the cache (rooftop.core.disk_cache.PARTS)."""
    return settings.load().cache / part / name[:2] / name


def read(part: str, name: str, compiler: str) -> Cubin | None:
    """The cubin that is kept; None where there is none, it is damaged, or `compiler` (empty: none is installed) is another than made it."""
    try:
        head, _, code = folder_of(part, name).with_suffix(".cubin").read_bytes().partition(b"\n")
        text = json.loads(head)
        if hashlib.sha256(code).hexdigest() != text["sha256"]:
            return None
        found = Cubin(code, str(text["symbol"]), str(text["compiler"]), float(text["seconds"]), dict(text["facts"]), cached=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # absent, or not what `write` wrote
        return None
    return found if compiler in ("", found.compiler) else None


def write(part: str, name: str, cubin: Cubin) -> None:
    """One file, a line of JSON and then the cubin: complete or absent, whoever else writes at the same time. A cache that cannot be written is no error."""
    text = {
        "symbol": cubin.symbol, "compiler": cubin.compiler, "seconds": cubin.seconds, "facts": dict(cubin.facts),
        "sha256": hashlib.sha256(cubin.code).hexdigest(),
    }  # fmt: skip
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
    except OSError:  # a full disk, a folder in its place
        with contextlib.suppress(OSError):
            Path(temporary).unlink()


@contextlib.contextmanager
def alone(part: str, name: str) -> Iterator[None]:
    """Holds other processes that are about to compile the same back until this one has; where files cannot be locked they compile it too."""
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
