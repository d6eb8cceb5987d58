"""Records: what was measured or checked, as JSON lines. Written once by the run that made them, never edited.

A file a run, `results/<device>/<UTC time>-<run>.jsonl`, so that two processes never write into one; packed (`.jsonl.xz`) once it is merged
or pruned. Its first line is a `run` head, which holds for all that follow: device, versions, host. Then come
the records, several of one subject in a line where they have things in common (rooftop.lab.records.form says how). `read` gives each record
whole, as if it stood alone (rooftop.lab.records.record says what it holds).

A file without a head is of the form before: its lines are records. It is read as well, and brought to this form when it is merged or
pruned."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import json
import marshal
import math
import os
import re
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rooftop.core import settings, texts
from rooftop.core.names import RENAMED
from rooftop.core.spec import Device
from rooftop.core.whole_file import named, regular
from rooftop.lab.records import form, record, values
from rooftop.lab.records.record import HEAD, KINDS, SHAPES, Record, Table, compact
from rooftop.lab.records.software import host, versions
from rooftop.lab.records.values import shown

__all__ = [
    "KINDS", "SHAPES", "Record", "RecordError", "Section", "Table", "Writer", "about", "host", "latest", "read", "read_file",
    "versions"
]

SAID = 300  # characters of what is wrong with a line
ESCAPED = re.compile(rb"\\[bfru]|[\x7f\xc2\xd8\xe2]")  # a line with none of these holds no control character: JSON has them escaped
DEPTH = 32  # of tables and lists within each other: more is no record, and more than Python can write again

PART = "records"  # the folder of the cache
LEAST = 1 << 18  # bytes of record files, most of them packed: fewer are parsed as quickly
SETTLED = 2.0  # seconds since a file's last change: before, it may change again and have the same times

Stamp = tuple[int, ...]
Content = tuple[list[Table], str | None]  # of one file: the records, and what is wrong with its last line
Section = tuple[Table | None, list[Record]]  # a head, and the records that it holds for, whole; None: lines of the form before


class RecordError(ValueError):
    """A file of records that cannot be read as one, with the line."""


def slug_of(device: str) -> str:
    from rooftop.core.devices import slug

    return slug(device)


def about(device: Device) -> Table:
    """A card as records name it: all that kernels may ask of it, so that whoever reads the record asks them about the same card."""
    return {
        "name": device.name, "arch": device.arch, "sms": device.sms, "l2_bytes": device.l2_bytes,
        "shared_per_block": device.shared_per_block
    }


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """Appends records of one run to a file of its own, each on disk before `write` returns."""

    folder: Path
    device: str
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    _file: Any = None
    _head: Table = field(default_factory=dict)
    _last: int = 0  # where in the file the last record begins

    def ready(self) -> Path:
        """The folder of the device, after a try at writing into it. Raises OSError, with the folder, where that fails."""
        where = self.folder / slug_of(self.device)
        where.mkdir(parents=True, exist_ok=True)
        try:
            tempfile.TemporaryFile(dir=where).close()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(where)) from None
        return where

    @property
    def path(self) -> Path:
        """Of the file, which is opened here. Raises OSError where it cannot be."""
        if self._file is None:
            where = self.folder / slug_of(self.device)
            where.mkdir(parents=True, exist_ok=True)
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            self._file = open(where / f"{stamp}-{self.run}.jsonl", "x", encoding="utf-8")  # noqa: SIM115 - closed by close()
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._file, fcntl.LOCK_SH)
        return Path(self._file.name)

    def write(self, record: Mapping[str, Any], *, over: bool = False) -> Record:
        """Adds `at` and `run`, writes what of it is kept as one line, and waits for the disk. Returns the record as `read` will give it.

        `over`: in place of the one that was written last, which this one continues.

        The first record's device is the run's. Raises RecordError for an unknown kind or a non-finite number."""
        if record.get("kind") not in KINDS:
            raise RecordError(f"kind is {record.get('kind')!r}; a record's kind is one of {', '.join(KINDS)}")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        full = form.rounded(compact({**record, "at": now, "run": self.run}))
        head = self._head or {
            "kind": "run", "form": form.FORM, "run": self.run, "at": now, "device": dict(full.get("device", {"name": self.device})),
            "versions": versions(), "host": host(),
        }
        line = form.bare(full, head)
        try:
            first, text = ("" if self._head else form.dumps(head) + "\n"), form.dumps(line) + "\n"
        except ValueError as error:
            raise RecordError(f"a record of {record.get('subject')} holds a number that JSON cannot: {error}") from None
        path = self.path  # opens the file
        if over and self._head:
            self._file.truncate(self._file.seek(self._last))
        with named(path):
            self._file.write(first)
            self._last = self._file.tell()
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())
        self._head = head
        return Record(form.whole(line, head))

    def replacing(self, **more: Any) -> Callable[[Table], Record]:
        """A function that writes a record with `more`, in place of the one that it wrote before."""
        saved = False

        def save(record: Table) -> Record:
            nonlocal saved
            found, saved = self.write(record | more, over=saved), True
            return found

        return save

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- reading -----------------------------------------------------------------------------------------------------------


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number that a record may hold")
    return value


def parse(line: bytes, head: Mapping[str, Any] | None = None) -> list[Table]:
    """The records of one line, whole; of a head: itself. Raises ValueError, saying why in one line, where it is neither."""
    try:
        return _parsed(line, head or {})
    except ValueError as error:
        raise ValueError(texts.line(str(error), SAID)) from None


def _parsed(line: bytes, head: Mapping[str, Any]) -> list[Table]:
    try:
        value = json.loads(line.decode("utf-8"), parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict) or value.get("kind") not in (*KINDS, "run"):
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, run")
    level: list[Any] = [value]
    for _ in range(DEPTH):
        level = [v for one in level for v in (one.values() if isinstance(one, dict) else one) if isinstance(v, (dict, list))]
    if level:
        raise ValueError("nested too deeply")
    if ESCAPED.search(line):
        shown(value)
    if value["kind"] == "run":
        HEAD(value, "")
        if value["form"] != form.FORM:
            raise ValueError(f"form is {value['form']}; this version reads form {form.FORM}, and lines without a head, which are of the form before")
        return [value]
    records = list(form.joined(value, head, len(line)))
    for one in records:
        SHAPES[one["kind"]](one, "")
    return [of_today(r) for r in records]


def of_today(record: Table) -> Table:
    """A record with today's names of kernels that were renamed since (rooftop.core.RENAMED)."""
    if not RENAMED:
        return record
    names: Table = {key: RENAMED.get(name, name) for key, name in record.items() if key == "subject" and isinstance(name, str)}
    if record["kind"] == "sweep":
        lists: Table = {key: [RENAMED.get(n, n) for n in record[key]] for key in ("implementations", "named") if key in record}
        tables: Table = {
            key: {RENAMED.get(n, n): v for n, v in record[key].items()} for key in ("digests", "sources", "machines", "peers")
            if key in record
        }
        names = {**names, **lists, **tables}
    return {**record, **names}


