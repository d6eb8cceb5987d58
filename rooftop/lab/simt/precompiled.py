"""The simulator's headers, read by the compiler once and kept: with the C++ library's they are most of what it reads for a small kernel."""

from __future__ import annotations

import os
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock

from rooftop.core.whole_file import regular

_MAKING = Lock()  # kernels are built by several threads at once


def options(compiler: Path, clang: bool, flags: Sequence[str], header: Path, folder: Path) -> tuple[str, ...]:
    """What the compiler is told first of all, so that a source which begins with `header` is compiled with its precompiled form.

    That is made in `folder`, whose name stands for all it depends on, for `flags`. A compiler that cannot make it reads the header as it
    is."""
    with _MAKING:
        return _options(compiler, clang, tuple(flags), header, folder / f"{header.name}.gch")


@lru_cache(maxsize=64)
def _options(compiler: Path, clang: bool, flags: tuple[str, ...], header: Path, target: Path) -> tuple[str, ...]:
    make = (str(compiler), *flags, "-x", "c++-header", str(header))
    if not clang:  # g++ looks for it where it would look for the header, and reads that where it does not fit
        return (f"-I{target.parent}",) if as_made(target) or _made(make, target) else ()  # one that is cut off ends the compiler
    words = ("-include-pch", str(target))
    use = (str(compiler), *words, *flags, "-fsyntax-only", "-x", "c++", os.devnull)
    if target.is_file() and _succeeds(use):  # it does not where a header of the system's has changed
        return words
    return words if _made(make, target) and _succeeds(use) else ()


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _made(command: Sequence[str], target: Path) -> bool:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        if not _succeeds((*command, "-o", str(Path(work) / "made"))):
            return False
        (Path(work) / "sum").write_text(sum_of(Path(work) / "made"), encoding="utf-8")
        os.replace(Path(work) / "sum", target.with_suffix(".sum"))
        os.replace(Path(work) / "made", target)
    return True


def as_made(path: Path, *others: Path) -> bool:
    """Whether files are those whose sum lies beside the first: not cut off, empty or damaged."""
    try:
        return regular(path.with_suffix(".sum")).decode() == sum_of(path, *others)
    except (OSError, ValueError):
        return False


def sum_of(*paths: Path) -> str:
    made = 0
    for path in paths:
        made = zlib.crc32(regular(path), made)
    return f"{made:08x}"
