"""The course in the terminal: a lesson, a quiz, a puzzle. Everything typed goes through `ask`, everything shown through `say`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rooftop.lab.learn import lessons, puzzles
from rooftop.lab.learn.blanks import code_of
from rooftop.lab.learn.counting import Counting
from rooftop.lab.learn.judge import COUNTED
from rooftop.lab.learn.judge import KINDS as VERDICTS
from rooftop.lab.learn.kinds import Material
from rooftop.lab.learn.kinds import questions as questions_of
from rooftop.lab.learn.progress import Progress
from rooftop.lab.learn.puzzles import Court, JudgeError, Puzzle, Said
from rooftop.lab.learn.questions import AnswerError, Question, number_of, points
from rooftop.lab.learn.words import ENGLISH, _, spoken
from rooftop.lab.report import ladder_text
from rooftop.lab.report.data import LadderPage, RungRow

WIDTH, NARROWEST = 110, 30  # characters of a line of words
A_QUIZ = 5  # questions
A_TEST = 4  # questions of a test of what is said to be known, of which all but one must be right
STOP = ("s", "stop", "q", "quit", "exit")


class Stopped(Exception):
    """The learner stops, or there is nothing more to read."""


@dataclass
class Session:
    """`ask` shows a prompt and gives what was typed, None at the end of the input; `say` shows a line, `width` characters at most where
    words allow it."""

    progress: Progress
    ask: Callable[[str], str | None]
    say: Callable[[str], None]
    width: int = WIDTH

    def typed(self, prompt: str) -> str:
        """Raises Stopped."""
        text = self.ask(prompt)
        if text is None or text.strip().lower() in STOP:
            raise Stopped
        return text.strip()

    def _filled(self, text: str, first: str, later: str) -> str:
        if spoken() != ENGLISH:
            return first + text  # a terminal breaks what has no spaces
        width = max(self.width, NARROWEST)
        return textwrap.fill(text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)

    def wrapped(self, text: str, indent: str = "") -> None:
        for line in text.splitlines():
            if line.lstrip().startswith(("+", "-", "@")) or not line.strip():
                self.say(indent + line)
            else:
                self.say(self._filled(line, indent, indent))

    # -- a lesson ---------------------------------------------------------------------------------------------------------

    def lesson(self, material: Material, rung: str) -> None:
        """A rung: idea, launch and code, then predictions, then what came. Counts that are missing are counted while the learner thinks."""
        page = material.page
        before, row = lessons.row_of(page, rung)
        with Counting(page, row) as counting:
            self._open(page, before, row)
            given = [(a, self._predicted(a.text, a.unit)) for a in lessons.asks(page, row)]
            if not counting.done:
                self.say(_("counting in the simulator ..."))
            row = counting.row()
        self.say("")
        for one, theirs in given:
            found = lessons.answer(one, page, row)
            if found is None:
                said = (
                    row.counts.why if row.counts and row.counts.why and one.name != "speedup"
                    else _("not recorded with the kernel as it is")
                )
                self.wrapped(_("{question} No answer: {why}.", question=one.text, why=said))
                continue
            self.wrapped(f"{one.text} {found.told(theirs)}")
            if theirs is not None:
                self.progress.predicted(row.name, one.name, theirs, found.found, points(theirs, found.found))
        self._results(page, before, row)
        self.progress.read(row.name)

    def _open(self, page: LadderPage, before: RungRow | None, row: RungRow) -> None:
        place = [r.name for r in page.rungs].index(row.name) + 1
        self.say(_("{rung}: lesson {n} of {all} of {title}", rung=row.name, n=place, all=len(page.rungs), title=_(page.title)))
        self.say("")
        if before is None:
            self.wrapped(_(page.intro))
            self.say("")
        self.wrapped(_(row.idea or "The idea is not written down."))
        if said := lessons.launch(row, page):
            self.wrapped(said)
        self.say("")
        lines = lessons.code(row) if before is None else ladder_text.difference(before, row)
        for line in lines or [_("The source is that of the rung before.")]:
            self.say(line)
        self.say("")

    def _predicted(self, text: str, unit: str) -> float | None:
        """A number, or None where the learner would rather not say."""
        while True:
            typed = self.typed(_("What do you expect? {question} A number of {unit}, Enter to skip, s to stop: ", question=text, unit=unit))
            if not typed:
                return None
            try:
                return number_of(typed)
            except AnswerError as error:
                self.say(str(error))

    def _results(self, page: LadderPage, before: RungRow | None, row: RungRow) -> None:
        for line in lessons.notes(before, row):
            self.say(f"  {line}")
        for anchor, about in lessons.drawings(page, row):
            self.wrapped(_("drawn on its page ({place} of rooftop report): {about}", place=f"{page.file}#{anchor}", about=about))
        for device in page.devices:
            found = row.cells.get((device.name, page.headline))
            if found is not None and found.kernel is not None and found.stale is None:
                share = "" if found.share is None else _(", {percent} % of the roof", percent=f"{100 * found.share:.0f}")
                self.say(_("recorded on the {card}: {time} µs", card=device.short, time=f"{found.seconds * 1e6:,.1f}") + share)
        if row.limit:
            self.wrapped(_("What limits it now: {limit}", limit=_(row.limit)))

    # -- a quiz -----------------------------------------------------------------------------------------------------------

    def quiz(self, asked: Sequence[Question]) -> tuple[int, int]:
        """(right, answered). Each answer is kept with the time at which the question comes again."""
        right = answered = 0
        for n, question in enumerate(asked, 1):
            self.say("")
            self.wrapped(_("{n} of {all}. {question}", n=n, all=len(asked), question=question.text))
            if question.code:
                self.wrapped(question.code, "      ")
            for letter, choice in zip("abcdefgh", question.choices, strict=False):
                self.say(self._filled(f"{letter}) {choice}", "   ", "      "))
            try:
                given = self._answer(question)
            except Stopped:
                break
            good = question.right(given)
            right, answered = right + good, answered + 1
            due = self.progress.answered(question.id, question.kind, question.subject, given, good)
            text = "Right. {solution}. {explanation}" if good else "No. {solution}. {explanation}"
            self.wrapped(_(text, solution=question.solution, explanation=question.explanation))
            self.wrapped(_("({source}; asked again on {due})", source=question.source, due=due))
        if answered:
            self.say("")
            self.say(_("{right} of {answered} right", right=right, answered=answered))
        return right, answered

    def _answer(self, question: Question) -> float:
        while True:
            typed = self.typed(
                _("Your answer (in {unit}), s to stop: ", unit=question.unit) if question.unit
                and not question.choices else _("Your answer, s to stop: ")
            )
            try:
                return question.read(typed)
            except AnswerError as error:
                self.say(str(error))

    # -- a puzzle ---------------------------------------------------------------------------------------------------------

    def puzzle(self, puzzle: Puzzle, folder: Path) -> bool:
        """A file with a gap, which the learner fills in an editor, or one of four fillings to choose from; whether it was solved."""
        path = written(puzzle, folder)
        self.say(_("{puzzle}: what is missing in {path}? {place}", puzzle=puzzle.name, path=path, place=_place(puzzle)))
        for line in context(puzzle):
            self.say(f"    {line}")
        hints = 0
        with Court() as court:
            while True:
                typed = self.typed(
                    _("Edit the file, then Enter: it is judged. h: a hint, c: choose among four fillings, s: stop: ")
                ).lower()
                if typed == "h":
                    self.wrapped(puzzle.hints()[min(hints, 2)], "  ")
                    hints = min(hints + 1, 3)
                elif typed == "c":
                    text = self._chosen(puzzle)
                    if self.judged(puzzle, puzzle.blank.filled(puzzle.source, text), hints, court):
                        return True
                elif not typed:
                    try:
                        text = puzzles.solution(path)
                    except (OSError, ValueError) as error:
                        self.say(f"{path} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error))
                        continue
                    if self.judged(puzzle, text, hints, court):
                        return True
                else:
                    self.say(_("{typed} is none of these: Enter, h, c or s", typed=repr(typed[:30])))

    def _chosen(self, puzzle: Puzzle) -> str:
        texts = choices(puzzle)
        for letter, text in zip("abcd", texts, strict=True):
            self.say(f"  {letter})")
            for line in text.splitlines() or [""]:
                self.say(f"      {line.strip() or _('(nothing)')}")
        while True:
            typed = self.typed(_("Which one, a to d? ")).lower()
            if typed in ("a", "b", "c", "d"):
                return texts["abcd".index(typed)]
            self.say(_("{typed} is none of the four: type a, b, c or d", typed=repr(typed[:30])))

    def judged(self, puzzle: Puzzle, text: str, hints: int, court: Court) -> bool:
        """Judge a solution, keep and say the verdict."""
        if puzzles.MARK in text and text == puzzle.exercise:
            self.say(_("The file is as it was: there is nothing in the gap yet."))
            return False
        self.say(_("judging: some seconds ..."))
        try:
            verdict = court.judge(puzzle.blank.rung, text)
        except JudgeError as error:
            self.say(_("it cannot be judged here: {why}", why=error))
            return False
        self.progress.tried(puzzle.name, verdict.kind, verdict.said, hints)
        for line in told(verdict):
            self.wrapped(line)
        return verdict.kind == "right"


def told(verdict: Said) -> list[str]:
    """A verdict in words."""
    if verdict.kind == "right":
        counts = ", ".join(f"{n:,} {_(COUNTED[name])}" for name, n in verdict.counts.items() if n)
        return [_("Right, and as good as the rung's: {counts}, at {case}.", counts=counts, case=verdict.case)]
    return [_("Not yet: {verdict}.", verdict=_(VERDICTS[verdict.kind])), verdict.said]


def _place(puzzle: Puzzle) -> str:
    first, last = puzzle.blank.first, puzzle.blank.last
    return _("(line {first})", first=first) if first == last else _("(lines {first} to {last})", first=first, last=last)


def written(puzzle: Puzzle, folder: Path) -> Path:
    """The file of a puzzle in a folder: written where it is not there; a file that is stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{puzzle.name.replace('/', '_')}{puzzle.blank.language}"
    if not path.exists():
        path.write_text(puzzle.exercise, encoding="utf-8")
    return path


