"""The log of what commands found: one line of JSON each, appended to a file (`ROOFTOP_DIARY`). It stays on this machine.

A command never fails because of it. Lines that are no entries are kept in a file aside when the log is read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from rooftop.core import settings, whole_file
from rooftop.core.forms import FormError, formed

MOST = 60  # rows and subjects of an entry
WAIT = 2.0  # seconds for another process that has the file


@dataclass(frozen=True)
class Row:
    """A measured case. `us`: kernel time, microseconds; `against`: the best peer's time over it, 0 where there is no peer."""

    subject: str
    case: str
    us: float
    against: float = 0.0


@dataclass(frozen=True)
class Entry:
    """`at`: UTC, ISO 8601. `kind`: the command. `subjects`: what it looked at; `ops`: what that computes. `figures`: name -> number;
    `said`: in words."""

    at: str
    kind: str
    subjects: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    said: str = ""

    @property
    def day(self) -> str:
        return self.at[:10]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def keep(
    kind: str, subjects: Iterable[str], ops: Iterable[str] = (), figures: Mapping[str, float] | None = None, rows: Iterable[Row] = (),
    said: str = "",
    *, at: Callable[[], str] = now,
) -> None:
    """Append what a command found. Where the file cannot be written, nothing is kept, and the command goes on."""
    with contextlib.suppress(OSError, ValueError):
        if (path := settings.load().diary) is None:
            return
        numbers = {n: float(v) for n, v in (figures or {}).items() if math.isfinite(v)}
        entry = Entry(
            at(), kind, tuple(dict.fromkeys(subjects))[:MOST], tuple(dict.fromkeys(ops))[:MOST], numbers, tuple(rows)[:MOST], said
        )
        line = json.dumps(asdict(entry), ensure_ascii=True, allow_nan=False).encode() + b"\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600), "r+b", buffering=0) as file:
            _lock(file)
            end = file.seek(0, os.SEEK_END)
            torn = bool(end) and os.pread(file.fileno(), 1, end - 1) != b"\n"  # by a machine that went out
            file.write(b"\n" * torn + line)


def _lock(file: IO[bytes]) -> None:
    """Raises BlockingIOError where another process keeps the file to itself."""
    end = time.monotonic() + WAIT
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def read(path: Path) -> tuple[list[Entry], Path | None]:
    """The entries, oldest first, and where the file is kept as it was if it held lines that are none; the log then goes on with its entries
    alone.

    Raises OSError, ValueError where it cannot be read."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} is no ordinary file: ROOFTOP_DIARY names another")
    try:
        with path.open("r+b") as file:
            _lock(file)
            content = file.read()
            good, found = [], []
            for line in content.split(b"\n"):
                if (entry := _entry(line)) is not None:
                    good.append(line + b"\n")
                    found.append(entry)
            aside = None
            if len(good) < sum(bool(line.strip()) for line in content.split(b"\n")):
                aside = whole_file.free(path)
                aside.write_bytes(content)  # whole, before anything is taken out
                file.seek(0)
                file.write(b"".join(good))
                file.truncate()
    except FileNotFoundError:
        return [], None
    return sorted(found, key=lambda e: (e.at, e.kind, e.subjects)), aside


def _entry(line: bytes) -> Entry | None:
    try:
        value: Any = json.loads(line)
        found = formed(value, Entry)
        datetime.fromisoformat(found.at)
    except (ValueError, FormError, RecursionError):
        return None
    numbers = (*found.figures.values(), *(r.us for r in found.rows), *(r.against for r in found.rows))
    return found if len(found.at) >= 19 and all(map(math.isfinite, numbers)) else None
