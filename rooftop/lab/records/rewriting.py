"""Files of records rewritten: those of another machine merged in, superseded records taken out, and the rest put together. The records of
one subject that a run wrote one by one share a line from then on, and its file is packed.

Of a subject at a case on a card, a page shows the newest record that is not stale, or the newest where all are. Those before it were
superseded; so was a stale check of a subject that a later run has checked, at whatever case: no page shows a check that is stale.
Records of kinds that are read otherwise (`tune`, `build`, `counters`, `compared`) stay."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rooftop.core.whole_file import named
from rooftop.lab.records import form
from rooftop.lab.records.record import Record, Table, compact
from rooftop.lab.records.store import RecordError, Section, sections, slug_of

KINDS = ("bench", "check", "sanitize", "clock", "ceiling", "first-calls", "sweep", "language")


@dataclass
class Pruned:
    """What `prune` did, or would do."""

    records: int = 0
    dropped: int = 0
    bytes: int = 0
    bytes_dropped: int = 0
    files: int = 0
    files_dropped: int = 0


def _key(r: Record) -> tuple[str, ...]:
    """What a newer record must have in common. Of a language there are two: what compiling costs, and the first call. A record of models
    has rows of its own: which model, and how it ran. Of what was tried, each seed is a trial of its own."""
    rows = [(row.get("what"), row.get("of"), row.get("variant")) for row in r.get("rows", ())] if r.subject == "models" else ""
    of = r.card, r.kind, r.op, r.subject, r.case, r.backend
    seed = r.get("seed") if r.subject == "trials" else ""
    return *of, str("first_s" in r), str(rows), str(r.get("cases")), str(r.get("by")), str(seed)


def superseded(records: Sequence[Record], stale: Callable[[Record], bool]) -> list[bool]:
    """Of each of `records` whether a newer record stands for it. `stale` is asked, which takes time, only of those of which it depends on
    that."""
    at = [r.at for r in records]
    alike: dict[tuple[str, ...], list[int]] = {}
    for i in sorted((i for i, r in enumerate(records) if r.kind in KINDS), key=at.__getitem__):
        alike.setdefault(_key(records[i]), []).append(i)
    newest = {group[0] if len(group) == 1 else next((i for i in reversed(group) if not stale(records[i])), group[-1]) for group in alike.values()}
    checks: dict[tuple[str, ...], list[int]] = {}  # a subject on a card -> what stays of its checks
    for i in newest:
        if records[i].kind == "check":
            checks.setdefault((records[i].card, records[i].op, records[i].subject), []).append(i)
    for mine in checks.values():
        if len({records[i].run or i for i in mine}) > 1:
            last = next((i for i in sorted(mine, key=at.__getitem__, reverse=True) if not stale(records[i])), None)
            newest -= {
                i for i in mine if last is not None and at[i] < at[last] and (records[i].run or i) != (records[last].run or last)
                and stale(records[i])
            }
    return [r.kind in KINDS and i not in newest for i, r in enumerate(records)]


def _is_minimal(content: bytes, parts: Sequence[Section]) -> bool:
    """Whether a file of these sections with this text is as short as it goes: it has a head for each, and a line for those of each subject
    that hold the same things."""
    groups = sum(len({repr(form.group(r)) for r in records}) + 1 for _, records in parts)
    return (
        all(head is not None and records for head, records in parts)
        and groups == sum(bool(line.strip()) for line in content.split(b"\n"))
    )


def prune(
    folder: Path, stale: Callable[[Iterable[Record]], Callable[[Record], bool]], dry: bool = False, left: list[Record] | None = None,
    renew: Callable[[Record], Record] = lambda record: record,
) -> Pruned:
    """Take the superseded records below `folder` out of their files, and write what stays as short as it goes, packed; a file that is left
    with none goes. A file that a link leads to keeps its name and form. Where a run has a plain and a packed file they become one.

    `stale` of all records says which are not of the tree; `renew` gives a record, or the same with the hashes of the tree where they
    are to be. `left` is given the records that stay, in the order of `store.read`. Raises RecordError, before anything is written, if a
    file is not one of records or a run is still writing it, NotADirectoryError or FileNotFoundError if `folder` is not a folder."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder") if folder.exists() else FileNotFoundError(f"no {folder}")
    listed = form.below(folder)
    linked = {path.resolve() for path in listed if path.is_symlink()}
    runs: dict[Path, list[Path]] = {}  # the file that a run's records will stand in -> those that they stand in
    for path in sorted({path.resolve() for path in listed}):
        runs.setdefault(path if path in linked else form.packed_name(path), []).append(path)
    files: list[tuple[Path, dict[Path, bytes], bool, list[tuple[Table, list[Record]]]]] = []
    with held(path for paths in runs.values() for path in paths):
        for target, paths in runs.items():
            contents = {path: path.read_bytes() for path in paths}
            together: list[tuple[Table, list[Record]]] = []
            for path, content in contents.items():
                read, note = sections(path, content)
                if note:
                    raise RecordError(f"{note}: a run is writing it, or was cut off")
                add(together, modern(read))
            settled = paths == [target] and _is_minimal(form.unpacked(content), read)
            renewed = [(head, list(map(renew, records))) for head, records in together]
            unchanged = settled and all(a is b for (_, new), (_, old) in zip(renewed, together, strict=True) for a, b in zip(new, old, strict=True))
            files.append((target, contents, unchanged, renewed))
        everything = [r for *_, parts in files for _, records in parts for r in records]
        gone = iter(superseded(everything, stale(everything)))
        result = Pruned(records=len(everything), files=sum(map(len, runs.values())))
        plans: list[tuple[dict[Path, bytes], Path, bytes]] = []
        for target, contents, settled, parts in files:
            remaining = [(head, [r for r in records if not next(gone)]) for head, records in parts]
            dropped = sum(len(records) for _, records in parts) - sum(len(records) for _, records in remaining)
            after = contents[target] if settled and not dropped else form.packed(text(remaining), target)
            size = sum(map(len, contents.values()))
            result.dropped += dropped
            result.bytes, result.bytes_dropped = result.bytes + size, result.bytes_dropped + size - len(after)
            result.files_dropped += len(contents) - bool(after)
            if left is not None:
                left += [r for _, records in remaining for r in records]
            if contents != {target: after}:
                plans.append((contents, target, after))
        if not dry:
            for contents, target, after in plans:
                replace(contents, target, after)
    if left is not None:
        left.sort(key=lambda r: r.at)
    return result


