"""Records that no page shows any more, taken out of their files, and the rest put together: the records of one subject that a run wrote one by one
share a line from then on.

Of a subject at a case on a card, a page shows the newest record that is not stale, or the newest where all are. Those before it were superseded; so was a
stale check of a subject that has been checked since, at whatever case: no page shows a check that is stale.
Records of kinds that are read otherwise (`tune`, `build`, `counters`, `compared`) stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rooftop.lab.records import store
from rooftop.lab.records.store import Record, RecordError

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
    what = ("kind", "op", "subject", "case", "cases", "by", "backend")
    return (str(r.get("device", {}).get("name")), *(str(r.get(k)) for k in what))


def _subject(r: Record) -> tuple[str, ...]:
    return str(r.get("device", {}).get("name")), str(r.get("op")), str(r.get("subject"))


def superseded(found: Sequence[Record], stale: Callable[[Record], bool]) -> list[bool]:
    """Of each of `found` whether a newer record stands for it."""
    newest: dict[tuple[str, ...], int] = {}
    good: dict[int, bool] = {}
    for i in sorted((i for i, r in enumerate(found) if r["kind"] in KINDS), key=lambda i: str(found[i].get("at", ""))):
        key, good[i] = _key(found[i]), not stale(found[i])
        if key not in newest or good[i] or not good[newest[key]]:
            newest[key] = i
    kept = set(newest.values())
    checked: dict[tuple[str, ...], str] = {}  # a subject on a card -> when it was last checked as it is
    for i in kept:
        if found[i]["kind"] == "check" and good[i]:
            checked[_subject(found[i])] = max(checked.get(_subject(found[i]), ""), str(found[i].get("at", "")))

    def over(i: int, r: Record) -> bool:
        return r["kind"] == "check" and not good[i] and str(r.get("at", "")) < checked.get(_subject(r), "")

    return [r["kind"] in KINDS and (i not in kept or over(i, r)) for i, r in enumerate(found)]


def prune(folder: Path, stale: Callable[[Iterable[Record]], Callable[[Record], bool]], dry: bool = False) -> Pruned:
    """Take the superseded records below `folder` out of their files, and write what stays as short as it goes; a file that is left with none goes.

    `stale` of all records says which are not of the tree. Raises RecordError, before anything is written, if a file is not one of records or a run
    is still writing it, NotADirectoryError or FileNotFoundError if `folder` is not a folder."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder") if folder.exists() else FileNotFoundError(f"no {folder}")
    files: list[tuple[Path, bytes, list[tuple[Record, list[Record]]]]] = []
    paths = sorted({path.resolve() for path in folder.rglob("*.jsonl")})
    with store.held(paths):
        for path in paths:
            content = path.read_bytes()
            found, note = store.sections(path)
            if note:
                raise RecordError(f"{note}: a run is writing it, or was cut off")
            files.append((path, content, store.modern(found)))
        everything = [r for _, _, found in files for _, records in found for r in records]
        gone = iter(superseded(everything, stale(everything)))
        result = Pruned(records=len(everything), files=len(files))
        plans: list[tuple[Path, bytes, bytes]] = []
        for path, before, sections in files:
            kept = [(head, [r for r in records if not next(gone)]) for head, records in sections]
            after = store.text(kept)
            result.dropped += sum(len(records) for _, records in sections) - sum(len(records) for _, records in kept)
            result.bytes, result.bytes_dropped = result.bytes + len(before), result.bytes_dropped + len(before) - len(after)
            result.files_dropped += not after
            if after != before:
                plans.append((path, before, after))
        if not dry:
            for path, before, after in plans:
                store.replace(path, before, after)
    return result
