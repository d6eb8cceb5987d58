"""The ladders as a course: lessons, quizzes, puzzles, goals."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli.app import LOOK, WRONG, AsJson, app, echo, kept_records

if TYPE_CHECKING:
    from rooftop.lab.learn.course import Plan
    from rooftop.lab.learn.kinds import Material
    from rooftop.lab.learn.progress import Progress
    from rooftop.lab.learn.session import Session

LADDERS = 3  # that a quiz about everything is made of: each takes seconds to read


@app.command(rich_help_panel=LOOK)
def learn(
    what: Annotated[
        str | None, typer.Argument(help="A ladder, a rung (transpose_cuda/04) or a topic (banks). Default: where you are.")
    ] = None,
    quiz: Annotated[
        bool, typer.Option("--quiz", help="Ask questions, those that are due first: of a ladder, or of all that you have read.")
    ] = False,
    puzzle: Annotated[str | None, typer.Option(help="A puzzle by name (transpose_cuda/04a), or 'next' of a ladder.")] = None,
    solution: Annotated[
        Path | None, typer.Option(help="With --puzzle: judge this file, and end. Exit code 1 if it does not solve the puzzle.")
    ] = None,
    hint: Annotated[int | None, typer.Option(help="With --puzzle: print a hint, 1 to 3, and end.", min=1, max=3)] = None,
    into: Annotated[Path, typer.Option(help="The folder in which files of puzzles are written.")] = Path("puzzles"),
    puzzles: Annotated[bool, typer.Option("--puzzles", help="List the puzzles.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Print which ladders and topics come before which.")] = False,
    know: Annotated[
        bool, typer.Option("--know", help="Take a short test of a ladder or topic that you know, to skip its lessons.")
    ] = False,
    goal: Annotated[str | None, typer.Option(help="Set a goal: 'attention_fwd by 2027-01-20'. 'none' drops all goals.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Print a text for any chat, with which a language model becomes your tutor of a rung.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write all of your progress as JSON.")] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="For authors of rungs: find the puzzles of a ladder again. Takes some minutes.")
    ] = False,
    language: Annotated[str, typer.Option(help="The language of lessons, questions and hints: en or zh.")] = "en",
    as_json: AsJson = False,
) -> None:
    """Learn from the ladders: lessons, quizzes and puzzles.

    A rung is a lesson: you predict, then you see the result. Quizzes and puzzles come when you ask for them.

    Examples: [bold]rooftop learn[/bold] · [bold]rooftop learn transpose_cuda[/bold] ·
    [bold]rooftop learn --puzzle transpose_cuda/04a[/bold] ·
    [bold]rooftop learn reduce_cuda --quiz[/bold] · [bold]rooftop learn --goal 'attention_fwd by 2027-01-20'[/bold]"""
    from rooftop.core import settings
    from rooftop.lab.learn.progress import Progress, write_export
    from rooftop.lab.learn.words import speaking

    with speaking(language):
        if prompt is not None:
            _prompt(prompt)
        elif graph:
            _graph(as_json)
        elif puzzles:
            _list(what, as_json)
        elif prove:
            _prove(what)
        elif hint is not None:
            from rooftop.lab.learn import puzzles as known

            echo(known.find(_named(puzzle, "--hint")).hints()[hint - 1])
        else:
            with Progress(settings.load().learn) as progress:
                if progress.aside is not None:
                    echo(f"note: {progress.path} was damaged, or no progress of rooftop's: it is kept as {progress.aside}, and a new one is begun", err=True)
                if export is not None:
                    write_export(progress, export)
                    echo(f"wrote {export}")
                elif goal is not None:
                    _goal(progress, goal)
                elif puzzle is not None or solution is not None:
                    _puzzle(progress, _named(puzzle, "--solution"), solution, into)
                elif quiz:
                    _quiz(progress, what)
                elif know:
                    _know(progress, what)
                elif what is not None:
                    _lessons(progress, what)
                else:
                    _where(progress, as_json)


def _named(puzzle: str | None, option: str) -> str:
    if puzzle is None:
        raise ValueError(f"{option} needs --puzzle NAME; rooftop learn --puzzles lists them")
    return puzzle


def _session(progress: Progress) -> Session:
    from rooftop.lab.learn.session import WIDTH, Session

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # what is typed may be no text

    def ask(prompt: str) -> str | None:
        if not sys.stdin.isatty():
            echo(prompt)
        try:
            return input(prompt if sys.stdin.isatty() else "")
        except EOFError:
            return None

    return Session(progress, ask, echo, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def _material(ladder: str, compiled: bool) -> Material:
    from rich.console import Console
    from rich.markup import escape

    from rooftop.lab.learn import lessons

    with Console(stderr=True).status(f"reading {ladder}") as shown:
        return lessons.material(
            ladder, kept_records(), compiled=compiled, done=lambda rung: shown.update(f"compiling and counting: {escape(rung)}")
        )


# -- where one is -----------------------------------------------------------------------------------------------------------


def _plans(progress: Progress) -> list[Plan]:
    from rooftop.lab.learn import course

    done = progress.lessons()
    return [course.plan(g.ladder, g.made, g.by, progress.today, done) for g in progress.goals() if g.ladder in course.graph()]


def _where(progress: Progress, as_json: bool) -> None:
    """The state of the course: what was done, what is due, what is next."""
    import json

    from rooftop.lab.learn import course
    from rooftop.lab.learn import puzzles as known
    from rooftop.lab.learn.words import _

    done, solved, due = progress.lessons(), progress.solved(), progress.due()
    plans = _plans(progress)
    wanted = next((lesson for plan in plans for lesson in plan.left), None)
    opened = course.open_now(done)
    following = wanted or next((x for n in opened for x in n.lessons if x not in done), None)
    right, answers = progress.score()
    mean, predictions = progress.mean_points()
    if as_json:
        state = {
            "lessons": sorted(done), "puzzles": sorted(solved), "due": list(due), "next": following, "streak": progress.streak(),
            "right": right, "answers": answers,
            "goals": [{"name": p.name, "by": p.by.isoformat(), "done": p.done, "whole": p.whole, "a_day": p.a_day} for p in plans],
        }
        echo(json.dumps(state, indent=2))
        return
    echo(_("The course: a rung is a lesson. You predict, then see what was counted and measured."))
    for node in course.graph().values():
        if node.topic:
            continue
        read = sum(lesson in done for lesson in node.lessons)
        has = [p.name for p in known.puzzles(node.name)]
        mark = f"{read}/{len(node.lessons)}"
        more = _(", puzzles {solved}/{all}", solved=sum(p in solved for p in has), all=len(has)) if has else ""
        echo(f"  {node.name:<18} {mark:>6} {_('lessons')}{more:<16} {_(node.title)}")
    echo("")
    if days := progress.streak():
        scored = _("; {n} predictions, {mean} points of 100 on average", n=predictions, mean=f"{mean:.0f}") if predictions else ""
        row = _("{days} day in a row; " if days == 1 else "{days} days in a row; ", days=days)
        echo(row + _("{right} of {answers} questions right", right=right, answers=answers) + scored)
    for plan in plans:
        echo(_("goal: {plan}", plan=plan.words))
    if due:
        echo(_("{n} question comes again today: rooftop learn --quiz" if len(due) == 1 else "{n} questions come again today: rooftop learn --quiz", n=len(due)))
    if following:
        echo(_("next: rooftop learn {lesson}", lesson=_short(following)))


def _short(rung: str) -> str:
    """`transpose_cuda/04` of `transpose_cuda/04_padded`."""
    ladder, _, name = rung.partition("/")
    return f"{ladder}/{name.partition('_')[0]}"


def _lessons(progress: Progress, what: str) -> None:
    from rooftop.core import registry
    from rooftop.lab.learn import course
    from rooftop.lab.learn.session import Stopped
    from rooftop.lab.learn.words import _

    if "/" in what:
        todo = [registry.rung(what).name]
    else:
        node = course.node(what)
        if node.topic:
            echo(f"{_(node.title)}: {_(node.about)}")
        done = progress.lessons()
        missing = [n for n in course.before(what)[:-1] if any(x not in done for x in n.lessons) and n.ladder != node.ladder]
        if missing:
            echo(_(
                "note: {what} builds on {others}; --know skips what you know already", what=what, others=", ".join(n.name for n in missing)
            ))
        todo = [x for x in node.lessons if x not in done]
        if not todo:
            read = len(node.lessons)
            echo(_(
                "you have read all {n} lessons of {what}: rooftop learn {ladder} --quiz asks about them", n=read, what=what,
                ladder=node.ladder
            ))
            return
    material = _material(todo[0].partition("/")[0], compiled=False)
    session = _session(progress)
    try:
        for i, rung in enumerate(todo):
            session.lesson(material, rung)
            own = [p for p in material.puzzles if p.blank.rung == rung]
            echo("")
            echo(_("read: {rung}", rung=rung) + (
                _("; to write it yourself: rooftop learn --puzzle {puzzle}", puzzle=own[0].name) if own else ""
            ))
            if i + 1 < len(todo):
                session.typed(_("Enter for the next lesson ({lesson}), s to stop: ", lesson=_short(todo[i + 1])))
                echo("")
    except Stopped:
        echo("")
        echo(_("stopped; rooftop learn says where you are"))
    else:
        echo(_("to be asked about it: rooftop learn {ladder} --quiz", ladder=todo[-1].partition("/")[0]))


def _quiz(progress: Progress, what: str | None) -> None:
    from random import Random

    from rooftop.core import registry
    from rooftop.lab.learn import course, kinds
    from rooftop.lab.learn.session import A_QUIZ, chosen
    from rooftop.lab.learn.words import _

    rung = registry.rung(what).name if what and "/" in what else None
    if what is not None:
        ladders = [registry.rung(what).ladder if rung else course.node(what).ladder]
    else:
        wanted = [x.partition("/")[0] for x in (*progress.due().values(), *sorted(progress.lessons()))]
        ladders = [x for x in dict.fromkeys(wanted) if x in registry.ladder_names()][:LADDERS]
        if not ladders:
            echo(_(
                "no lesson is read yet, so there is nothing to be asked about: rooftop learn transpose_cuda, or rooftop learn LADDER --quiz"
            ))
            return
    asked = [q for ladder in ladders for q in kinds.questions(_material(ladder, compiled=True)) if rung in (None, q.subject)]
    draw = Random()
    found = chosen(asked, progress, A_QUIZ, draw)
    if not found:
        echo(_("every question of this is answered, and none is due today"))
        return
    _session(progress).quiz(found)


def _know(progress: Progress, what: str | None) -> None:
    from random import Random

    from rooftop.lab.learn import course, session
    from rooftop.lab.learn.words import _

    if what is None:
        raise ValueError("--know needs a ladder or a topic: rooftop learn transpose_cuda --know")
    node = course.node(what)
    asked = session.test_of(_material(node.ladder, compiled=True), node.lessons, Random())
    right, answered = _session(progress).quiz(asked)
    if asked and answered == len(asked) and right >= len(asked) - 1:
        for lesson in node.lessons:
            progress.read(lesson, known=True)
        echo(_("{n} lessons of {what} are taken as known", n=len(node.lessons), what=what))
    else:
        echo(_(
            "{what} is left in the course: {least} of {all} right answers skip it", what=what, least=max(len(asked) - 1, 1), all=len(asked)
        ))


def _goal(progress: Progress, text: str) -> None:
    from rooftop.lab.learn import course
    from rooftop.lab.learn.words import _

    if text.strip() == "none":
        for one in progress.goals():
            progress.forget(one.ladder)
        echo(_("there are no goals now"))
        return
    name, by = course.goal_of(text, progress.today)
    progress.aim(name, by)
    plan = next(p for p in _plans(progress) if p.name == name)
    echo(_("goal: {plan}", plan=plan.words))
    for node in course.before(name):
        left = [x for x in node.lessons if x in plan.left]
        if left and not node.topic:
            echo(f"  {node.name:<18} " + _("{n} lessons, {first} to {last}", n=len(left), first=_short(left[0]), last=_short(left[-1])))


# -- puzzles --------------------------------------------------------------------------------------------------------------------


def _puzzle(progress: Progress, name: str, solution: Path | None, into: Path) -> None:
    from rooftop.lab.check.apart import announce
    from rooftop.lab.learn import puzzles as known
    from rooftop.lab.learn.puzzles import Court
    from rooftop.lab.learn.session import Stopped
    from rooftop.lab.learn.words import _

    if name.endswith("next") or "/" not in name:
        ladder = name.partition("/")[0]
        solved = progress.solved()
        left = [p for n in (_ladders() if ladder == "next" else [ladder]) for p in known.puzzles(n) if p.name not in solved]
        if not left:
            if ladder == "next":
                echo(_("you have solved every puzzle"))
            else:
                echo(_(
                    "you have solved every puzzle of {ladder}, if it has any; there are some of {others}", ladder=ladder,
                    others=", ".join(_ladders())
                ))
            return
        found = left[0]
    else:
        found = known.find(name)
    session = _session(progress)
    if found.blank.language == ".py":
        announce([str(solution or "what you write")])
    if solution is not None:
        text = known.solution(solution)
        with Court() as court:
            if not session.judged(found, text, 0, court):
                raise typer.Exit(WRONG)
        return
    try:
        session.puzzle(found, into)
    except Stopped:
        echo("")
        echo(_("stopped; your file stays, and rooftop learn --puzzle {puzzle} goes on with it", puzzle=found.name))


def _ladders() -> list[str]:
    """The ladders that have puzzles, in the order of the course."""
    from rooftop.lab.learn import course
    from rooftop.lab.learn import puzzles as known

    return [n.name for n in course.graph().values() if n.name in known.ladders()]


def _list(what: str | None, as_json: bool) -> None:
    from rooftop.core import registry
    from rooftop.lab.cli.app import table
    from rooftop.lab.learn import puzzles as known

    if what is not None:
        registry.ladder(what)
    rows: list[dict[str, Any]] = []
    for ladder in [what] if what else _ladders():
        for p in known.puzzles(ladder):
            lines = p.blank.last - p.blank.first + 1
            rows.append({
                "puzzle": p.name, "rung": p.blank.rung, "line": p.blank.first, "lines": lines,
                "wrong": ", ".join(w.filling.rule for w in p.wrong)
            })
    table(
        rows, {"puzzle": "puzzle", "rung": "rung", "line": "line", "lines": "lines"}, as_json,
        f"{len(rows)} puzzles: rooftop learn --puzzle NAME"
    )


def _prove(what: str | None) -> None:
    from rooftop.core import registry
    from rooftop.lab.learn import puzzles as known

    echo(f"{known.prove([what] if what else list(registry.ladder_names()), echo)} puzzles in {known.PROVEN}")


def _graph(as_json: bool) -> None:
    import json

    from rooftop.lab.learn import course

    nodes = course.graph().values()
    if as_json:
        echo(json.dumps(
            [{"name": n.name, "topic": n.topic, "needs": list(n.needs), "lessons": list(n.lessons), "level": n.level} for n in nodes],
            indent=2
        ))
        return
    for node in nodes:
        kind = f"topic, with {_short(node.lessons[-1])}" if node.topic else f"ladder, {len(node.lessons)} lessons"
        after = f"; after {', '.join(node.after)}" if node.after else ""
        echo(f"{'  ' * node.level}{node.name}: {node.title} ({kind}{after})")


def _prompt(rung: str) -> None:
    from rooftop.core import registry, settings
    from rooftop.lab.learn import tutor
    from rooftop.lab.learn.progress import Progress

    name = registry.rung(rung).name
    path = settings.load().learn
    missed: list[str] = []
    if path.is_file():
        with Progress(path) as progress:
            missed = progress.missed(name)
    echo(tutor.prompt(_material(name.partition("/")[0], compiled=False), name, missed))
