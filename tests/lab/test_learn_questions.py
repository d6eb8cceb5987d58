"""The course's questions: numbers as they are typed, predictions and their points, and questions of every ladder, whose answers follow from data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

import pytest
from _support import committed

from rooftop.core import registry
from rooftop.lab import candidates
from rooftop.lab.inspect import inspector
from rooftop.lab.inspect.occupancy import occupancy
from rooftop.lab.learn import kinds, lessons, puzzles, tutor
from rooftop.lab.learn.questions import AnswerError, Prediction, Question, number_of, points
from rooftop.lab.report import data, ladder_cases, rung_counts
from rooftop.lab.report.data import RungRow
from rooftop.lab.report.rung_counts import Access, RungCounts

COMPLETE = ("sgemm_cuda", "softmax_cuda", "reduce_cuda", "transpose_cuda", "sgemv_cuda", "attention_cuda", "matmul_triton", "quantize_cuda")
FROM_WORDS = ("moved", "bound", "operations", "change", "broken", "barrier", "gain", "order", "share")  # need neither a compiler nor the simulator


# -- answers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "value"), [
    ("4", 4.0), (" 4.5 ", 4.5), ("1,024", 1024.0), ("1\u202f024", 1024.0), ("2x", 2.0), ("25 %", 25.0), (".5", 0.5), ("1e3", 1000.0), ("-1", -1.0),
    ("16 sectors", 16.0),
])
def test_what_is_a_number(typed: str, value: float) -> None:
    assert number_of(typed) == value


@pytest.mark.parametrize("typed", ["", "four", "4 apples", "1.2.3", "nan", "inf", "1e999", "--4", "0x10", "\u0664", "4\x1b[31m", "1,02", "e", "9" * 400])
def test_what_is_none_is_one_line(typed: str) -> None:
    with pytest.raises(AnswerError) as caught:
        number_of(typed)
    assert "is no number: type one, as in 4 or 0.25" in str(caught.value) and len(str(caught.value)) < 120 and "\n" not in str(caught.value)


def test_choices_are_taken_by_letter_or_place_and_others_refused() -> None:
    q = Question("q", "k", "s", "?", 1.0, "so", "here", ("x", "y", "z"))
    assert [q.read(t) for t in ("a", "B", "c)", "2", " b. ")] == [0.0, 1.0, 2.0, 1.0, 1.0] and q.right(1.0) and not q.right(0.0) and q.solution == "y"
    for typed in ("d", "4", "0", "", "ab", "\u00b2"):
        with pytest.raises(AnswerError, match="is none of the answers: type a, b or c"):
            q.read(typed)


def test_a_prediction_is_worth_less_the_more_times_it_is_off() -> None:
    assert [points(x, 4.0) for x in (4.0, 8.0, 2.0, 16.0, 1.0, 100.0, 0.0, -4.0)] == [100, 50, 50, 0, 0, 0, 0, 0]
    assert points(0.0, 0.0) == 100 and points(1.0, 0.0) == 0
    assert points(5e-324, 1e300) == points(1e308, 1e-300) == 0, "a quotient that is no number"
    said = Prediction("speedup", "?", "times", 2.0, 4.0, "recorded").told(8.0)
    assert said == "4 times (recorded); you said 8: 50 points of 100; the author of the rung predicted 2 (50 points)"


# -- which thread takes which bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("access", "drawn"), [
    (Access(1, "global read", 4, 4, 4.0, 4.0), "[########] [########] [########] [########]"),
    (Access(1, "global read", 4, -4, 5.0, 4.0), "[.#######] [########] [########] [########] [#.......]"),
    (Access(1, "global write", 4, 4096, 32.0, 4.0), "[#.......] [#.......] [#.......] [#.......] [#.......] [#.......] [#.......] [#.......] ... 32 in all"),
    (Access(1, "shared read", 4, 4, 1.0, 1.0), "banks " + "1" * 32),
    (Access(1, "shared read", 4, 128, 32.0, 1.0), "banks +" + "." * 31),
    (Access(1, "shared read", 4, 8, 2.0, 1.0), "banks " + "2." * 16),
    (Access(1, "shared read", 16, 16, 4.0, 4.0), "banks " + "4" * 32),
    (Access(1, "global read", 4, 4, 9.0, 4.0), ""),  # the lanes do not keep to it: what would be drawn is not what was counted
    (Access(1, "global read", 4, None, 9.0, 4.0), ""),
])
def test_the_map_of_a_warp_is_drawn_where_it_costs_what_was_counted(access: Access, drawn: str) -> None:
    words, found = lessons.map_of(access)
    assert found == drawn and words.startswith(f"line 1, {access.what}: {access.width} B a thread")


@pytest.mark.parametrize(("what", "walk", "words", "drawn"), [
    ("global read", (9, (1, 0) * 4, 256, None), "until phase 9, from one to the next mostly 256 B on", "|".join(["####...."] * 4) + "| ..."),
    ("global read", (9, (3, 0) * 4, -4096, 128), "3 times a phase mostly 128 B on; until phase 9, from one to the next mostly 4,096 B back",
     "|".join(["#......."] * 4) + "| ..."),
    ("global read", (1, (16, *[0] * 7), None, 128), "16 times mostly 128 B on", "|".join(["########"] * 4) + "| ..."),
    ("global read", (9, (1, 0) * 4, 0, None), "until phase 9, from one to the next at the same place", ""),
    ("global read", (9, (2, 0) * 4, None, None), "2 times a phase", ""),  # irregular
    ("global read", (9, (1, 0) * 4, 64, None), "until phase 9, from one to the next mostly 64 B on", ""),  # what is read twice cannot be drawn side by side
    ("global read", (1, (1, *[0] * 7), None, None), "", ""),
    ("shared read", (9, (0, 3) * 4, 0, 128), "", ""),  # a tile that is filled again and again walks nowhere
])
def test_the_walk_of_a_warp_is_drawn_where_it_keeps_to_a_step(
    what: str, walk: tuple[int, tuple[int, ...], int | None, int | None], words: str, drawn: str
) -> None:
    assert lessons.walk_of(Access(1, what, 4, 4, 4.0, 4.0, *walk)) == (words, drawn)


def test_the_phases_of_a_warp_are_told_where_it_meets_barriers(made_up: tuple[RungRow, RungRow]) -> None:
    _, row = made_up
    assert lessons.timeline(row) is None
    read, written, late = (Access(n, "shared read", 4, 4, 1.0, 1.0, *w) for n, w in ((5, (3, (1, 0, 12))), (7, (2, (0, 2, 0))), (9, (3, (0, 0, 0)))))
    found = lessons.timeline(replace(row, counts=RungCounts("", accesses=(read, written, late))))
    assert found is not None and list(found.text) == [
        "phase                    1     2     3", "line 5, shared read      1     .    12", "line 7, shared read      .     2     .",
    ]


def test_notes_name_the_line_and_say_whether_it_is_new(made_up: tuple[RungRow, RungRow]) -> None:
    before, row = made_up
    assert list(lessons.notes(None, before)) == [
        "  y[i] = x[i];", "      line 2, global read: 4 B a thread, the next lane mostly 4 B on; 4 sectors a warp", "        " + " ".join(["[########]"] * 4),
    ]
    told = list(lessons.notes(before, row))
    assert [line for line in told if not line.startswith("      ")] == ["  y[i] = x[i];", "+ z[i] = t[i * 32];"]
    assert told[-1] == "        banks +" + "." * 31


@pytest.fixture
def made_up() -> tuple[RungRow, RungRow]:
    row = lessons.material("norm_triton", []).page.rungs[0]
    read, shared = Access(2, "global read", 4, 4, 4.0, 4.0), Access(3, "shared read", 4, 128, 32.0, 1.0)
    first = replace(row, source="{\n    y[i] = x[i];\n}", counts=RungCounts("", accesses=(read,)))
    return first, replace(row, source="{\n  y[i] = x[i];\n  z[i] = t[i * 32];\n}", counts=RungCounts("", accesses=(read, shared)))


# -- questions of every ladder ---------------------------------------------------------------------------------------------


def well_made(asked: list[Question], ladder: str) -> None:
    """Every question has one right answer, which it accepts, and says why and whence."""
    assert len({q.id for q in asked}) == len(asked)
    names = {ladder, *(r.name for r in registry.ladder(ladder).rungs)}
    for q in asked:
        assert q.subject in names and q.kind in kinds.KINDS and q.source and q.text and q.explanation, q.id
        assert q.right(q.answer) and q.solution
        if q.choices:
            assert 2 <= len(q.choices) <= 4 and len(set(q.choices)) == len(q.choices), q
            assert 0 <= q.answer < len(q.choices) and q.answer == int(q.answer)
            assert not any(q.right(float(i)) for i in range(len(q.choices)) if i != q.answer)
        else:
            assert q.right(q.answer * (1 + 0.9 * q.within)) and (q.answer == 0 or not q.right(q.answer * (1 + 1.1 * q.within))), q
            assert q.right(q.read(q.solution.removesuffix(q.unit))), q


@pytest.mark.sampled("questions", "{name}")
@pytest.mark.parametrize("name", registry.ladder_names())
def test_the_questions_from_records_contracts_and_sources(name: str) -> None:
    material = lessons.material(name, committed())
    asked = kinds.questions(material)
    well_made(asked, name)
    op, problem = registry.op(material.page.op), material.problem
    for q in asked:
        if q.kind == "moved" and not op.mutates:  # what is asked is at least the outputs, and the most that all tensors hold
            sizes = {n: prod(m.shape) * m.itemsize / 2**20 for n, m in problem.tensors if m is not None}
            assert sum(v for n, v in sizes.items() if n in op.output_names) * 0.999 <= q.answer
        if q.kind == "gain":
            row = next(r for r in material.page.rungs if r.name == q.subject)
            assert q.answer == row.measured_speedup and material.page.devices[0].short in q.source
    if name in COMPLETE:
        assert {q.kind for q in asked} >= {"moved", "change", "broken"} and sum(q.kind == "broken" for q in asked) >= 9


@pytest.mark.sampled("questions", "{name}")
@pytest.mark.parametrize("name", registry.ladder_names())
def test_every_lesson_opens(name: str) -> None:
    page = lessons.material(name, committed()).page
    for before, row in pairwise((None, *page.rungs)):
        assert row is not None
        asked = lessons.asks(page, row)
        assert len({a.name for a in asked}) == len(asked) <= lessons.MOST and all(a.text.endswith("?") for a in asked)
        assert ("speedup" in {a.name for a in asked}) == (before is not None)
        said = lessons.launch(row, page)
        assert not said or (said.startswith(f"At {page.headline} it launches ") and said.endswith("."))
        drawn = lessons.picture(before, row)
        assert drawn is None or (drawn.about and row.counts is not None)
        assert row.idea and row.idea in tutor.prompt(kinds.Material(page), row.name)


@pytest.mark.sampled("compiled_questions", "{name}")
@pytest.mark.parametrize("name", COMPLETE)
def test_the_questions_from_binaries_and_counts(name: str) -> None:
    """Three rungs are compiled and one is counted: all of a ladder take a minute, and first rungs of several launches, of which every block runs, as long."""
    ladder = registry.ladder(name)
    subjects = candidates.rungs(ladder)
    few = [subjects[i] for i in (0, len(subjects) // 2, len(subjects) - 2)]
    seen = few[1].name
    facts = inspector.many([(s, inspector.inspect_case(s, None, 90), 90) for s in few])
    counts = rung_counts.count(subjects, ladder_cases.headline_of(ladder, registry.op(ladder.op)), only=seen)
    records = [r for r in committed() if r["kind"] != "bench" or r.get("op") == ladder.op]
    page = data.Gatherer(records, facts=facts, counts=counts).ladder_page(ladder)
    asked = kinds.questions(kinds.Material(page, puzzles.puzzles(name)))
    well_made(asked, name)
    assert len({q.kind for q in asked}) >= 8, {q.kind for q in asked}
    rows = {r.name: r for r in page.rungs}
    assert {q.subject for q in asked if q.kind in ("limiter", "occupied", "binary")} <= {s.name for s in few}
    for q in asked:
        if q.kind == "occupied":
            k = next(f for f in rows[q.subject].facts if f.arch == 90).kernels[0]
            assert k.threads is not None
            assert q.answer == occupancy(90, registers=k.registers + 40, threads=k.threads, static_shared=k.shared).percent
        if q.kind == "line":
            assert q.subject == seen and q.solution in {" ".join(x.split()) for x in rows[q.subject].source.splitlines()}
        if q.kind in ("sectors", "wavefronts"):
            counted = counts[q.subject].values
            assert q.answer in (counted.get("sectors_read"), counted.get("sectors_written"), counted.get("wavefronts"))


def test_there_are_enough_kinds_and_each_is_made_somewhere() -> None:
    assert len(kinds.KINDS) >= 8 and set(FROM_WORDS) < set(kinds.KINDS)
    made = {q.kind for name in ("attention_cuda", "reduce_cuda") for q in kinds.questions(lessons.material(name, committed()))}
    assert made >= set(FROM_WORDS)


def test_a_transpose_by_hand() -> None:
    """Counts that anybody can work out: 32 neighbours of 4 bytes are 4 sectors, 32 rows are 32."""
    ladder = registry.ladder("transpose_cuda")
    rung = "transpose_cuda/01_rows_in"
    counts = rung_counts.count(candidates.rungs(ladder), ladder_cases.headline_of(ladder, registry.op(ladder.op)), only=rung)
    assert set(counts) == {rung}
    if counts[rung].why:
        pytest.skip(counts[rung].why)
    row = next(r for r in lessons.material("transpose_cuda", []).page.rungs if r.name == rung)
    material = kinds.Material(lessons.material("transpose_cuda", []).page, puzzles.puzzles("transpose_cuda"))
    found = {q.id.rpartition(":")[2]: q.answer for q in kinds.sectors(material) if q.subject == rung}
    assert found == {"read": 4.0, "write": 32.0}
    assert [a.name for a in lessons.asks(material.page, row)] == ["sectors_read", "sectors_written"]
    told = {a.name: lessons.answer(a, material.page, row) for a in lessons.asks(material.page, row)}
    assert {n: p and p.found for n, p in told.items()} == {"sectors_read": 4.0, "sectors_written": 32.0}


def test_what_is_not_recorded_or_counted_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path))  # where nothing is counted or compiled
    made = {q.kind for q in kinds.questions(lessons.material("transpose_cuda", []))}
    assert made == {"moved", "change", "broken"}
