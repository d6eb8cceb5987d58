"""The puzzles: each is solved by the rung's own lines, and refuses three others; what the judge says of what is no solution at all."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from rooftop.core import registry
from rooftop.core.names import RegistryError
from rooftop.lab.learn import judge, puzzles, session
from rooftop.lab.learn.blanks import BEFORE, Blank, blanks, code_of, fillings
from rooftop.lab.learn.judge import KINDS
from rooftop.lab.learn.puzzles import Court, JudgeError, Puzzle

ALL = {p.name: p for ladder in puzzles.ladders() for p in puzzles.puzzles(ladder)}
COMPLETE = ("sgemm_cuda", "softmax_cuda", "reduce_cuda", "transpose_cuda", "sgemv_cuda", "attention_cuda", "matmul_triton", "quantize_cuda")


@pytest.mark.sampled("puzzles", "{name}")
@pytest.mark.parametrize("name", ALL)
def test_the_rungs_own_lines_solve_it_and_three_others_do_not(name: str) -> None:
    puzzle = ALL[name]
    with Court() as court:
        own = court.judge(puzzle.blank.rung, puzzle.source)
        assert own.kind == "right", own
        right = "\n".join(code_of(line, puzzle.blank.language) for line in puzzle.blank.text.splitlines())
        assert puzzle.blank.filled(puzzle.source, puzzle.blank.text) == puzzle.source and right in session.choices(puzzle)
        said = {w.filling.text: court.judge(puzzle.blank.rung, puzzle.blank.filled(puzzle.source, w.filling.text)).kind for w in puzzle.wrong}
        assert len(said) == 3 and not {"right", "broken"} & set(said.values()), said
        assert said == {w.filling.text: w.kind for w in puzzle.wrong}


def test_the_list_is_of_the_tree_as_it_is() -> None:
    """A rung that changes loses its puzzles: `rooftop learn LADDER --prove` finds them anew."""
    listed = json.loads(puzzles.PROVEN.read_text(encoding="utf-8"))
    found = Counter(p.blank.rung for p in ALL.values())
    assert {rung: len(entries) for rung, entries in listed.items()} == found


def test_there_are_forty_over_eight_ladders_triton_among_them() -> None:
    by_ladder = Counter(name.partition("/")[0] for name in ALL)
    assert len(ALL) >= 40 and len(by_ladder) >= 8 and all(by_ladder[n] >= 4 for n in COMPLETE), by_ladder
    assert sum(p.blank.language == ".py" for p in ALL.values()) >= 5


@pytest.mark.parametrize("name", ALL)
def test_a_puzzle_reads_well(name: str) -> None:
    puzzle = ALL[name]
    assert len({w.filling.text for w in puzzle.wrong}) == 3 and {w.kind for w in puzzle.wrong} <= set(KINDS) - {"right", "broken"}
    assert all(w.said and "/tmp" not in w.said for w in puzzle.wrong)
    exercise, lines = puzzle.exercise, range(puzzle.blank.first, puzzle.blank.last + 1)
    source = puzzle.source.splitlines()
    kept = [line for i, line in enumerate(source, 1) if i not in lines]
    assert [line for line in exercise.splitlines() if puzzles.MARK not in line] == kept and exercise.count(puzzles.MARK) == 1
    assert len(puzzle.hints()) == 3 and puzzle.hints()[0] != puzzle.hints()[2]
    texts = session.choices(puzzle)
    assert len(set(texts)) == 4 and texts == session.choices(puzzle)
    around = session.context(puzzle)
    assert not any(line.startswith(("idea", "predict", "limit", "args")) for line in around)
    assert puzzles.find(name) is puzzle and puzzles.find(name.replace("/0", "/")) is puzzle


# -- blanks and fillings ----------------------------------------------------------------------------------------------------


def blank(text: str, before: str = "", language: str = ".cu") -> Blank:
    return Blank("x/02_y", 3, 3, text, before, language)


@pytest.mark.parametrize(("text", "rule", "made"), [
    ("s[t] = v;\n__syncthreads();", "the barrier left out", "s[t] = v;\n"),
    ("__shared__ float t[32][33];", "the padding left out", "__shared__ float t[32][32];"),
    ("if (i < n) y[i] = x[i];", "the condition left out", "y[i] = x[i];"),
    ("if (m >= M || n >= N) return;", "the bounds not tested", ""),
    ("t[i][j ^ i] = 0;", "plus for exclusive or", "t[i][j + i] = 0;"),
    ("for (int k = 0; k < 8; ++k) s += x[k];", "one step too many", "for (int k = 0; k <= 8; ++k) s += x[k];"),
    ("for (int i = tid; i < n; i += 256) s += x[i];", "a stretch of neighbours for each thread",
     "for (int i = tid * ((n + 256 - 1) / 256); i < n && i < (tid + 1) * ((n + 256 - 1) / 256); ++i) s += x[i];"),
    ("const int i = blockIdx.x * 256 + threadIdx.x;", "half the steps", "const int i = blockIdx.x * 128 + threadIdx.x;"),
])
def test_rules_on_cuda(text: str, rule: str, made: str) -> None:
    assert made in [f.text for f in fillings(blank(text)) if f.rule == rule]


def test_rules_on_triton_and_the_line_of_the_rung_before() -> None:
    one = blank("x = tl.load(a, mask=m[:, None] & n, other=0.0)  # a tile", "x = tl.load(a)", ".py")
    made = {f.rule: f.text for f in fillings(one)}
    assert made[BEFORE] == "x = tl.load(a)" and made["rows and columns exchanged"] == "x = tl.load(a, mask=m[None, :] & n, other=0.0)"
    assert all("# a tile" not in text for text in made.values())
    assert "row // 8" in [f.text for f in fillings(blank("row % 8", language=".py"))]


def test_fillings_differ_from_the_right_lines_by_more_than_spaces_and_comments() -> None:
    assert fillings(blank("s = v;  // kept", "s  =  v;")) == []
    assert len({f.text for f in fillings(blank("a[i] = b[i] * 2;"))}) == len(fillings(blank("a[i] = b[i] * 2;")))


def test_blanks_with_the_same_text_are_told_apart() -> None:
    ladder = registry.ladder("quantize_cuda")
    found = [b for a, b in pairwise(ladder.rungs) for b in blanks(a, b)]
    alike = [b for b in found if sum(o.rung == b.rung and o.text == b.text for o in found) > 1]
    assert alike and len({b.key("x") for b in found}) == len(found)


# -- the kind of a verdict --------------------------------------------------------------------------------------------------


def test_an_access_out_of_bounds_decides_the_kind_wherever_a_race_stands() -> None:
    """What follows from one is met or not, as the memory lies and the blocks are run."""
    from rooftop.lab.simt.report import Finding, Report
    from rooftop.lab.simt.run import SimulatedFault

    def found(kind: str, line: int) -> Finding:
        return Finding(kind, "it", "a.cu", line, "", (0, 0, 0), (0, 0, 0))

    race, reads, bounds, more = found("shared-race", 46), found("uninitialised", 50), found("out-of-bounds", 112), found("out-of-bounds", 120)
    for findings in ((race, reads, bounds, more), (bounds, more), (race, bounds, more)):
        report = Report(findings=findings)
        assert report.faults[:2] == (bounds, more) and judge._failed("wrong", f"/a/{SimulatedFault(report)}", "", "/a").kind == "bounds"
    assert Report(findings=(race, reads, found("not-simulated", 1))).faults == (race, reads), "the others stay in the order of the source"


def test_a_simulation_that_a_thread_has_overwritten_is_no_other_verdict() -> None:
    from rooftop.lab.simt.child import TOO_LONG
    from rooftop.lab.simt.process import _ending

    crash, late = (judge._failed("wrong", f"a.cu: the simulation {_ending(why, -11, 1 << 30, 9)}", "", "/a") for why in (0, TOO_LONG))
    assert crash.kind == "bounds" and "SIGSEGV" in crash.said and late.kind == "wrong"


# -- what is no solution ------------------------------------------------------------------------------------------------------


def first(language: str) -> Puzzle:
    return next(p for p in ALL.values() if p.blank.language == language and p.name.startswith(("reduce_cuda", "norm_triton")))


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(("language", "line", "kind", "said"), [
    (".cu", "    while (true) {}", "stuck", ""),
    (".cu", "    this is no code;", "broken", ""),
    (".py", "    import os; os._exit(3)", "broken", "ended"),
    (".py", "    this is no code", "broken", "SyntaxError"),
])
def test_a_solution_that_is_none_is_one_verdict_and_the_next_is_judged(language: str, line: str, kind: str, said: str) -> None:
    puzzle = first(language)
    with Court() as court:
        found = court.judge(puzzle.blank.rung, puzzle.blank.filled(puzzle.source, line))
        assert found.kind == kind and said in found.said, found
        none = court.judge(puzzle.blank.rung, "not even a head")
        assert none.kind == "broken" and "ladders/" not in none.said, "the learner's file is another"


def test_a_rung_that_does_not_run_here_is_no_verdict() -> None:
    rung = registry.rung("transpose_cuda/07")
    with Court() as court, pytest.raises(JudgeError, match="has no case that runs here: TMA runs on a GPU only"):
        court.judge(rung.name, rung.path.read_text(encoding="utf-8"))


def test_an_endless_triton_solution_ends_with_the_time() -> None:
    puzzle = first(".py")
    text = puzzle.source.replace("def choose(", "import time\ntime.sleep(600)\n\n\ndef choose(", 1)
    assert text != puzzle.source
    with Court(limit=4) as court:
        found = court.judge(puzzle.blank.rung, text)
    assert (found.kind, found.said) == ("stuck", "it has not come to its end in 4 s")


@pytest.mark.parametrize(("name", "said"), [
    ("nix/01a", "no ladder 'nix'"), ("reduce_cuda/99z", "no puzzle 'reduce_cuda/99z'"), ("cublas/01a", "cublas has no puzzles"),
])
def test_a_name_that_is_none(name: str, said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        puzzles.find(name)


def test_rungs_without_puzzles_are_those_that_cannot_be_judged_here() -> None:
    assert not any(p.rung.path.suffix == ".toml" for p in ALL.values())
    assert not any(p.blank.rung.startswith("transpose_cuda/07") for p in ALL.values())  # TMA: a GPU alone runs it
    assert registry.rung("transpose_cuda/07").implementation.where().place == "none"
