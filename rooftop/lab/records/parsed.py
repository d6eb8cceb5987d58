"""Records as they were parsed the last time, in the cache: a large folder is then read in an eighth of the time.

One file of the cache for each folder of records. It holds of every file its size, times and inode, and its records; a file of which one of
these has changed is parsed anew. The content stands after its SHA-256: a cache that is damaged, or that another version of these modules or
of Python wrote, counts as none."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import marshal
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rooftop.core import names, settings, texts
from rooftop.core.whole_file import regular
from rooftop.lab.records import form, packed, record, values

PART = "records"  # the folder of the cache
LEAST = 1 << 18  # bytes of record files, most of them packed: fewer are parsed as quickly
SETTLED = 2.0  # seconds since a file's last change: before, it may change again and have the same times

Stamp = tuple[int, ...]
Content = tuple[list[dict[str, Any]], str | None]  # of one file: the records, and what is wrong with its last line


def read(folder: Path, paths: Sequence[Path], parse: Callable[[Path], Content], source: str) -> list[Content]:
    """What `parse`, which is in the file `source`, says of each of the files, or said of it as it is now. Raises what `parse` raises."""
    stats = [path.stat() for path in paths]
    cache = _place(folder) if sum(s.st_size for s in stats) >= LEAST else None
    kept = _load(cache, source) if cache else {}
    found: dict[str, tuple[Stamp, Content]] = {}
    for path, stat in zip(paths, stats, strict=True):
        stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        known = kept.get(str(path))
        found[str(path)] = known if known is not None and known[0] == stamp else (stamp, parse(path))
    last = time.time() - SETTLED
    settled = {str(p): found[str(p)] for p, s in zip(paths, stats, strict=True) if max(s.st_mtime, s.st_ctime) <= last}
    if cache and (settled.keys() != kept.keys() or any(settled[name] is not kept[name] for name in settled)):
        _save(cache, settled, source)
    return [content for _, content in found.values()]


def _place(folder: Path) -> Path | None:
    """The file of the cache for a folder. None where there is no place for a cache: that costs only time."""
    try:
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]
        return settings.load().cache / PART / f"{name}.marshal"
    except (OSError, ValueError):
        return None


def _version(source: str) -> str:
    """Of all that decides how a file is parsed, and how the result is written."""
    modules = (record.__file__, form.__file__, packed.__file__, values.__file__, texts.__file__)
    parts = [Path(str(path)).read_bytes() for path in (source, __file__, *modules)]
    return f"{sys.version} {marshal.version} {hashlib.sha256(b''.join(parts)).hexdigest()} {sorted(names.RENAMED.items())}"


def _load(path: Path, source: str) -> dict[str, tuple[Stamp, Content]]:
    try:
        content = regular(path)
        digest, body = content[:32], memoryview(content)[32:]
        if hashlib.sha256(body).digest() != digest:
            return {}
        with _without_collections():
            version, found = marshal.loads(body)
        return dict(found) if version == _version(source) else {}
    except (OSError, ValueError, EOFError, TypeError):
        return {}


def _save(path: Path, found: dict[str, tuple[Stamp, Content]], source: str) -> None:
    """The file is complete or absent. A cache that cannot be written costs only time."""
    try:
        body = marshal.dumps((_version(source), found))
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).digest() + body)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
    except (OSError, ValueError):
        pass


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Python looks for garbage the more often the more is made, and records are none: that took three quarters of the time to load them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
