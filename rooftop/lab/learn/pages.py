"""The course as pages of the report: one of the graph, and one for each ladder that has puzzles. They ask first; what came is folded away.

A page has no source of a rung: it links to the ladder's own page, which has them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rooftop.lab.learn import course, kinds, lessons, puzzles, session
from rooftop.lab.learn.judge import KINDS as VERDICTS
from rooftop.lab.learn.puzzles import Puzzle
from rooftop.lab.learn.questions import Prediction, Question, shown
from rooftop.lab.report.drawings.canvas import Canvas, Picture, length
from rooftop.lab.report.model import LadderPage, RungRow, SiteData
from rooftop.lab.report.site import writer

FILE = "learn.html"
A_RUNG = 2  # questions of a rung that a page shows
AROUND = 3  # lines around a gap
SAID_LONG = 120  # characters of a verdict


def file_of(ladder: str) -> str:
    return f"learn-{ladder}.html"


@dataclass(frozen=True)
class Choice:
    """A filling of a puzzle, with what the judge says of it."""

    text: str
    right: bool
    verdict: str


@dataclass(frozen=True)
class PuzzlePage:
    puzzle: Puzzle
    above: str
    below: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Lesson:
    """A rung as a page shows it. `asks`: with what came, where anything has; `drawings`: anchors on the ladder's page."""

    row: RungRow
    launch: str
    asks: tuple[tuple[lessons.Ask, Prediction], ...]
    picture: Picture | None
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
        drawn = tuple(anchor for anchor, _ in lessons.drawings(page, row))
        found.append(Lesson(row, lessons.launch(row, page), tuple(answers), lessons.picture(before, row), drawn, tuple(mine), shown_puzzles))
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
    said = {w.filling.text: f"{VERDICTS[w.kind]}. {_short(w.said)}" for w in puzzle.wrong}
    choices = tuple(Choice(_dedented(t), t not in said, said.get(t, VERDICTS["right"])) for t in session.choices(puzzle))
    lines = session.context(puzzle, AROUND)
    gap = next(i for i, line in enumerate(lines) if line.strip().startswith(">>>"))
    return PuzzlePage(puzzle, "\n".join(lines[:gap]), "\n".join(lines[gap + 1 :]), choices)


def _short(said: str) -> str:
    """A verdict without the thread that showed it, and cut: the terminal has it whole."""
    text = said.partition(" [block ")[0]
    return text if len(text) <= SAID_LONG else f"{text[:SAID_LONG].rsplit(' ', 1)[0]} …"


def _dedented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines()) or "(nothing)"


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
            (ax, ay, aw), (bx, by, _) = place[before], place[node.name]
            canvas.line(ax + aw, ay + HIGH / 2, bx, by + HIGH / 2, "thin")
    for node in nodes:
        at, top, wide = place[node.name]
        canvas.box(at, top, wide, HIGH, "c" if node.topic else "a", node.name)
    return canvas.picture(f"{len(nodes)} ladders and topics, each right of what it needs")


def _height(node: course.Node, place: dict[str, tuple[float, float, float]]) -> tuple[float, str]:
    """The mean height of what a node needs, so that lines are short."""
    tops = [place[n][1] for n in node.after if n in place]
    return (sum(tops) / len(tops) if tops else 0.0), node.name


# -- writing ------------------------------------------------------------------------------------------------------------------


def write(out: Path, site: SiteData, say: Callable[[str], None] = lambda text: None) -> None:
    """The pages of the course, beside the others of the report, whose styles they share. Those of ladders that have no puzzles any more go."""
    page = writer(out, site, say)
    have = [x for x in site.ladders if puzzles.puzzles(x.name)]
    for ladder in have:
        found, whole = lessons_of(ladder)
        page(file_of(ladder.name), "learn.html.j2", page=ladder, lessons=found, whole=whole, needs=course.node(ladder.name).after, value=shown)
    page(FILE, "course.html.j2", nodes=list(course.graph().values()), picture=graph(), paged={x.name for x in have}, count=_counts(have), file_of=file_of)
    for path in out.glob("learn-*.html"):
        if path.name not in {file_of(x.name) for x in have}:
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
