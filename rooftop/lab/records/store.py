"""Records: what was measured or checked, as JSON lines. Written once by the run that made them, never edited.

A file a run, `results/<device>/<UTC time>-<run>.jsonl`, so that two processes never write into one. Each line is one record:

| key | what it holds |
|---|---|
| `kind` | `bench`, `check`, `ceiling`, `sanitize`, `build`, `clock`, `tune`, `counters`, `compared` |
| `at`, `run` | UTC time, and the run that wrote it |
| `op`, `case`, `subject` | what; `subject` is an implementation's name, a rung's (`softmax_cuda/03_online`), or `peer:torch` |
| `digest` | hash of kernel, helpers, contract and config: no longer that of the tree, then the record is stale |
| `config`, `config_from`, `path` | the config, where it came from, the kernels that were launched |
| `work` | `read`, `write` (bytes), `ops` by unit |
| `clocks` | `kernel`, `cold`, `hot`, `host`: each `median`, `low`, `high` (seconds), `n`, ... (rooftop.lab.timing.timer) |
| `versus` | other subject -> paired ratio of times, with interval and verdict |
| `error` | `max`, `rms` against float64 with what is allowed, as multiples of the allowance, `ok` |
| `predict` | the head's prediction as it then stood |
| `device`, `versions`, `sensors` | the card, the software, clocks, power and temperature before and after |"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from rooftop.lab.records.shapes import SHAPES

Record = dict[str, Any]
KINDS = ("bench", "check", "ceiling", "sanitize", "build", "clock", "tune", "counters", "compared")


DEPTH = 32  # of tables and lists within each other: more is no record, and more than Python can write again


class RecordError(ValueError):
    """A file of records that cannot be read as one, with the line."""


@cache
def versions() -> dict[str, str]:
    """Of the software that decides a result; what is absent is left out."""
    found = {"python": platform.python_version()}
    for package in ("torch", "triton", "numpy", "cuda-core", "cuda-bindings", "liger-kernel", "rooftop"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def slug_of(device: str) -> str:
    from rooftop.core.devices import slug

    return slug(device)


@dataclass
class Writer:
    """Appends records of one run to a file of its own, each on disk before `write` returns."""

    folder: Path
    device: str
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    _file: Any = None

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
        if self._file is None:
            where = self.folder / slug_of(self.device)
            where.mkdir(parents=True, exist_ok=True)
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            self._file = open(where / f"{stamp}-{self.run}.jsonl", "x", encoding="utf-8")  # noqa: SIM115 - closed by close()
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._file, fcntl.LOCK_SH)
        return Path(self._file.name)

    def write(self, record: Mapping[str, Any]) -> Record:
        """Adds `at` and `run`, writes one line, and waits for the disk. Raises RecordError for an unknown kind or a non-finite number."""
        if record.get("kind") not in KINDS:
            raise RecordError(f"kind is {record.get('kind')!r}; a record's kind is one of {', '.join(KINDS)}")
        full = {**record, "at": datetime.now(UTC).isoformat(timespec="seconds"), "run": self.run}
        try:
            line = json.dumps(full, allow_nan=False, sort_keys=True)
        except ValueError as error:
            raise RecordError(f"a record of {record.get('subject')} holds a number that JSON cannot: {error}") from None
        self.path  # noqa: B018 - opens the file
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        return full

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number that a record may hold")
    return value


def parse(line: bytes) -> Record:
    """The record of one line. Raises ValueError, saying why, where it is not one."""
    try:
        record = json.loads(line.decode("utf-8"), parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict) or record.get("kind") not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}")
    level: list[Any] = [record]
    for _ in range(DEPTH):
        level = [v for one in level for v in (one.values() if isinstance(one, dict) else one) if isinstance(v, (dict, list))]
    if level:
        raise ValueError("nested too deeply")
    if b"\\u" in line:
        json.dumps(record, ensure_ascii=False).encode()  # half of a pair that stands for one character cannot be written
    SHAPES[record["kind"]](record, "")
    return record


def read_file(path: Path) -> tuple[list[Record], str | None]:
    """The records of one file, and what is wrong with its last line if a run was cut off in it.

    Raises RecordError where any other line is not a record."""
    records: list[Record] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse(line)
        except ValueError as error:
            if number == len(lines):  # no newline after it: the run ended while writing
                return records, f"{path.name}:{number}: cut off, left out"
            raise RecordError(f"{path}:{number}: not a record: {error}") from None
        records.append(record)
    return records, None


def read(folder: Path, cut: list[str] | None = None) -> list[Record]:
    """Every record below `folder`, oldest first. An absent folder has none. `cut` is given a text for each file whose last line was cut off."""
    found: list[Record] = []
    for path in sorted(folder.rglob("*.jsonl")):
        records, note = read_file(path)
        found += records
        if note and cut is not None:
            cut.append(note)
    return sorted(found, key=lambda r: str(r.get("at", "")))


@dataclass
class Merged:
    """What `merge` did, file by file."""

    added: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    records: int = 0


def merge(source: Path, into: Path) -> Merged:
    """Bring the records below `source` (a folder or a file, of another machine, say) into `into`. Nothing of either is lost.

    A file already there is left alone; one that has grown replaces its beginning; one of the same name with other content is
    stored beside it. Raises RecordError, before anything is written, if a file is not one of records, FileNotFoundError if `source` is not there."""
    if not source.exists():
        raise FileNotFoundError(f"no {source}")
    files = [source] if source.is_file() else sorted(source.rglob("*.jsonl"))
    if not files:
        raise RecordError(f"{source} holds no .jsonl file")
    result = Merged()
    parsed = []
    for path in files:
        records, note = read_file(path)
        if note:
            result.notes.append(note)
        devices = {str(r.get("device", {}).get("name", "")) for r in records} - {""}
        if len(devices) > 1:
            raise RecordError(f"{path} holds records of several devices: {', '.join(sorted(devices))}")
        if records:
            parsed.append((path, records, devices.pop() if devices else path.parent.name))
    for path, records, device in parsed:
        text = "".join(json.dumps(r, sort_keys=True) + "\n" for r in records)
        _place(into / slug_of(device), path.name, text, result)
        result.records += len(records)
    return result


def _place(folder: Path, name: str, text: str, result: Merged) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    with _alone(folder):
        for number in count(1):
            target = folder / (name if number == 1 else f"{Path(name).stem}-{number}.jsonl")
            if not target.exists() and _claim(target, content):
                result.added.append(target.name)
                return
            present = target.read_bytes()
            if present.startswith(content):
                result.same.append(target.name)
                return
            if present and content.startswith(present):  # an empty one may be another's, about to be written
                with _written(target, content) as temporary:
                    os.replace(temporary, target)
                result.grown.append(target.name)
                return


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One merge at a time in a folder, so that none replaces what another has just let grow. Where the file system has no locks: nothing."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _written(target: Path, content: bytes) -> Iterator[Path]:
    """`content` on disk beside `target` under a name of its own, which is gone afterwards."""
    temporary = target.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        _put(temporary, content)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def held(paths: Iterable[Path]) -> Iterator[None]:
    """The files for us alone. Raises RecordError where a run has one of them open to write into (`Writer`)."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            file = stack.enter_context(open(path, "rb"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RecordError(f"a run is writing {path}") from None
            except OSError:
                continue  # a file system without locks
        yield


