"""The course as pages of the report: one of the graph, and one for each ladder that has puzzles. They ask first; what came is folded away.

Of a rung's source a page has the changed lines alone, in which the puzzles are gaps: the ladder's own page has it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.lab.learn import course, kinds, lessons, puzzles, session
from rooftop.lab.learn.judge import KINDS as VERDICTS
from rooftop.lab.learn.puzzles import Puzzle
from rooftop.lab.learn.questions import Prediction, Question, shown
from rooftop.lab.learn.words import ENGLISH, NAMES, _, html, speaking, spoken
from rooftop.lab.learn.words import languages as known
from rooftop.lab.report.data import LadderPage, RungRow, SiteData
from rooftop.lab.report.drawings.canvas import Canvas, Picture, length
from rooftop.lab.report.site import listing, stretches, writer

FILE = "learn.html"
A_RUNG = 2  # questions of a rung that a page shows
AROUND = 1  # unchanged lines around a change
LONG, BESIDE = 32, 3  # lines of a change; around a gap beyond them
SAID_LONG = 120  # characters of a verdict


def file_of(ladder: str, language: str = "") -> str:
    """The page of a ladder, or of "" that of the graph. `language`: that which is spoken where it is ""."""
    name = f"learn-{ladder}.html" if ladder else FILE
    return name if (language or spoken()) == ENGLISH else f"{language or spoken()}-{name}"


@dataclass(frozen=True)
class Choice:
    """A filling of a puzzle, with what the judge says of it."""

    text: str
    right: bool
    verdict: str


@dataclass(frozen=True)
class PuzzlePage:
    puzzle: Puzzle
    choices: tuple[Choice, ...]

    @property
    def short(self) -> str:
        return self.puzzle.name.rpartition("/")[2]


@dataclass(frozen=True)
class Lesson:
    """A rung as a page shows it. `changed`, `more`: see the function; `asks`: with what came, where anything has; `drawings`: anchors on
    the ladder's page."""

    row: RungRow
    launch: str
    changed: tuple[tuple[str, int, str], ...]
    more: int
    asks: tuple[tuple[lessons.Ask, Prediction], ...]
    picture: Picture | None
    timeline: lessons.Timeline | None
    drawings: tuple[str, ...]
    questions: tuple[Question, ...]
    puzzles: tuple[PuzzlePage, ...]


def lessons_of(page: LadderPage) -> tuple[list[Lesson], list[Question]]:
    """The lessons of a ladder, and the questions about all of it."""
    material = kinds.Material(page, puzzles.puzzles(page.name))
    asked = kinds.questions(material)
    found = []
    for i, row in enumerate(page.rungs):
        before = page.rungs[i - 1] if i else None
        answers = [(a, p) for a in lessons.asks(page, row) if (p := lessons.answer(a, page, row)) is not None]
        mine = _mixed([q for q in lessons.questions_of(asked, row.name) if q.kind not in SAID], A_RUNG)
        shown_puzzles = tuple(_puzzle(p) for p in lessons.puzzles_of(material.puzzles, row.name))
        lines, more = changed(before, row, shown_puzzles)
        drawn = tuple(anchor for anchor, _ in lessons.drawings(page, row))
        what = lessons.picture(before, row), lessons.timeline(row)
        found.append(Lesson(row, lessons.launch(row, page), lines, more, tuple(answers), *what, drawn, tuple(mine), shown_puzzles))
    return found, _mixed([q for q in asked if q.subject == page.name], 3 * A_RUNG)


SAID = ("broken", "barrier", "change", "gain", "sectors", "wavefronts")  # what the puzzles and the predictions of the page ask already


def _mixed(found: Sequence[Question], most: int) -> list[Question]:
    """At most so many, of as many kinds as there are."""
    kinds_seen: dict[str, int] = {}
    ranked: list[tuple[int, int, Question]] = []
    for q in found:
        kinds_seen[q.kind] = kinds_seen.get(q.kind, 0) + 1
        ranked.append((kinds_seen[q.kind], len(ranked), q))
    return [q for _, _, q in sorted(ranked, key=lambda r: r[:2])[:most]]


def _puzzle(puzzle: Puzzle) -> PuzzlePage:
    said = {w.filling.text: _("{verdict}. {said}", verdict=_(VERDICTS[w.kind]), said=_short(w.said)) for w in puzzle.wrong}
    choices = tuple(Choice(_dedented(t), t not in said, said.get(t, _(VERDICTS["right"]))) for t in session.choices(puzzle))
    return PuzzlePage(puzzle, choices)


def changed(before: RungRow | None, row: RungRow, asked: Sequence[PuzzlePage]) -> tuple[tuple[tuple[str, int, str], ...], int]:
    """The lines that a rung changes on the rung before, or all of the first one's, and how many are left out of a long change: those beyond
    LONG that stand beside no gap. A kind is that of the listing, or the short name of a puzzle, whose lines are left out: a gap."""
    gaps = {n: p.short for p in reversed(asked) for n in range(p.puzzle.blank.first, p.puzzle.blank.last + 1)}
    lines = [
        (gaps.get(x.number, x.kind) if x.kind == "added" else x.kind, x) for x in listing(before, row, AROUND).lines if x.kind != "far"
    ]
    at = [i for i, (kind, _) in enumerate(lines) if kind in gaps.values()]
    kept = [line for i, line in enumerate(lines) if i < LONG or any(abs(i - gap) <= BESIDE for gap in at)]
    found = ((kind, from_, f"? {kind}" if kind in gaps.values() else text) for kind, from_, text in stretches(kept))
    return tuple(found), len(lines) - len(kept)


