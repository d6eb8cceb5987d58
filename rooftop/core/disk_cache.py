"""The cache of compiled kernels: its contents, its size limit, and how to empty it.

Entries are keyed by a hash of their source, so any of them may be removed at any time: it is made again. An entry is the files of one
folder whose names are equal up to the first dot."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.whole_file import regular

PARTS = {  # folder -> what it holds
    "cuda": "CUDA C++, compiled",
    "cutile": "cuTile, compiled",
    "cute": "CuTe DSL, compiled",
    "simt": "kernels built for the simulator",
    "facts": "what was read from binaries",
    "checks": "checks that were right",
    "counts": "what the simulator counted",
    "pallas": "TPU kernels, compiled",
    "records": "records, parsed",
}
STAMP = "trimmed"  # a file whose modification time is that of the last check
EVERY = 3600.0  # seconds between two checks
YOUNG = 3600.0  # seconds after its last use during which an entry stays, whatever the size: another process may be about to read it


@dataclass
class Entry:
    """The files of one entry; `used`: when one of them was last read or written, in seconds since the epoch."""

    files: list[Path] = field(default_factory=list)
    bytes: int = 0
    used: float = 0.0


@dataclass(frozen=True)
class Part:
    name: str
    about: str
    entries: int
    bytes: int


def parts() -> list[Part]:
    """The contents of each existing folder of the cache."""
    root = settings.load().cache
    found = []
    for name, about in PARTS.items():
        entries = list(_entries(root / name))
        if entries:
            found.append(Part(name, about, len(entries), sum(e.bytes for e in entries)))
    return found


def empty(name: str = "") -> list[Part]:
    """Remove one part, or all; returns what was removed. Raises ValueError for an unknown part, OSError if a file cannot be removed."""
    if name and name not in PARTS:
        raise ValueError(f"the cache has no part {name!r}; its parts are {', '.join(PARTS)}")
    gone = [p for p in parts() if name in ("", p.name)]
    for part in gone:
        shutil.rmtree(settings.load().cache / part.name)
    return gone


def read_json(path: Path) -> Any:
    """The value that `write_json` wrote; None if there is none, or the file is damaged."""
    try:
        digest, _, text = regular(path).decode().partition("\n")
        return json.loads(text) if digest == _digest(text) else None
    except (OSError, ValueError):
        return None


def write_json(path: Path, data: Any) -> None:
    """Write a value as JSON after its digest; the file is complete or absent. A cache that cannot be written costs only time."""
    try:
        text = json.dumps(data)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{_digest(text)}\n{text}")
        os.replace(temporary, path)
    except (OSError, TypeError):
        pass


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def mend_triton() -> int:
    """Remove the folders of Triton's cache with an index that Triton cannot read, which makes Triton fail; returns their number. Their
    kernels are compiled again when needed."""
    removed = 0
    for path in settings.triton_cache().glob("*/*.json"):
        try:
            table = json.loads(regular(path))
            if not isinstance(table, dict) or not isinstance(table.get("child_paths", {}), dict):
                raise ValueError("no table")
        except (ValueError, RecursionError):
            shutil.rmtree(path.parent, ignore_errors=True)
            removed += 1
        except OSError:  # already removed, or of another user
            pass
    return removed


def ready() -> None:
    """Raises OSError if the cache of compiled kernels, or Triton's, cannot be written. Called before work in which that would look like a
    fault of a kernel."""
    for folder in (settings.load().cache, settings.triton_cache()):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"0" * 65536)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder)) from None


def trim() -> int:
    """Remove the least recently used entries until the cache is below its limit (ROOFTOP_CACHE_MIB); returns the bytes removed. Runs at
    most once an hour, and keeps what was used within the last hour. A cache that cannot be read or written is not an error."""
    now = time.time()
    try:
        chosen = settings.load()
        if not chosen.cache.is_dir() or ((chosen.cache / STAMP).is_file() and now - (chosen.cache / STAMP).stat().st_mtime < EVERY):
            return 0
        (chosen.cache / STAMP).write_text("", encoding="utf-8")
    except (OSError, ValueError):  # wrong settings are reported where they are needed
        return 0
    entries = sorted((e for name in PARTS for e in _entries(chosen.cache / name)), key=lambda e: e.used)
    over, removed = sum(e.bytes for e in entries) - chosen.cache_mib * (1 << 20), 0
    for entry in entries:
        if removed >= over or now - entry.used < YOUNG:
            break
        try:
            for path in entry.files:
                path.unlink(missing_ok=True)
        except OSError:
            break
        removed += entry.bytes
    return removed


def _entries(folder: Path) -> Iterator[Entry]:
    found: dict[tuple[Path, str], Entry] = {}
    for path in folder.rglob("*"):
        try:
            stat = path.stat()
        except OSError:  # already removed
            continue
        if path.is_dir():
            continue
        entry = found.setdefault((path.parent, path.name.partition(".")[0]), Entry())
        entry.files.append(path)
        entry.bytes += stat.st_size
        entry.used = max(entry.used, stat.st_mtime, stat.st_atime)
    yield from found.values()