def sections(path: Path, content: bytes | None = None) -> tuple[list[Section], str | None]:
    """The records of one file by their heads, and what is wrong with its last line if a run was cut off in it. `content`: of the file,
    where it was read.

    Raises RecordError where any other line is neither a record nor a head, and for a packed file that is damaged."""
    parts: list[Section] = []
    try:
        lines = form.unpacked(regular(path) if content is None else content).split(b"\n")
    except ValueError as error:
        raise RecordError(f"{path}: no file of records: {error} (remove or restore it)") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows = parse(line, parts[-1][0] if parts else None)
        except ValueError as error:
            if number == len(lines):  # no newline after it: the run ended while writing
                return parts, f"{path.name}:{number}: cut off, left out"
            raise RecordError(f"{path}:{number}: not a record: {error} (remove the line, or restore the file)") from None
        if rows[0]["kind"] == "run":
            parts.append((rows[0], []))
        elif parts:
            parts[-1][1].extend(map(Record, rows))
        else:
            parts.append((None, list(map(Record, rows))))
    return parts, None


def read_file(path: Path) -> tuple[list[Record], str | None]:
    """The records of one file, and what is wrong with its last line if a run was cut off in it.

    Raises RecordError where any other line is neither a record nor a head."""
    parts, note = sections(path)
    return [r for _, records in parts for r in records], note


def files(folder: Path) -> list[Path]:
    """The files of records below `folder`, or the one that it is. An absent folder has none. Raises OSError for what is no folder and no
    .jsonl or .jsonl.xz file."""
    try:
        kind = folder.stat().st_mode
    except FileNotFoundError:
        if folder.is_symlink():
            raise FileNotFoundError(f"{folder} is a link to nothing; a folder of records is needed") from None
        return []
    except OSError as error:  # a loop of links, a file above it
        raise type(error)(error.errno, f"{error.strerror}; a folder of records is needed", str(folder)) from None
    if stat.S_ISDIR(kind):
        os.scandir(folder).close()  # raises where it may not be read; rglob is silent
        return form.below(folder)
    if not form.named(folder):
        raise NotADirectoryError(f"{folder} is no folder; records are a folder, or a .jsonl or .jsonl.xz file")
    return [folder]


