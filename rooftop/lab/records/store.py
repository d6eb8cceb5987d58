"""Records: what was measured or checked, as JSON lines. Written once by the run that made them, never edited.

A file a run, `results/<device>/<UTC time>-<run>.jsonl`, so that two processes never write into one; packed (`.jsonl.xz`) once it is merged
or pruned (rooftop.lab.records.packed). Its first line is a `run` head, which holds for all that follow: device, versions, host. Then come
the records, several of one subject in a line where they have things in common (rooftop.lab.records.form says how). `read` gives each record
whole, as if it stood alone (rooftop.lab.records.record says what it holds).

A file without a head is of the form before: its lines are records. It is read as well, and brought to this form when it is merged or
pruned."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rooftop.core import texts
from rooftop.core.names import RENAMED
from rooftop.core.spec import Device
from rooftop.core.whole_file import named, regular
from rooftop.lab.records import form, packed, parsed
from rooftop.lab.records.record import HEAD, KINDS, SHAPES, Record, Table, compact
from rooftop.lab.records.software import host, versions
from rooftop.lab.records.values import shown

__all__ = [
    "KINDS", "SHAPES", "Merged", "Record", "RecordError", "Section", "Table", "Writer", "about", "host", "latest", "merge", "read", "read_file",
    "versions"
]

SAID = 300  # characters of what is wrong with a line
ESCAPED = re.compile(rb"\\[bfru]|[\x7f\xc2\xd8\xe2]")  # a line with none of these holds no control character: JSON has them escaped
DEPTH = 32  # of tables and lists within each other: more is no record, and more than Python can write again

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
        return [value]
    records = list(form.joined(value, head, len(line)))
    for record in records:
        SHAPES[record["kind"]](record, "")
    return [of_today(r) for r in records]


def of_today(record: Table) -> Table:
    """A record with today's names of kernels that were renamed since (rooftop.core.names.RENAMED)."""
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
    found: list[Section] = []
    try:
        lines = packed.text(regular(path) if content is None else content).split(b"\n")
    except ValueError as error:
        raise RecordError(f"{path}: no file of records: {error} (remove or restore it)") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows = parse(line, found[-1][0] if found else None)
        except ValueError as error:
            if number == len(lines):  # no newline after it: the run ended while writing
                return found, f"{path.name}:{number}: cut off, left out"
            raise RecordError(f"{path}:{number}: not a record: {error} (remove the line, or restore the file)") from None
        if rows[0]["kind"] == "run":
            found.append((rows[0], []))
        elif found:
            found[-1][1].extend(map(Record, rows))
        else:
            found.append((None, list(map(Record, rows))))
    return found, None


def read_file(path: Path) -> tuple[list[Record], str | None]:
    """The records of one file, and what is wrong with its last line if a run was cut off in it.

    Raises RecordError where any other line is neither a record nor a head."""
    found, note = sections(path)
    return [r for _, records in found for r in records], note


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
        return packed.below(folder)
    if not packed.named(folder):
        raise NotADirectoryError(f"{folder} is no folder; records are a folder, or a .jsonl or .jsonl.xz file")
    return [folder]


def read(folder: Path, cut: list[str] | None = None) -> list[Record]:
    """Every record below `folder` (or of one file), oldest first. An absent folder has none. `cut` is given a text for each whose last line
    was cut off.

    Raises OSError for what is no folder and no file of records."""
    def tables(path: Path) -> parsed.Content:
        records, note = read_file(path)
        return [r.table for r in records], note

    found: list[Table] = []
    try:
        contents = parsed.read(folder, files(folder), tables, __file__)
    except FileNotFoundError:  # another process has packed or pruned one meanwhile
        contents = parsed.read(folder, files(folder), tables, __file__)
    for records, note in contents:
        found += records
        if note and cut is not None:
            cut.append(note)
    return [Record(r) for r in sorted(found, key=lambda r: str(r.get("at", "")))]


def proven(records: Iterable[Record], card: str) -> dict[tuple[str, ...], Record]:
    """The check records of a card that say that a case is right, by op, kernel, case and `Subject.digest`."""
    return {_judged(r): r for r in records if r.kind == "check" and r.error.ok and r.card == card}


def judged_peers(records: Iterable[Record], card: str, software: dict[str, str]) -> dict[tuple[str, ...], Record]:
    """The bench records of peers, which say whether their results were right, made on a card with the same versions; keys as of
    `proven`."""
    found = (r for r in records if r.kind == "bench" and r.subject.startswith("peer:") and r.card == card)
    return {_judged(r): r for r in found if r.versions == software}


def _judged(r: Record) -> tuple[str, ...]:
    return r.op, r.subject, r.case, f"{r.digest} {r.source}"


