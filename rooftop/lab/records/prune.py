"""Records that no page shows any more, taken out of their files, and the rest put together: the records of one subject that a run wrote one
by one share a line from then on, and its file is packed.

Of a subject at a case on a card, a page shows the newest record that is not stale, or the newest where all are. Those before it were
superseded; so was a stale check of a subject that a later run has checked, at whatever case: no page shows a check that is stale.
Records of kinds that are read otherwise (`tune`, `build`, `counters`, `compared`) stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rooftop.lab.records import form, packed, store
from rooftop.lab.records.record import Record, Table
from rooftop.lab.records.store import RecordError

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
    has rows of its own: which model, and how it ran."""
    rows = [(row.get("what"), row.get("of"), row.get("variant")) for row in r.get("rows", ())] if r.subject == "models" else ""
    of = r.card, r.kind, r.op, r.subject, r.case, r.backend
    return *of, str("first_s" in r), str(rows), str(r.get("cases")), str(r.get("by"))


def superseded(found: Sequence[Record], stale: Callable[[Record], bool]) -> list[bool]:
    """Of each of `found` whether a newer record stands for it. `stale` is asked, which takes time, only of those of which it depends on
    that."""
    at = [r.at for r in found]
    alike: dict[tuple[str, ...], list[int]] = {}
    for i in sorted((i for i, r in enumerate(found) if r.kind in KINDS), key=at.__getitem__):
        alike.setdefault(_key(found[i]), []).append(i)
    kept = {same[0] if len(same) == 1 else next((i for i in reversed(same) if not stale(found[i])), same[-1]) for same in alike.values()}
    checks: dict[tuple[str, ...], list[int]] = {}  # a subject on a card -> what stays of its checks
    for i in kept:
        if found[i].kind == "check":
            checks.setdefault((found[i].card, found[i].op, found[i].subject), []).append(i)
    for mine in checks.values():
        if len({found[i].run or i for i in mine}) > 1:
            last = next((i for i in sorted(mine, key=at.__getitem__, reverse=True) if not stale(found[i])), None)
            kept -= {
                i for i in mine if last is not None and at[i] < at[last] and (found[i].run or i) != (found[last].run or last)
                and stale(found[i])
            }
    return [r.kind in KINDS and i not in kept for i, r in enumerate(found)]


def _is_minimal(text: bytes, sections: Sequence[store.Section]) -> bool:
    """Whether a file of these sections with this text is as short as it goes: it has a head for each, and a line for those of each subject
    that hold the same things."""
    groups = sum(len({repr(form.group(r)) for r in records}) + 1 for _, records in sections)
    return (
        all(head is not None and records for head, records in sections)
        and groups == sum(bool(line.strip()) for line in text.split(b"\n"))
    )


def prune(
    folder: Path, stale: Callable[[Iterable[Record]], Callable[[Record], bool]], dry: bool = False, left: list[Record] | None = None,
    renew: Callable[[Record], Record] = lambda record: record,
) -> Pruned:
    """Take the superseded records below `folder` out of their files, and write what stays as short as it goes, packed; a file that is left
    with none goes. A file that a link leads to keeps its name and form. Where a run has a plain and a packed file they become one.

    `stale` of all records says which are not of the tree; `renew` gives a record, or the same with the hashes of the tree where they
    are to be. `left` is given the records that stay, in the order of `store.read`. Raises RecordError, before anything is written, if a file
    is not one of records or a run is still writing it, NotADirectoryError or FileNotFoundError if `folder` is not a folder."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder") if folder.exists() else FileNotFoundError(f"no {folder}")
    named = packed.below(folder)
    linked = {path.resolve() for path in named if path.is_symlink()}
    runs: dict[Path, list[Path]] = {}  # the file that a run's records will stand in -> those that they stand in
    for path in sorted({path.resolve() for path in named}):
        runs.setdefault(path if path in linked else packed.name(path), []).append(path)
    files: list[tuple[Path, dict[Path, bytes], bool, list[tuple[Table, list[Record]]]]] = []
    with store.held(path for paths in runs.values() for path in paths):
        for target, paths in runs.items():
            contents = {path: path.read_bytes() for path in paths}
            together: list[tuple[Table, list[Record]]] = []
            for path, content in contents.items():
                read, note = store.sections(path, content)
                if note:
                    raise RecordError(f"{note}: a run is writing it, or was cut off")
                store.add(together, store.modern(read))
            settled = paths == [target] and _is_minimal(packed.text(content), read)
            renewed = [(head, list(map(renew, records))) for head, records in together]
            same = settled and all(a is b for (_, new), (_, old) in zip(renewed, together, strict=True) for a, b in zip(new, old, strict=True))
            files.append((target, contents, same, renewed))
        everything = [r for *_, sections in files for _, records in sections for r in records]
        gone = iter(superseded(everything, stale(everything)))
        result = Pruned(records=len(everything), files=sum(map(len, runs.values())))
        plans: list[tuple[dict[Path, bytes], Path, bytes]] = []
        for target, contents, settled, sections in files:
            kept = [(head, [r for r in records if not next(gone)]) for head, records in sections]
            dropped = sum(len(records) for _, records in sections) - sum(len(records) for _, records in kept)
            after = contents[target] if settled and not dropped else packed.content(store.text(kept), target)
            size = sum(map(len, contents.values()))
            result.dropped += dropped
            result.bytes, result.bytes_dropped = result.bytes + size, result.bytes_dropped + size - len(after)
            result.files_dropped += len(contents) - bool(after)
            if left is not None:
                left += [r for _, records in kept for r in records]
            if contents != {target: after}:
                plans.append((contents, target, after))
        if not dry:
            for contents, target, after in plans:
                store.replace(contents, target, after)
    if left is not None:
        left.sort(key=lambda r: r.at)
    return result
