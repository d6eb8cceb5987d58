"""The course in the terminal: a lesson asks before it shows, a quiz keeps what was answered, and what is typed wrongly loses nothing."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from _support import command, committed, flat

from rooftop.core.child import Process
from rooftop.lab.learn import counting, kinds, lessons, puzzles, session, tutor
from rooftop.lab.learn.progress import Progress
from rooftop.lab.learn.session import Session, Stopped
from rooftop.lab.report import rung_counts
from rooftop.lab.report.rung_counts import RungCounts

pytest.importorskip("fsrs")


class Learner:
    """Types these lines, one a prompt, and reads what is said."""

    def __init__(self, path: Path, *typed: str) -> None:
        self.typed, self.said = list(typed), []  # type: ignore[var-annotated]
        self.progress = Progress(path / "learn.sqlite", lambda: datetime(2026, 11, 29, tzinfo=UTC))
        self.session = Session(self.progress, self.ask, self.said.append)

    def ask(self, prompt: str) -> str | None:
        self.said.append(f"> {prompt}")
        return self.typed.pop(0) if self.typed else None

    @property
    def text(self) -> str:
        return flat("\n".join(self.said))


@pytest.fixture(scope="module")
def material() -> kinds.Material:
    return lessons.material("norm_triton", committed())


def test_a_lesson_asks_before_it_shows(tmp_path: Path, material: kinds.Material) -> None:
    learner = Learner(tmp_path, "3", "", "")
    row = material.page.rungs[1]
    learner.session.lesson(material, row.name)
    assert row.measured_speedup is not None
    asked, _, came = learner.text.rpartition("> What do you expect?")
    assert row.idea.split(".")[0] in asked and "@@" in "\n".join(learner.said) and "points" not in asked and "µs" not in asked and row.limit not in asked
    assert "you said 3" in came and "the author of the rung predicted" in came and "recorded on the" in came and flat(row.limit) in came
    assert learner.progress.lessons() == {row.name} and learner.progress.mean_points()[1] == 1


def test_what_is_no_number_is_asked_again_and_a_stop_keeps_what_was_done(tmp_path: Path, material: kinds.Material) -> None:
    learner = Learner(tmp_path, "many", "s")
    with pytest.raises(Stopped):
        learner.session.lesson(material, material.page.rungs[1].name)
    assert "'many' is no number: type one, as in 4 or 0.25" in learner.text and "µs" not in learner.text
    assert learner.progress.lessons() == set()
    ended = Learner(tmp_path)  # the end of the input is a stop
    with pytest.raises(Stopped):
        ended.session.lesson(material, material.page.rungs[1].name)


def test_the_first_lesson_has_no_gain_to_predict_and_hides_its_head(tmp_path: Path, material: kinds.Material) -> None:
    learner = Learner(tmp_path, "", "", "")
    learner.session.lesson(material, material.page.rungs[0].name)
    assert "How many times as fast" not in learner.text and "PREDICT" not in learner.text and "@triton.jit" in learner.text


def test_a_quiz_asks_judges_explains_and_keeps(tmp_path: Path, material: kinds.Material) -> None:
    asked = [q for q in kinds.questions(material) if q.choices][:2] + [q for q in kinds.questions(material) if not q.choices][:1]
    right = ["abcd"[int(asked[0].answer)], "zzz", "abcd"[int(asked[1].answer) - 1], "not yet", str(asked[2].answer)]
    learner = Learner(tmp_path, *right)
    assert learner.session.quiz(asked) == (2, 3)
    assert "'zzz' is none of the answers" in learner.text and "'not yet' is no number" in learner.text and "2 of 3 right" in learner.text
    assert all(flat(q.explanation) in learner.text for q in asked)
    assert learner.progress.missed() == [asked[1].id] and learner.progress.asked() == {q.id for q in asked}
    assert Learner(tmp_path / "other").session.quiz(asked) == (0, 0)


def test_a_quiz_begins_with_what_is_due_and_goes_on_with_new_kinds(tmp_path: Path, material: kinds.Material) -> None:
    asked = kinds.questions(material)
    learner = Learner(tmp_path)
    learner.progress.answered(asked[-1].id, asked[-1].kind, asked[-1].subject, 0.0, False)
    with Progress(learner.progress.path, lambda: datetime(2026, 12, 5, tzinfo=UTC)) as later:
        chosen = session.chosen(asked, later, 5, Random(1))
    assert chosen[0].id == asked[-1].id and len(chosen) == 5 and len({q.kind for q in chosen[1:]}) == min(4, len({q.kind for q in asked}))
    fresh = session.chosen(asked, learner.progress, 500, Random(1))
    assert asked[-1].id not in {q.id for q in fresh}


def test_the_test_of_what_is_known_is_short_and_about_it(material: kinds.Material) -> None:
    names = [row.name for row in material.page.rungs]
    some = session.test_of(material, names[:2], Random(3))
    assert some and len(some) <= session.A_TEST and {q.subject for q in some} <= set(names[:2]) and len({q.kind for q in some}) == len(some)
    assert any(q.subject == "norm_triton" for seed in range(8) for q in session.test_of(material, names, Random(seed)))


def test_right_answers_skip_a_ladder_and_wrong_ones_do_not(at_home: Path, monkeypatch: pytest.MonkeyPatch, material: kinds.Material) -> None:
    from rooftop.lab.cli import learn as command_of

    monkeypatch.setattr(command_of, "_material", lambda ladder, compiled: material)
    for right in (False, True):
        monkeypatch.setattr(Session, "quiz", lambda self, asked, right=right: (len(asked) - 1 if right else len(asked) - 2, len(asked)))
        assert command(monkeypatch, "learn", "norm_triton", "--know") == 0
        with Progress(at_home / "learn.sqlite") as progress:
            assert progress.lessons() == ({row.name for row in material.page.rungs} if right else set())


@pytest.mark.sampled("slow")
def test_a_puzzle_is_written_hinted_judged_and_kept(tmp_path: Path) -> None:
    puzzle = puzzles.puzzles("norm_triton")[0]
    texts = session.choices(puzzle)
    right = "abcd"[next(i for i, t in enumerate(texts) if t not in {w.filling.text for w in puzzle.wrong})]
    wrong = "abcd"[next(i for i, t in enumerate(texts) if t in {w.filling.text for w in puzzle.wrong})]
    learner = Learner(tmp_path, "h", "h", "h", "", "x", "c", "e", wrong, "c", right)
    assert learner.session.puzzle(puzzle, tmp_path / "mine")
    path = tmp_path / "mine" / f"{puzzle.name.replace('/', '_')}.py"
    assert path.read_text(encoding="utf-8") == puzzle.exercise
    assert all(flat(h) in learner.text for h in puzzle.hints())
    assert "there is nothing in the gap yet" in learner.text and "'x' is none of these" in learner.text and "'e' is none of the four" in learner.text
    assert "Not yet: " in learner.text and "Right, and as good as the rung's: " in learner.text
    assert learner.progress.solved() == {puzzle.name}
    path.write_text(puzzle.source, encoding="utf-8")
    assert session.written(puzzle, tmp_path / "mine") == path and path.read_text(encoding="utf-8") == puzzle.source, "what the learner wrote stays"


def test_the_prompt_for_a_tutor_has_all_that_is_known(material: kinds.Material) -> None:
    row = material.page.rungs[1]
    missed = next(q for q in kinds.questions(material) if q.subject == row.name)
    text = tutor.prompt(material, row.name, [missed.id, "of:another"])
    for part in ("step by step", "Do not quiz me until I ask", row.idea, row.source.rstrip(), "```diff", "# Figures", "µs", missed.text, missed.solution):
        assert part in text, part
    assert "# What I missed" not in tutor.prompt(material, row.name)


def test_a_file_that_cannot_be_read_loses_neither_hints_nor_the_session(tmp_path: Path) -> None:
    puzzle = puzzles.puzzles("norm_triton")[0]
    path = tmp_path / f"{puzzle.name.replace('/', '_')}.py"
    learner = Learner(tmp_path)
    states = iter([lambda: path.unlink(), lambda: path.mkdir(), lambda: (path.rmdir(), path.write_bytes(b"\xff\x00")),
                   lambda: path.write_text("a" * (puzzles.LONGEST + 1), encoding="utf-8"), lambda: (path.unlink(), os.mkfifo(path))])

    def ask(prompt: str) -> str | None:
        if (state := next(states, None)) is None:
            return None
        state()
        return ""

    learner.session.ask = ask
    with pytest.raises(Stopped):
        learner.session.puzzle(puzzle, tmp_path)
    for said in ("No such file", "Is a directory", "not UTF-8", "bytes; a solution has 1,048,576 at most", "is no ordinary file"):
        assert said in learner.text, said
    assert learner.progress.export()["puzzles"] == [] and "judging" not in learner.text


def test_words_are_folded_to_the_terminal(tmp_path: Path, material: kinds.Material) -> None:
    learner = Learner(tmp_path, "", "", "")
    learner.session.width = 40
    learner.session.wrapped("word " * 60)
    assert max(len(line) for text in learner.said for line in text.splitlines()) <= 40


def test_who_stops_does_not_wait_for_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, material: kinds.Material) -> None:
    """The process that counts never answers here; it is gone when the lesson is."""
    row = replace(material.page.rungs[1], counts=RungCounts("", why=rung_counts.NOT_YET))
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    monkeypatch.setattr(counting, "Process", lambda python, module, more, what: Process(python, "sleeps", more, what=what))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for early in (True, False):
        begun = counting.Counting(material.page, row)
        with begun:
            while not early and begun._process.pid is None:
                time.sleep(0.01)
            assert not begun.done
        pid = begun._process.pid
        assert begun.done and (pid is None or not Path(f"/proc/{pid}").exists())


# -- the command ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ROOFTOP_LEARN", str(tmp_path / "learn.sqlite"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    yield tmp_path


def test_the_command_says_where_one_is(at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "learn") == 0
    said = capsys.readouterr().out
    assert "next: rooftop learn gelu_cuda/01" in said and "attention_bwd" in said
    assert command(monkeypatch, "learn", "--goal", "softmax_cuda by 2126-01-20") == 0
    assert "goal: softmax_cuda by 2126-01-20: 0 of" in capsys.readouterr().out
    assert command(monkeypatch, "learn", "--json") == 0
    assert json.loads(capsys.readouterr().out)["goals"][0]["name"] == "softmax_cuda"
    assert command(monkeypatch, "learn", "--export", "out.json") == 0
    assert json.loads((at_home / "out.json").read_text(encoding="utf-8"))["goals"][0]["ladder"] == "softmax_cuda"
    assert command(monkeypatch, "learn", "--graph", "--json") == 0
    assert len(json.loads(capsys.readouterr().out.partition("\n")[2])) > 30


def test_a_quiz_is_asked_for_and_of_what_was_read(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], material: kinds.Material
) -> None:
    from rooftop.lab.cli import learn as command_of

    assert command(monkeypatch, "learn", "--quiz") == 0
    assert "no lesson is read yet" in capsys.readouterr().out
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(command_of, "_material", lambda ladder, compiled: asked.append((ladder, compiled)) or material)  # type: ignore[func-returns-value]
    with Progress(at_home / "learn.sqlite") as progress:
        progress.read("norm_triton/01_pieces")
    assert command(monkeypatch, "learn", "--quiz") == 0
    assert asked == [("norm_triton", True)] and f"1 of {session.A_QUIZ}. " in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n1\n" * 20))  # right or wrong, a letter or a number
    assert command(monkeypatch, "learn", "norm_triton/02", "--quiz") == 0
    assert "right" in capsys.readouterr().out
    with Progress(at_home / "learn.sqlite") as progress:
        assert progress.score()[1] > 0 and set(progress.missed()) <= progress.asked()


def test_puzzles_are_listed_in_the_order_of_the_course(at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "learn", "--puzzles", "--json") == 0
    names = [row["puzzle"] for row in json.loads(capsys.readouterr().out)]
    assert names[0].startswith("gelu_cuda") and names.index("transpose_cuda/04a") < names.index("attention_cuda/02a") and len(names) >= 40
    assert command(monkeypatch, "learn", "--puzzle", names[0], "--hint", "2") == 0
    assert "These names stand in what is missing" in capsys.readouterr().out
    assert command(monkeypatch, "learn", "--puzzle", "next", "--into", "mine") == 0
    assert [p.name for p in (at_home / "mine").iterdir()] == [f"{names[0].replace('/', '_')}.cu"]


@pytest.mark.parametrize(("words", "said"), [
    (["nix_cuda"], "no ladder or topic 'nix_cuda'"), (["transpose_cuda/99"], "no rung 'transpose_cuda/99'"), (["--puzzle", "nix/01a"], "no ladder 'nix'"),
    (["--solution", "a.cu"], "--solution needs --puzzle NAME"),
    (["--puzzle", "transpose_cuda/04a", "--solution", "/dev/zero"], "/dev/zero is no ordinary file"),
    (["--puzzle", "transpose_cuda/04a", "--solution", "absent.cu"], "no file absent.cu"),
    (["--goal", "soon"], "it is written 'LADDER by DATE'"), (["--know"], "--know needs a ladder or a topic"), (["--prompt", "nix/01"], "no ladder 'nix'"),
])
def test_what_is_wrong_is_one_line(at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert command(monkeypatch, "learn", *words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(("note", "no records"))]
    assert len(lines) == 1 and said in lines[0], lines


def test_a_damaged_file_is_said_and_the_course_goes_on(at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (at_home / "learn.sqlite").write_bytes(b"damaged")
    assert command(monkeypatch, "learn") == 0
    said = capsys.readouterr()
    assert "it is kept as" in said.err and said.err.count("\n") == 1 and "next: " in said.out
    assert (at_home / "learn.sqlite.damaged").read_bytes() == b"damaged"


def test_a_lesson_from_the_command_ends_with_the_input(at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("4\n"))
    assert command(monkeypatch, "learn", "attention_bwd") == 0
    said = flat(capsys.readouterr().out)
    assert "note: attention_bwd builds on threads" in said and "stopped; rooftop learn says where you are" in said


def test_what_is_typed_may_be_no_text(at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], material: kinds.Material) -> None:
    from rooftop.lab.cli import learn as command_of

    monkeypatch.setattr(command_of, "_material", lambda ladder, compiled: material)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n1e400\n4\n"), encoding="utf-8"))
    assert command(monkeypatch, "learn", "norm_triton/02") == 0
    said = flat(capsys.readouterr().out)
    assert said.count("is no number") == 2 and "you said 4" in said