# -- files ---------------------------------------------------------------------------------------------------------------


def modern(parts: Sequence[Section]) -> list[tuple[Table, list[Record]]]:
    """Sections with a head each: those of the form before, compact, get one for each run and card."""
    renewed: list[tuple[Table, list[Record]]] = []
    for head, records in parts:
        if head is not None:
            renewed.append((head, list(records)))
            continue
        runs: dict[str, list[Record]] = {}
        for r in records:
            runs.setdefault(f"{r.run} {r.card}", []).append(Record(form.rounded(compact(r))))
        renewed += [(form.head_of(rows), rows) for rows in runs.values()]
    return renewed


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
    files = [source] if source.is_file() else form.below(source)
    if not files:
        raise RecordError(f"{source} holds no .jsonl or .jsonl.xz file")
    result = Merged()
    paths = []
    for path in files:
        read, note = sections(path)
        if note:
            result.notes.append(note)
        parts = [(head, [renew(r) for r in records]) for head, records in read]
        devices = {r.card for _, records in parts for r in records} - {""}
        if len(devices) > 1:
            raise RecordError(f"{path} holds records of several devices: {', '.join(sorted(devices))}")
        if any(records for _, records in parts):
            paths.append((path, parts, devices.pop() if devices else path.parent.name))
    for path, parts, device in paths:
        _place(into / slug_of(device) / path.name, modern(parts), result)
        result.records += sum(len(records) for _, records in parts)
    return result


def _place(path: Path, parts: Sequence[tuple[Table, list[Record]]], result: Merged) -> None:
    """The records added to the file of this name, which is packed from then on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = form.packed_name(path)
    with _locked(path.parent):
        before = [p for p in (target, target.with_suffix("")) if p.exists()]
        merged: list[tuple[Table, list[Record]]] = []
        notes = []
        for one in before:
            present, note = sections(one)
            add(merged, modern(present))
            notes += [note] if note else []
        if not add(merged, parts):
            result.same.append(before[0].name)
            return
        with held(before), _written(target, form.packed(text(merged), target)) as temporary:
            os.replace(temporary, target)
            for other in before:
                if other != target:
                    other.unlink()
        (result.grown if before else result.added).append(target.name)
        result.notes += notes


def add(parts: list[tuple[Table, list[Record]]], more: Iterable[tuple[Table, list[Record]]]) -> bool:
    """Adds to `parts` the records of `more` that it lacks, those of one head together. Returns whether there were any."""
    lines = {form.dumps(r) for _, records in parts for r in records}
    fresh = [(head, new) for head, records in more if (new := [r for r in records if not lines or form.dumps(r) not in lines])]
    for head, new in fresh:
        group = next((records for other, records in parts if other == head), None)
        if group is None:
            parts.append((head, new))
        else:
            group += new
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