def _short(said: str) -> str:
    """A verdict without the thread that showed it, and cut: the terminal has it whole."""
    text = said.partition(" [block ")[0]
    return text if len(text) <= SAID_LONG else f"{text[:SAID_LONG].rsplit(' ', 1)[0]} …"


def _dedented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines()) or _("(nothing)")


# -- the graph --------------------------------------------------------------------------------------------------------------

HIGH, GAP, BETWEEN = 24.0, 10.0, 24.0  # pixels of a box, between two of a column, between columns


def graph() -> Picture:
    """What comes before what, from left to right: ladders in blue, topics in green."""
    nodes = list(course.graph().values())
    columns: dict[int, list[course.Node]] = {}
    for node in nodes:
        columns.setdefault(node.level, []).append(node)
    canvas, x = Canvas(), 0.0
    place: dict[str, tuple[float, float, float]] = {}  # left, top, width
    for level in sorted(columns):
        column = sorted(columns[level], key=lambda n: _height(n, place))
        wide = max(length(n.name) for n in column) + 10
        for i, node in enumerate(column):
            place[node.name] = (x, i * (HIGH + GAP), wide)
        x += wide + BETWEEN
    for node in nodes:
        for before in node.after:
            (ax, ay, aw), (bx, by, _wide) = place[before], place[node.name]
            canvas.line(ax + aw, ay + HIGH / 2, bx, by + HIGH / 2, "thin")
    for node in nodes:
        at, top, wide = place[node.name]
        canvas.box(at, top, wide, HIGH, "c" if node.topic else "a", node.name)
    return canvas.picture(_("{n} ladders and topics, each right of what it needs", n=len(nodes)))


def _height(node: course.Node, place: dict[str, tuple[float, float, float]]) -> tuple[float, str]:
    """The mean height of what a node needs, so that lines are short."""
    tops = [place[n][1] for n in node.after if n in place]
    return (sum(tops) / len(tops) if tops else 0.0), node.name


# -- writing ------------------------------------------------------------------------------------------------------------------


def write(out: Path, site: SiteData, say: Callable[[str], None] = lambda text: None, languages: Sequence[str] = (ENGLISH,)) -> None:
    """The pages of the course, beside the others of the report, whose styles they share, in each of these languages. Those of ladders that
    have no puzzles any more go, and those in other languages. Raises ValueError for a language that does not exist."""
    page, made = writer(out, site, say), set[str]()
    have = [x for x in site.ladders if puzzles.puzzles(x.name)]
    for language in languages:
        with speaking(language):
            for ladder in (None, *have):
                name = ladder.name if ladder else ""
                others = [(n, NAMES.get(n, n), file_of(name, n)) for n in languages if n != language]
                about: dict[str, Any] = {
                    "_": html, "said": _, "language": language, "others": others, "course": file_of(""), "file_of": file_of
                }
                made.add(file_of(name))
                if ladder is None:
                    about |= {
                        "nodes": list(course.graph().values()), "picture": graph(), "paged": {x.name for x in have}, "count": _counts(have)
                    }
                    page(file_of(""), "course.html.j2", **about)
                else:
                    found, whole = lessons_of(ladder)
                    needs = course.node(name).after
                    page(file_of(name), "learn.html.j2", page=ladder, lessons=found, whole=whole, needs=needs, value=shown, **about)
    for path in (p for language in known() for name in ("", "*") for p in out.glob(file_of(name, language))):
        if path.name not in made:
            path.unlink()


def _counts(ladders: Sequence[LadderPage]) -> dict[str, int]:
    return {x.name: len(puzzles.puzzles(x.name)) for x in ladders}


# -- in Markdown --------------------------------------------------------------------------------------------------------------


def texts(ladders: Sequence[LadderPage]) -> dict[str, str]:
    """The same in short, for terminals and agents: what the course is, and the puzzles of each ladder by name."""
    have = [x for x in ladders if puzzles.puzzles(x.name)]
    found = {f"learn-{x.name}.md": "".join(_text(x)) for x in have}
    lines = [f"- `{n.name}`: {n.title}{f' (after {chr(44).join(n.after)})' if n.after else ''}\n" for n in course.graph().values()]
    found["learn.md"] = "# Learn\n\nA rung is a lesson: `rooftop learn LADDER`. What comes before what:\n\n" + "".join(lines)
    return found


def _text(page: LadderPage) -> Iterator[str]:
    yield f"# Learn: {page.title}\n\nLessons with predictions: `rooftop learn {page.name}`; questions: `rooftop learn {page.name} --quiz`.\n\n## Puzzles\n\n"
    for puzzle in puzzles.puzzles(page.name):
        yield f"- `{puzzle.name}`: line {puzzle.blank.first} of `{puzzle.blank.rung}`: `rooftop learn --puzzle {puzzle.name}`\n"
