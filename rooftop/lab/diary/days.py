"""The days of a diary: entries of the log, of the course's progress and of records, and the learner's own notes, by day and section."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from rooftop.core import helpers, registry
from rooftop.core.texts import printable
from rooftop.core.whole_file import regular
from rooftop.lab.diary.log import Entry, Row
from rooftop.lab.records.record import Record

SECTIONS: Mapping[str, str] = {  # family of an op's kernels -> the heading
    "gemm": "GEMM", "sparse": "SpMM and other sparse products", "attention": "Attention", "norm": "Norms and softmax",
    "quant": "Quantisation",
    "comm": "Overlap and collectives", "codecs": "Compression", "loss": "Losses", "movement": "Reductions and data movement",
    "select": "Sorting and selection",
    "elementwise": "Elementwise", "npu": "NPU", "": "Other",
}
_DATED = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[-_ .]+(.+))?")
MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
         (codecs.BOM_UTF16_BE, "utf-16"))
LONGEST = 4 << 20  # bytes of a note


@dataclass(frozen=True)
class Note:
    """A file of the learner's. `title`: what its name says after the date."""

    day: str
    title: str
    text: str
    name: str


@dataclass(frozen=True)
class Day:
    """`sections`: heading -> its entries, oldest first."""

    day: str
    sections: Mapping[str, tuple[Entry, ...]]
    notes: tuple[Note, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(e for found in self.sections.values() for e in found)

    @property
    def kinds(self) -> dict[str, int]:
        """Kind -> how many entries there are of it."""
        counts: dict[str, int] = {}
        for entry in self.entries:
            counts[entry.kind] = counts.get(entry.kind, 0) + 1
        return dict(sorted(counts.items()))


def days(entries: Iterable[Entry], notes: Iterable[Note]) -> list[Day]:
    """In order. The same entries and notes give the same days."""
    by_day: dict[str, dict[str, list[Entry]]] = {}
    for entry in sorted(map(plain, set_of(entries)), key=lambda e: (e.at, e.kind, e.subjects, e.said)):
        by_day.setdefault(entry.day, {}).setdefault(section(entry), []).append(entry)
    written: dict[str, list[Note]] = {}
    for note in sorted(notes, key=lambda n: n.name):
        written.setdefault(note.day, []).append(note)
    order = list(SECTIONS.values())
    return [
        Day(day, {s: tuple(by_day[day][s]) for s in sorted(by_day.get(day, {}), key=order.index)}, tuple(written.get(day, ())))
        for day in sorted({*by_day, *written})
    ]


def plain(entry: Entry) -> Entry:
    """Every text of it in one line without control characters: what it says comes from kernels, files and records."""

    def one(text: str) -> str:
        return " ".join(printable(text).split())

    rows = tuple(replace(r, subject=one(r.subject), case=one(r.case)) for r in entry.rows)
    return Entry(
        entry.at, one(entry.kind), tuple(map(one, entry.subjects)), entry.ops, {one(n): v for n, v in entry.figures.items()}, rows,
        one(entry.said)
    )


def set_of(entries: Iterable[Entry]) -> list[Entry]:
    """Without what a record says again that the log of the same bench has said."""
    entries_left = list(entries)
    logged = {(e.day, r.subject, r.case, round(r.us, 6)) for e in entries_left if e.kind == "bench" for r in e.rows}
    return [e for e in entries_left if e.kind != "record" or not all((e.day, r.subject, r.case, round(r.us, 6)) in logged for r in e.rows)]


def section(entry: Entry) -> str:
    """By the family of the first op that has one."""
    if entry.subjects and all("__pallas" in s or "_tpu/" in s for s in entry.subjects):
        return SECTIONS["npu"]
    for op in (*entry.ops, *(op for subject in entry.subjects for op in ops_of(subject))):
        folder = helpers.family(op)
        if folder is not None and folder.name in SECTIONS:
            return SECTIONS[folder.name]
    return SECTIONS[""]


# -- the course -------------------------------------------------------------------------------------------------------------


def of_progress(progress: Mapping[str, Any]) -> list[Entry]:
    """What `rooftop.lab.learn.progress.Progress.export` holds: predictions, answers and puzzles, one entry a day, kind and rung."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for kind, name in (("predictions", "rung"), ("answers", "subject"), ("puzzles", "puzzle"), ("lessons", "rung")):
        for row in progress[kind]:
            groups.setdefault((str(row["at"])[:10], kind, str(row[name])), []).append(row)
    entries = []
    for (_, kind, subject), rows in groups.items():
        figures: dict[str, float] = {"count": len(rows)} if len(rows) > 1 else {}
        said = ""
        if kind == "predictions":
            figures["points"] = sum(r["points"] for r in rows) / len(rows)
            said = "; ".join(f"{r['name']}: said {r['given']:.4g}, was {r['found']:.4g}" for r in rows)
        elif kind == "answers":
            figures["right"] = sum(r["right"] for r in rows)
        elif kind == "puzzles":
            figures["right"] = sum(r["verdict"] == "right" for r in rows)
            said = ", ".join(dict.fromkeys(str(r["verdict"]) for r in rows))
        elif rows[0]["known"]:
            said = "known already"
        entries.append(Entry(str(rows[0]["at"]), kind, (subject,), ops_of(subject), figures, said=said))
    return entries


def ops_of(subject: str) -> tuple[str, ...]:
    """What a rung or a kernel computes, by its name; () for a file."""
    name = subject.partition("/")[0]
    if name in registry.ladder_names():
        return (registry.ladder(name).op,)
    return () if "." in subject else (name.partition("__")[0],)


# -- records ------------------------------------------------------------------------------------------------------------------


def of_records(records: Iterable[Record]) -> list[Entry]:
    """Benches and checks of records, as those of a card elsewhere: one entry a day, kind and subject."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.kind in ("bench", "check") and not record.subject.startswith(("peer:", "ceiling:")):
            groups.setdefault((_utc(record.at)[:10], record.kind, record.subject), []).append(record)
    entries = []
    for (_, kind, subject), rows in groups.items():
        at, op, device = _utc(rows[0].at), rows[0].op, rows[0].card
        if kind == "bench":
            entries.append(Entry(at, "record", (subject,), (op,), {"cases": len(rows)}, tuple(r for x in rows if (r := row_of(x))), device))
        else:
            right = sum(x.error.ok for x in rows)
            entries.append(Entry(at, "check", (subject,), (op,), {"ok": right, "wrong": len(rows) - right}, said=f"recorded, {device}"))
    return entries


def _utc(at: str) -> str:
    when = datetime.fromisoformat(at)
    return (when if when.tzinfo is None else when.astimezone(UTC)).isoformat(timespec="seconds")


def row_of(record: Record) -> Row | None:
    """A bench record in short; None where it has no kernel time."""
    clock = record.clocks.get("kernel") or record.clocks.get("sustained")
    if clock is None:
        return None
    slowest = min((v.speed for v in record.versus if v.name.startswith("peer:")), default=0.0)
    return Row(record.subject, record.case, round(clock.median * 1e6, 3), round(slowest, 4))


# -- notes --------------------------------------------------------------------------------------------------------------------


def notes(folder: Path, encoding: str = "") -> tuple[list[Note], list[str]]:
    """The notes of a folder, and the names of Markdown files in it that begin with no date. `encoding`: of files that are not UTF-8 and
    have no mark.

    Raises ValueError with the file's name for one that cannot be read as text, or a name of an encoding that is none."""
    if encoding:
        try:
            "a".encode(encoding)
        except (LookupError, ValueError):
            raise ValueError(f"--encoding {encoding}: there is no such encoding; as gb18030, big5, shift_jis, latin-1, utf-16") from None
    dated, undated = [], []
    for path in sorted(folder.glob("*.md")) if folder.is_dir() else ():
        named = _DATED.fullmatch(path.stem)
        if named is None or not _is_date(named[1]):
            undated.append(path.name)
            continue
        dated.append(
            Note(named[1], printable(named[2] or "").replace("-", " ").replace("_", " "), text_of(path, encoding), printable(path.name))
        )
    return dated, undated


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def text_of(path: Path, encoding: str = "") -> str:
    """A note as text. Raises ValueError, OSError."""
    if path.stat().st_size > LONGEST:
        raise ValueError(f"{path}: a note has {LONGEST:,} bytes at most")
    content = regular(path)
    tried = next((e for mark, e in MARKS if content.startswith(mark)), "utf-8")
    for one in dict.fromkeys((tried, encoding or tried)):
        try:
            text = content.decode(one)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return printable(text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\N{ZERO WIDTH NO-BREAK SPACE}"))
    told = f"neither UTF-8 nor {encoding}" if encoding else "not UTF-8"
    raise ValueError(f"{path} is {told}: save it as UTF-8, or say what it is by --encoding (gb18030, big5, latin-1, ...)")


def select(every: Sequence[Day], day: str | None) -> list[Day]:
    """That day, or all. Raises ValueError for what is no date, or a day on which nothing was done."""
    if day is None:
        return list(every)
    if not _is_date(day):
        raise ValueError(f"{day!r} is no date; it is written 2026-11-29")
    chosen = [d for d in every if d.day == day]
    if not chosen:
        near = f"; the last days are {', '.join(d.day for d in every[-3:])}" if every else ""
        raise ValueError(f"there is nothing of {day}{near}")
    return chosen
