"""Records that no page shows any more, taken out of their files.

Of a subject at a case on a card, a page shows the newest record that is not stale, or the newest where all are. Those before it were superseded.
Records of kinds that are read otherwise (`ceiling`, `tune`, `build`, `counters`, `compared`) stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rooftop.lab.records import store
from rooftop.lab.records.store import Record, RecordError

KINDS = ("bench", "check", "sanitize", "clock")


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


def superseded(found: Sequence[Record], stale: Callable[[Record], bool]) -> list[bool]:
    """Of each of `found` whether a newer record stands for it."""
    newest: dict[tuple[str, ...], int] = {}
    good: dict[int, bool] = {}
    for i in sorted((i for i, r in enumerate(found) if r["kind"] in KINDS), key=lambda i: str(found[i].get("at", ""))):
        key, good[i] = _key(found[i]), not stale(found[i])
        if key not in newest or good[i] or not good[newest[key]]:
            newest[key] = i
    kept = set(newest.values())
    return [r["kind"] in KINDS and i not in kept for i, r in enumerate(found)]


def prune(folder: Path, stale: Callable[[Iterable[Record]], Callable[[Record], bool]], dry: bool = False) -> Pruned:
    """Take the superseded records below `folder` out of their files; a file that is left with none goes. Lines that stay are left as they are.

    `stale` of all records says which are not of the tree. Raises RecordError, before anything is written, if a file is not one of records or a run
    is still writing it, NotADirectoryError or FileNotFoundError if `folder` is not a folder."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder") if folder.exists() else FileNotFoundError(f"no {folder}")
    files: list[tuple[Path, bytes, list[Record]]] = []
    paths = sorted({path.resolve() for path in folder.rglob("*.jsonl")})
    with store.held(paths):
        for path in paths:
            content = path.read_bytes()
            parsed, note = store.read_file(path)
            if note:
                raise RecordError(f"{note}: a run is writing it, or was cut off")
            files.append((path, content, parsed))
        everything = [r for _, _, found in files for r in found]
        gone = iter(superseded(everything, stale(everything)))
        result = Pruned(records=len(everything), files=len(files))
        plans: list[tuple[Path, bytes, bytes]] = []
        for path, before, found in files:
            drop = [next(gone) for _ in found]
            lines = [line + b"\n" for line in before.split(b"\n") if line.strip()]
            after = b"".join(line for line, out in zip(lines, drop, strict=True) if not out)
            if any(drop):
                plans.append((path, before, after))
            size = len(after) if any(drop) else len(before)
            result.bytes, result.bytes_dropped = result.bytes + len(before), result.bytes_dropped + len(before) - size
            result.dropped, result.files_dropped = result.dropped + sum(drop), result.files_dropped + (any(drop) and not after)
        if not dry:
            for path, before, after in plans:
                store.replace(path, before, after)
    return result
