"""Return addresses of a built library to lines of the source, by binutils' addr2line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from rooftop.core import settings
from rooftop.lab.simt.build import NoCompilerError
from rooftop.lab.simt.tools import said
from rooftop.lab.simt.translate import MARK

Place = tuple[str, int]  # file, line
_CACHE: dict[tuple[Path, int], tuple[str, int, bool]] = {}


def places(library: Path, addresses: Iterable[int]) -> dict[int, Place]:
    """(file, line) of the innermost frame of the user's source at each return address; ("", 0) where there is none.

    Raises NoCompilerError where addr2line is absent."""
    return {a: found[:2] for a, found in _find(library, addresses).items()}


def outright(library: Path, addresses: Iterable[int]) -> set[int]:
    """Those of the return addresses that lie in the user's source itself, not in what it calls of the simulator's."""
    return {a for a, found in _find(library, addresses).items() if found[2]}


def _find(library: Path, addresses: Iterable[int]) -> dict[int, tuple[str, int, bool]]:
    wanted = sorted(set(addresses))
    missing = [a for a in wanted if (library, a) not in _CACHE]
    if missing:
        tool = settings.tool_path("addr2line")
        if tool is None:
            raise NoCompilerError("addr2line is not on PATH: simulating CUDA C++ needs binutils (apt install binutils)")
        asked = "\n".join(hex(max(a - 1, 0)) for a in missing)  # the call, not what follows it
        frames: list[list[str]] = []
        for line in said(tool, library, "-a", "-i", "-e", asked=asked).splitlines():
            if line.startswith("0x"):
                frames.append([])
            elif frames:
                frames[-1].append(line)
        for address, found in zip(missing, frames, strict=True):
            _CACHE[library, address] = _users(found)
    return {a: _CACHE[library, a] for a in wanted}


def _users(frames: list[str]) -> tuple[str, int, bool]:
    """File and line, and whether that is the innermost frame."""
    for i, frame in enumerate(frames):
        file, _, line = frame.partition(" (")[0].rpartition(":")
        if file.startswith(MARK):
            return file.removeprefix(MARK), int(line) if line.isdigit() else 0, i == 0
    return "", 0, False


@cache
def _text(path: Path, stamp: int) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8").splitlines())


def source_of(file: str, sources: Mapping[str, str]) -> str:
    """The text of a file: of `sources` (shown name -> text) or of the checkout; empty where it is neither."""
    if file in sources:
        return sources[file]
    path = Path(file) if Path(file).is_absolute() else settings.CHECKOUT / file
    return "\n".join(_text(path, path.stat().st_mtime_ns)) if file and path.is_file() else ""


def text_of(file: str, line: int, sources: Mapping[str, str]) -> str:
    """The text of one line; empty where there is none."""
    found = source_of(file, sources).splitlines()
    return found[line - 1] if 0 < line <= len(found) else ""