def read(folder: Path, cut: list[str] | None = None) -> list[Record]:
    """Every record below `folder` (or of one file), oldest first. An absent folder has none. `cut` is given a text for each whose last line
    was cut off.

    Raises OSError for what is no folder and no file of records."""
    tables: list[Table] = []
    try:
        contents = _contents(folder, files(folder))
    except FileNotFoundError:  # another process has packed or pruned one meanwhile
        contents = _contents(folder, files(folder))
    for records, note in contents:
        tables += records
        if note and cut is not None:
            cut.append(note)
    return [Record(r) for r in sorted(tables, key=lambda r: str(r.get("at", "")))]


def proven(records: Iterable[Record], card: str) -> dict[tuple[str, ...], Record]:
    """The check records of a card that say that a case is right, by op, kernel, case and `Subject.digest`."""
    return {_judged(r): r for r in records if r.kind == "check" and r.error.ok and r.card == card}


def judged_peers(records: Iterable[Record], card: str, software: dict[str, str]) -> dict[tuple[str, ...], Record]:
    """The bench records of peers, which say whether their results were right, made on a card with the same versions; keys as of
    `proven`."""
    peers = (r for r in records if r.kind == "bench" and r.subject.startswith("peer:") and r.card == card)
    return {_judged(r): r for r in peers if r.versions == software}


def _judged(r: Record) -> tuple[str, ...]:
    return r.op, r.subject, r.case, f"{r.digest} {r.source}"


def latest(records: Iterable[Record], kind: str) -> dict[tuple[str, str, str], Record]:
    """The newest record of each (device, subject, `op case`)."""
    return {(r.card, r.subject, f"{r.op} {r.case}"): r for r in records if r.kind == kind}


# -- the cache of what was parsed ------------------------------------------------------------------------------------------
# A large folder is read in an eighth of the time. One file of the cache for each folder of records. It holds of every file its size, times
# and inode, and its records; a file of which one of these has changed is parsed anew. The content stands after its SHA-256: a cache that is
# damaged, or that another version of these modules or of Python wrote, counts as none.


def _contents(folder: Path, paths: Sequence[Path]) -> list[Content]:
    """Of each file what it holds; parsed, where it is not as it was the last time. Raises like `read_file`."""
    stats = [path.stat() for path in paths]
    cache = _place(folder) if sum(s.st_size for s in stats) >= LEAST else None
    cached = _load(cache) if cache else {}
    contents: dict[str, tuple[Stamp, Content]] = {}
    for path, now in zip(paths, stats, strict=True):
        stamp = (now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
        stored = cached.get(str(path))
        contents[str(path)] = stored if stored is not None and stored[0] == stamp else (stamp, _parse_file(path))
    last = time.time() - SETTLED
    settled = {str(p): contents[str(p)] for p, s in zip(paths, stats, strict=True) if max(s.st_mtime, s.st_ctime) <= last}
    if cache and (settled.keys() != cached.keys() or any(settled[name] is not cached[name] for name in settled)):
        _save(cache, settled)
    return [content for _, content in contents.values()]


def _parse_file(path: Path) -> Content:
    records, note = read_file(path)
    return [r.table for r in records], note


def _place(folder: Path) -> Path | None:
    """The file of the cache for a folder. None where there is no place for a cache: that costs only time."""
    try:
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]
        return settings.load().cache / PART / f"{name}.marshal"
    except (OSError, ValueError):
        return None


def _version() -> str:
    """Of all that decides how a file is parsed, and how the result is written."""
    modules = (__file__, record.__file__, form.__file__, values.__file__, texts.__file__)
    parts = [Path(str(path)).read_bytes() for path in modules]
    return f"{sys.version} {marshal.version} {hashlib.sha256(b''.join(parts)).hexdigest()} {sorted(RENAMED.items())}"


def _load(path: Path) -> dict[str, tuple[Stamp, Content]]:
    try:
        content = regular(path)
        digest, body = content[:32], memoryview(content)[32:]
        if hashlib.sha256(body).digest() != digest:
            return {}
        with _without_collections():
            version, contents = marshal.loads(body)
        return dict(contents) if version == _version() else {}
    except (OSError, ValueError, EOFError, TypeError):
        return {}


def _save(path: Path, contents: dict[str, tuple[Stamp, Content]]) -> None:
    """The file is complete or absent. A cache that cannot be written costs only time."""
    try:
        body = marshal.dumps((_version(), contents))
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


def write_rows(path: Path, op: str, seed: int, device: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON file of rows that a script has timed so far, a field a line, with what they were timed on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"op": op, "seed": seed, "versions": versions(), "device": device, "rows": rows}, indent=0) + "\n")