def context(puzzle: Puzzle, lines: int = 6) -> list[str]:
    """The lines around the gap, without those of a head."""
    text, blank = puzzle.source.splitlines(), puzzle.blank
    head = next((i + 1 for i, line in enumerate(text) if "*/" in line), 0) if blank.language == ".cu" else 0
    return [*text[max(blank.first - 1 - lines, head) : blank.first - 1], f"    >>> {puzzles.MARK}", *text[blank.last : blank.last + lines]]


def choices(puzzle: Puzzle) -> list[str]:
    """The right filling and the three wrong ones, in an order that follows from the puzzle."""
    right = "\n".join(code_of(line, puzzle.blank.language) for line in puzzle.blank.text.splitlines())  # a comment would tell
    texts = [right, *(w.filling.text for w in puzzle.wrong)]
    Random(puzzle.blank.key("")).shuffle(texts)
    return texts


def chosen(asked: Sequence[Question], progress: Progress, most: int, draw: Random) -> list[Question]:
    """Questions for a quiz: those that come again today, then some that were never asked, of as many kinds as there are."""
    due = set(progress.due())
    known = progress.asked()
    again = [q for q in asked if q.id in due]
    fresh = [q for q in asked if q.id not in known]
    draw.shuffle(fresh)
    seen: dict[str, int] = {}
    order: dict[str, int] = {}
    for q in fresh:
        order[q.id] = seen.get(q.kind, 0)
        seen[q.kind] = order[q.id] + 1
    fresh.sort(key=lambda q: order[q.id])
    return (again + fresh)[:most]


def test_of(material: Material, rungs: Sequence[str], draw: Random) -> list[Question]:
    """The short test of what is said to be known: questions of different kinds about these rungs, and about the ladder where they are all
    of it."""
    about = {*rungs, material.page.name} if len(rungs) == len(material.page.rungs) else set(rungs)
    asked = [q for q in questions_of(material) if q.subject in about]
    draw.shuffle(asked)
    kinds: dict[str, Question] = {}
    for question in asked:
        kinds.setdefault(question.kind, question)
    return list(kinds.values())[:A_TEST]