def replace(path: Path, before: bytes, after: bytes) -> None:
    """The content of `path`, which was `before`, made `after` at one stroke; nothing left of it: the file goes. Raises RecordError if it has changed."""
    with _alone(path.parent):
        if path.read_bytes() != before:
            raise RecordError(f"{path} has changed meanwhile")
        if after:
            with _written(path, after) as temporary:
                temporary.chmod(path.stat().st_mode & 0o7777)
                os.replace(temporary, path)
        else:
            path.unlink()


def _put(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _claim(target: Path, content: bytes) -> bool:
    """Make `target`, whole, unless somebody else has made it by now: False then."""
    with _written(target, content) as temporary, contextlib.suppress(FileExistsError):
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without links: others may see the file grow
            _put(target, content)
        return True
    return False


def latest(records: Iterable[Record], kind: str) -> dict[tuple[str, str, str], Record]:
    """The newest record of each (device, subject, `op case`)."""
    found: dict[tuple[str, str, str], Record] = {}
    for r in records:
        if r["kind"] == kind and "subject" in r:
            found[(str(r.get("device", {}).get("name", "")), str(r["subject"]), f"{r.get('op')} {r.get('case')}")] = r
    return found


def fresh(records: Iterable[Record], digests: Mapping[tuple[str, str, str], str]) -> Iterator[Record]:
    """Those whose digest is that of the tree; `digests` maps (op, subject, case) to it."""
    return (r for r in records if digests.get((str(r.get("op")), str(r.get("subject")), str(r.get("case")))) == r.get("digest"))