def latest(records: Iterable[Record], kind: str) -> dict[tuple[str, str, str], Record]:
    """The newest record of each (device, subject, `op case`)."""
    return {(r.card, r.subject, f"{r.op} {r.case}"): r for r in records if r.kind == kind}


# -- rewriting ---------------------------------------------------------------------------------------------------------


def modern(found: Sequence[Section]) -> list[tuple[Table, list[Record]]]:
    """Sections with a head each: those of the form before, compact, get one for each run and card."""
    made: list[tuple[Table, list[Record]]] = []
    for head, records in found:
        if head is not None:
            made.append((head, list(records)))
            continue
        runs: dict[str, list[Record]] = {}
        for r in records:
            runs.setdefault(f"{r.run} {r.card}", []).append(Record(form.rounded(compact(r))))
        made += [(form.head_of(rows), rows) for rows in runs.values()]
    return made


def text(found: Iterable[tuple[Table, Sequence[Record]]]) -> bytes:
    """The content of a file of these sections; one without records is left out."""
    parts = [[form.dumps(head), *form.lines(records, head)] for head, records in found if records]
    return "".join(line + "\n" for part in parts for line in part).encode()


@dataclass
class Merged:
    """What `merge` did, file by file."""

    added: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    records: int = 0


def merge(source: Path, into: Path, renew: Callable[[Record], Record] = lambda record: record) -> Merged:
    """Bring the records below `source` (a folder or a file, of another machine, say) into `into`. Nothing of either is lost.

    What a file of the same name there has already is left out, the rest is added to it; `renew` may give a record the hashes of the tree
    first. Raises RecordError, before anything is written, if a file is not one of records, FileNotFoundError if `source` is not there."""
    if not source.exists():
        raise FileNotFoundError(f"no {source}")
    if not (source.is_file() or source.is_dir()):
        raise RecordError(f"{source} is neither a file nor a folder")
    files = [source] if source.is_file() else packed.below(source)
    if not files:
        raise RecordError(f"{source} holds no .jsonl or .jsonl.xz file")
    result = Merged()
    given = []
    for path in files:
        read, note = sections(path)
        if note:
            result.notes.append(note)
        found = [(head, [renew(r) for r in records]) for head, records in read]
        devices = {r.card for _, records in found for r in records} - {""}
        if len(devices) > 1:
            raise RecordError(f"{path} holds records of several devices: {', '.join(sorted(devices))}")
        if any(records for _, records in found):
            given.append((path, found, devices.pop() if devices else path.parent.name))
    for path, found, device in given:
        _place(into / slug_of(device) / path.name, modern(found), result)
        result.records += sum(len(records) for _, records in found)
    return result


def _place(path: Path, found: Sequence[tuple[Table, list[Record]]], result: Merged) -> None:
    """The records added to the file of this name, which is packed from then on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = packed.name(path)
    with _locked(path.parent):
        before = [p for p in (target, target.with_suffix("")) if p.exists()]
        kept: list[tuple[Table, list[Record]]] = []
        notes = []
        for one in before:
            present, note = sections(one)
            add(kept, modern(present))
            notes += [note] if note else []
        if not add(kept, found):
            result.same.append(before[0].name)
            return
        with held(before), _written(target, packed.content(text(kept), target)) as temporary:
            os.replace(temporary, target)
            for other in before:
                if other != target:
                    other.unlink()
        (result.grown if before else result.added).append(target.name)
        result.notes += notes


def add(kept: list[tuple[Table, list[Record]]], found: Iterable[tuple[Table, list[Record]]]) -> bool:
    """Adds to `kept` the records of `found` that it lacks, those of one head together. Returns whether there were any."""
    known = {form.dumps(r) for _, records in kept for r in records}
    fresh = [(head, new) for head, records in found if (new := [r for r in records if not known or form.dumps(r) not in known])]
    for head, new in fresh:
        same = next((records for other, records in kept if other == head), None)
        if same is None:
            kept.append((head, new))
        else:
            same += new
    return bool(fresh)


def replace(before: Mapping[Path, bytes], target: Path, after: bytes) -> None:
    """The files of one run, which were as `before` says, made the one file `target` at a stroke; nothing left of them: they go. Raises
    RecordError if one has changed."""
    with _locked(target.parent):
        for path, content in before.items():
            if path.read_bytes() != content:
                raise RecordError(f"{path} has changed meanwhile")
        if after:
            with _written(target, after) as temporary:
                temporary.chmod(next(iter(before)).stat().st_mode & 0o7777)
                os.replace(temporary, target)
        for path in before:
            if path != target or not after:
                path.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One merge at a time in a folder, so that none replaces what another has just written. Where the file system has no locks: nothing."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _written(target: Path, content: bytes) -> Iterator[Path]:
    """`content` on disk beside `target` under a name of its own, which is gone afterwards. Raises OSError, with the name, where it does not
    fit."""
    temporary = target.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file, named(target):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
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
