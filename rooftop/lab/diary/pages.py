"""The pages of a diary: of each day Markdown and HTML with charts, and an index. The same days give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from rooftop.core import whole_file
from rooftop.core.texts import line, markdown
from rooftop.lab.diary.days import Day, Note
from rooftop.lab.diary.log import Entry, Row
from rooftop.lab.report import document, site
from rooftop.lab.report.drawings.canvas import COLOURS, Canvas, Picture
from rooftop.lab.report.markup import number, shorter

MADE = "<!-- made by rooftop diary; your notes are files of their own -->"
INDEX = "index"
WORDS: Mapping[str, str] = {  # every text of the pages, in one place
    "title": "Diary", "when": "time (UTC)", "what": "what", "subject": "subject", "result": "result", "notes": "Notes", "day": "day",
    "days": "Days",
    "nothing": "Only notes on this day.", "runs": "what was done", "benches": "speed beside the best peer: the line is 1",
    "no_peer": "no peer", "case": "case", "time": "kernel time", "against": "of the best peer's speed", "device": "recorded on",
}
KINDS: Mapping[str, tuple[str, str]] = {  # kind of an entry -> one, several
    "check": ("check", "checks"), "bench": ("bench", "benches"), "record": ("recorded bench", "recorded benches"),
    "simt": ("simulation", "simulations"),
    "place": ("placing", "placings"), "diagnose": ("diagnosis", "diagnoses"), "predictions": ("prediction", "predictions"),
    "answers": ("quiz", "quizzes"), "puzzles": ("puzzle", "puzzles"), "lessons": ("lesson", "lessons"),
}
FIGURES: Mapping[str, str] = {  # a figure of an entry -> how it is said
    "ok": "{} right", "wrong": "{} wrong", "error": "{} with an error", "skipped": "{} skipped", "cases": "{} cases", "faults": "{} faults",
    "sectors": "{} sectors", "wavefronts": "{} wavefronts", "blocks": "{} blocks", "launches": "{} kinds of launches",
    "distance": "distance {}", "us": "{} µs", "points": "{} points of 100",
    "count": "{} in all", "right": "{} right",
}
ZEROS = ("faults", "right", "points", "ok")  # said though they are 0
GROUPS: Mapping[str, tuple[str, ...]] = {  # what a chart counts together: it has a colour for each
    "checks": ("check",), "benches": ("bench", "record"), "simulations": ("simt",), "diagnoses": ("diagnose", "place"),
    "learning": ("predictions", "answers", "puzzles", "lessons"),
}
SHOWN, DAYS = 12, 60  # bars of the chart of benches; the last days that the index draws
SUBJECTS = 3  # that a row names
LABEL, BAR, STEP = 215.0, 270.0, 20.0  # pixels
LETTERS = 34  # of a label


class DiaryError(ValueError):
    """A page cannot be written where it should."""


def write(out: Path, days: Sequence[Day], every: Sequence[Day]) -> list[Path]:
    """The pages of `days`, and the index of `every` day. Raises DiaryError rather than replace a file that is none of its own, OSError."""
    texts: dict[str, str] = {}
    for day in days:
        texts[f"{day.day}.md"], texts[f"{day.day}.html"] = text(day), page(day)
    texts[f"{INDEX}.md"], texts[f"{INDEX}.html"] = index_text(every), index_page(every)
    for name in texts:
        if (path := out / name).exists() and not _own(path):
            raise DiaryError(f"{path} is no page of the diary's: it is left as it is; name another folder by --out")
    out.mkdir(parents=True, exist_ok=True)
    for name in site.SHARED:
        whole_file.write(out / name, (site.TEMPLATES / name).read_text(encoding="utf-8"))
    for name, made in texts.items():
        whole_file.write(out / name, made)
    return [out / name for name in texts]


def _own(path: Path) -> bool:
    return path.is_file() and MADE.encode() in path.read_bytes()


# -- what an entry says -----------------------------------------------------------------------------------------------------


def kinds(found: Mapping[str, int]) -> str:
    """`3 checks, 1 bench`."""
    order = [k for k in KINDS if k in found] + [k for k in found if k not in KINDS]
    return ", ".join(f"{found[kind]} {KINDS.get(kind, (kind, kind))[found[kind] != 1]}" for kind in order)


def subjects(entry: Entry) -> str:
    more = len(entry.subjects) - SUBJECTS
    return ", ".join(entry.subjects[:SUBJECTS]) + (f" and {more} more" if more > 0 else "")


def result(entry: Entry) -> str:
    numbers = [FIGURES.get(n, f"{n} {{}}").replace("{}", _whole(v)) for n, v in entry.figures.items() if v or n in ZEROS]
    return "; ".join(x for x in (", ".join(numbers), entry.said) if x)


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else number(value, 3)


def against(row: Row) -> str:
    return f"{row.against:.2f}x" if row.against else WORDS["no_peer"]


# -- Markdown ---------------------------------------------------------------------------------------------------------------


def text(day: Day) -> str:
    return "\n".join(_text(day)) + "\n"


def _text(day: Day) -> Iterator[str]:
    yield from (MADE, "", f"# {WORDS['title']}: {day.day}", "", f"{kinds(day.kinds)}." if day.entries else WORDS["nothing"])
    for heading, entries in day.sections.items():
        yield from (
            "", f"## {heading}", "", f"| {WORDS['when']} | {WORDS['what']} | {WORDS['subject']} | {WORDS['result']} |", "|---|---|---|---|"
        )
        for entry in entries:
            cells = (entry.at[11:16], KINDS.get(entry.kind, (entry.kind,))[0], subjects(entry), result(entry))
            yield f"| {' | '.join(markdown(c) for c in cells)} |"
        if rows := [r for e in entries for r in e.rows]:
            yield from ("", f"| {WORDS['subject']} | {WORDS['case']} | {WORDS['time']} | {WORDS['against']} |", "|---|---|---:|---:|")
            for row in rows:
                yield f"| {markdown(row.subject)} | {markdown(row.case)} | {number(row.us, 4)} µs | {against(row)} |"
    if day.notes:
        yield from ("", f"## {WORDS['notes']}")
        for note in day.notes:
            yield from ("", f"### {note.title or note.name}", "", lower(note.text).strip())


def index_text(days: Sequence[Day]) -> str:
    lines = [MADE, "", f"# {WORDS['title']}", "", f"| {WORDS['day']} | {WORDS['runs']} | {WORDS['notes']} |", "|---|---|---|"]
    for day in reversed(days):
        lines.append(f"| [{day.day}]({day.day}.md) | {kinds(day.kinds)} | {markdown(', '.join(n.title or n.name for n in day.notes))} |")
    return "\n".join(lines) + "\n"


def lower(note: str) -> str:
    """A note with its headings below those of the page; code stays as it is."""
    parts = re.split(r"^(```.*?^```)", note, flags=re.S | re.M)
    return "".join(p if i % 2 else re.sub(r"^#{1,6} ", "### ", p, flags=re.M) for i, p in enumerate(parts))


# -- HTML -----------------------------------------------------------------------------------------------------------------------


def page(day: Day) -> str:
    notes = [(n.title or n.name, _html(n)) for n in day.notes]
    return _rendered(day=day, title=f"{WORDS['title']}: {day.day}", lead=f"{kinds(day.kinds)}." if day.entries else WORDS["nothing"], notes=notes,
                     pictures=[p for p in (_sections(day), _benches(day)) if p], days=())


def _html(note: Note) -> Markup:
    return document.html(lower(note.text))


def index_page(days: Sequence[Day]) -> str:
    whole: dict[str, int] = {}
    for day in days:
        for kind, n in day.kinds.items():
            whole[kind] = whole.get(kind, 0) + n
    picture = stacked([(d.day, d.kinds) for d in days if d.entries][-DAYS:])
    return _rendered(day=None, title=WORDS["title"], lead=f"{kinds(dict(sorted(whole.items())))}." if whole else "", notes=[],
                     pictures=[picture] if picture else [], days=list(reversed(days)))


def _rendered(**about: object) -> str:
    env = site.environment()
    env.globals.update(words=WORDS, names=KINDS, kinds=kinds, subjects=subjects, result=result, against=against, made=Markup(MADE))
    return shorter(env.get_template("diary.html.j2").render(site=None, **about)).rstrip() + "\n"


def _sections(day: Day) -> Picture | None:
    counts: list[tuple[str, dict[str, int]]] = []
    for heading, entries in day.sections.items():
        held: dict[str, int] = {}
        for entry in entries:
            held[entry.kind] = held.get(entry.kind, 0) + 1
        counts.append((heading, dict(sorted(held.items()))))
    return stacked(counts)


def stacked(rows: Sequence[tuple[str, Mapping[str, int]]]) -> Picture | None:
    """A bar a row: how often each kind of thing was done."""
    if not rows:
        return None
    scale = BAR / max(sum(held.values()) for _, held in rows)
    group = {kind: name for name, held in GROUPS.items() for kind in held}
    canvas = Canvas()
    for i, (name, held) in enumerate(rows):
        canvas.text(0, i * STEP + 13, name)
        x = LABEL
        for one, colour in zip((*GROUPS, ""), (*COLOURS, "paper"), strict=True):  # a kind of a later version is in no group
            inside = {kind: n for kind, n in held.items() if group.get(kind, "") == one}
            if n := sum(inside.values()):
                canvas.box(x, i * STEP, n * scale, STEP - 4, colour, str(n), kinds(inside))
                x += n * scale
    for i, (name, colour) in enumerate(zip(GROUPS, COLOURS, strict=True)):
        x, y = (i % 4) * 120.0, len(rows) * STEP + 10 + (i // 4) * STEP
        canvas.box(x, y, 12, 12, colour)
        canvas.text(x + 18, y + 11, name)
    return canvas.picture(f"{WORDS['runs']}: " + "; ".join(f"{name}: {kinds(held)}" for name, held in rows))


def _benches(day: Day) -> Picture | None:
    """The cases that were timed beside a peer, the slowest beside it first."""
    rows = sorted((r for e in day.entries for r in e.rows if r.against > 0), key=lambda r: (r.against, r.subject, r.case))[:SHOWN]
    if not rows:
        return None
    canvas, scale = Canvas(), BAR / max(1.0, *(r.against for r in rows))
    for i, row in enumerate(rows):
        canvas.text(0, i * STEP + 13, line(f"{row.subject}, {row.case}", LETTERS))
        about = f"{row.subject}, {row.case}: {number(row.us, 4)} µs"
        canvas.box(LABEL, i * STEP, row.against * scale, STEP - 4, "a" if row.against >= 1 else "b", f"{row.against:.2f}x", about)
    canvas.line(LABEL + scale, 0, LABEL + scale, len(rows) * STEP)
    return canvas.picture(f"{WORDS['benches']}; " + "; ".join(f"{r.subject}, {r.case}: {r.against:.2f}x" for r in rows))
