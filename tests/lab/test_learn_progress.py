"""The course's progress: one file, what is damaged kept aside, questions that come again, goals; and what comes before what."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from rooftop.core import registry
from rooftop.core.names import RegistryError
from rooftop.lab.learn import course
from rooftop.lab.learn.progress import VERSION, Progress, ProgressError, write_export

NOW = datetime(2026, 11, 29, 23, 30, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, days: int) -> None:
        self.now += timedelta(days=days)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "learn.sqlite"


def test_what_was_missed_comes_sooner_and_what_is_known_ever_later(path: Path, clock: Clock) -> None:
    pytest.importorskip("fsrs")
    with Progress(path, clock) as progress:
        assert progress.due() == {} and progress.asked() == set()
        known = [(progress.answered("q:ladder/01:a", "q", "ladder/01", 4.0, True) - progress.today).days]
        missed = (progress.answered("q:ladder/02:b", "q", "ladder/02", 1.0, False) - progress.today).days
        assert missed == 1 and known[0] > missed
        for _ in range(3):
            clock.sleep(known[-1])
            assert progress.due()["q:ladder/01:a"] == "ladder/01"
            known.append((progress.answered("q:ladder/01:a", "q", "ladder/01", 4.0, True) - progress.today).days)
        assert known == sorted(known) and known[-1] > 3 * known[0]
        clock.sleep(known[-1])
        assert (progress.answered("q:ladder/01:a", "q", "ladder/01", 9.0, False) - progress.today).days < known[-1]
        assert progress.missed("ladder/01") == ["q:ladder/01:a"] and set(progress.missed("ladder")) == {"q:ladder/01:a", "q:ladder/02:b"}
        assert progress.missed("lad") == [] and progress.score() == (4, 6)


def test_everything_is_there_again_and_can_be_taken_away(path: Path, clock: Clock, tmp_path: Path) -> None:
    pytest.importorskip("fsrs")
    with Progress(path, clock) as progress:
        progress.read("gelu_cuda/01_scalar")
        progress.read("gelu_cuda/02_pairs", known=True)
        progress.predicted("gelu_cuda/02_pairs", "speedup", 4.0, 2.0, 50)
        progress.tried("gelu_cuda/02a", "race", "line 3", 1)
        assert progress.solved() == set()
        progress.tried("gelu_cuda/02a", "right", "", 1)
        progress.answered("q", "k", "gelu_cuda/01_scalar", 1.0, True)
        progress.aim("attention_fwd", date(2027, 1, 20))
    with Progress(path, clock) as progress:
        assert progress.lessons() == {"gelu_cuda/01_scalar", "gelu_cuda/02_pairs"} and progress.solved() == {"gelu_cuda/02a"}
        assert progress.mean_points() == (50.0, 1) and progress.streak() == 1
        assert [(g.ladder, g.made, g.by) for g in progress.goals()] == [("attention_fwd", NOW.date(), date(2027, 1, 20))]
        write_export(progress, tmp_path / "out.json")
        progress.forget("attention_fwd")
        assert progress.goals() == []
    told = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert told["version"] == VERSION and [x["rung"] for x in told["lessons"]] == ["gelu_cuda/01_scalar", "gelu_cuda/02_pairs"]
    assert [x["verdict"] for x in told["puzzles"]] == ["race", "right"] and told["answers"][0]["right"] == 1 and told["goals"][0]["due"] == "2027-01-20"


def test_a_streak_is_of_days_in_a_row_and_lasts_until_a_day_is_missed(path: Path, clock: Clock) -> None:
    with Progress(path, clock) as progress:
        seen = []
        for _ in range(3):
            progress.read(f"l/{clock.now.day}")
            seen.append(progress.streak())
            clock.sleep(1)
        assert seen == [1, 2, 3] and progress.streak() == 3
        clock.sleep(1)
        assert progress.streak() == 0


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\x00" + b"\xff" * 5000, b"\x00" * 4096])
def test_a_damaged_file_is_kept_aside(path: Path, clock: Clock, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with Progress(path, clock) as progress:
        assert progress.aside == path.with_name("learn.sqlite.damaged") and progress.aside.read_bytes() == content
        progress.read("l/01")
    path.write_bytes(content)
    with Progress(path, clock) as progress:  # the first one is not overwritten
        assert progress.aside == path.with_name("learn.sqlite.damaged-1") and progress.lessons() == set()
    with Progress(path, clock) as progress:
        assert progress.aside is None


@pytest.mark.parametrize("content", [None, b"no database at all"])
def test_several_processes_begin_one_file(path: Path, content: bytes | None) -> None:
    """None of them takes what another has begun for a damaged file."""
    for n in range(8):
        here = path.with_name(f"{n}.sqlite")
        here.parent.mkdir(exist_ok=True)
        if content is not None:
            here.write_bytes(content)
        with ThreadPoolExecutor(6) as pool:
            aside = list(pool.map(lambda rung, here=here: begin(here, rung), range(6)))
        assert sum(x is not None for x in aside) == (content is not None)
        with Progress(here) as progress:
            assert progress.lessons() == {str(rung) for rung in range(6)}


def begin(path: Path, rung: int) -> Path | None:
    with Progress(path) as progress:
        progress.read(str(rung))
        return progress.aside


def test_a_torn_file_is_kept_aside(path: Path, clock: Clock) -> None:
    with Progress(path, clock) as progress:
        for n in range(20):
            progress.read(f"ladder/{n:02d}" + "x" * 1000)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with Progress(path, clock) as progress:
        assert progress.aside is not None and progress.lessons() == set()


def test_somebody_elses_database_is_kept_as_it_is(path: Path, clock: Clock) -> None:
    path.parent.mkdir()
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE theirs (x)")
    base.execute("INSERT INTO theirs VALUES (1)")
    base.commit()
    base.close()
    with Progress(path, clock) as progress:
        assert progress.aside is not None
        kept = sqlite3.connect(progress.aside)
        assert kept.execute("SELECT x FROM theirs").fetchall() == [(1,)]
        kept.close()


def test_a_later_versions_file_is_left_alone(path: Path, clock: Clock) -> None:
    Progress(path, clock).close()
    base = sqlite3.connect(path)
    base.execute(f"PRAGMA user_version = {VERSION + 1}")
    base.commit()
    base.close()
    before = path.read_bytes()
    with pytest.raises(ProgressError, match="written by a later version of rooftop"):
        Progress(path, clock)
    assert path.read_bytes() == before and {p.name for p in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}


def test_a_folder_or_a_place_that_cannot_be_written(path: Path, clock: Clock) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ProgressError, match="is a folder"):
        Progress(path, clock)


def test_two_sessions_write_into_one_file(path: Path, clock: Clock) -> None:
    with Progress(path, clock) as one, Progress(path, clock) as other:
        one.read("l/01")
        other.read("l/02")
        assert one.lessons() == other.lessons() == {"l/01", "l/02"}


def test_a_file_that_somebody_locks_is_one_line_and_loses_nothing(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "WAIT", 0.05)
    with Progress(path, clock) as progress:
        progress.read("l/01")
        other = sqlite3.connect(path)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ProgressError, match="database is locked; what was kept before is still there") as caught:
            progress.read("l/02")
        assert "\n" not in str(caught.value)
        other.rollback()
        other.close()
        progress.read("l/03")
        assert progress.lessons() == {"l/01", "l/03"}


# -- what comes before what ---------------------------------------------------------------------------------------------------


def test_every_ladder_is_in_the_graph_after_what_it_needs() -> None:
    graph = course.graph()
    assert set(registry.ladder_names()) == {n.name for n in graph.values() if not n.topic}
    order = list(graph)
    for node in graph.values():
        assert all(order.index(n) < order.index(node.name) and graph[n].level < node.level for n in node.needs), node.name
        assert node.title and node.about and node.lessons and set(node.after) <= set(node.needs)
    roots = [n.name for n in graph.values() if not n.needs]
    assert roots == ["threads"]
    assert graph["attention_bwd"].level == max(n.level for n in graph.values())


@pytest.mark.parametrize(("topics", "said"), [
    ('[a]\ntitle = "A"\nabout = "."\nat = "gelu_cuda/01"\nneeds = ["nix"]', "no ladder or topic that a needs, 'nix'"),
    ('[a]\ntitle = "A"\nabout = "."\nat = "gelu_cuda/01"\nneeds = ["gelu_cuda"]', "goes in a circle: .* after "),
    ('[a]\ntitle = "A"\nabout = "."\nat = "gelu_cuda/99"', "no rung 'gelu_cuda/99'"),
])
def test_topics_that_do_not_fit_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: str, said: str) -> None:
    path = tmp_path / "course.toml"
    names = {n for name in registry.ladder_names() for n in registry.ladder(name).needs} - set(registry.ladder_names())
    path.write_text(topics + "".join(f'\n[{n}]\ntitle = "T"\nabout = "."\nat = "gelu_cuda/01"\n' for n in sorted(names)), encoding="utf-8")
    monkeypatch.setattr(course, "TOPICS", path)
    course.graph.cache_clear()
    try:
        with pytest.raises(RegistryError, match=said):
            course.graph()
    finally:
        monkeypatch.undo()
        course.graph.cache_clear()


def test_the_way_to_a_ladder_is_each_lesson_once_and_ends_with_its_own() -> None:
    way = course.way("attention_bwd")
    assert len(set(way)) == len(way) and way[0].startswith("gelu_cuda/01") and way[-1] == registry.ladder("attention_bwd").rungs[-1].name
    assert {"softmax_cuda/03_online", "attention_fwd/02_online", "matmul_triton/01_dot", "reduce_cuda/05_shuffles"} <= set(way)
    assert not any(x.startswith(("lossy_cuda", "spmm")) for x in way)
    assert [n.name for n in course.before("banks")] == ["threads", "coalescing", "shared", "banks"]


def test_what_is_next_follows_what_is_read() -> None:
    assert course.open_now(())[0].name == "threads"
    read = set(course.way("transpose_cuda"))
    assert {"trees", "registers"} <= {n.name for n in course.open_now(read)} and "transpose_cuda" not in {n.name for n in course.open_now(read)}
    everything = {x for n in course.graph().values() for x in n.lessons}
    assert course.open_now(everything) == []


def test_a_plan_says_where_one_is() -> None:
    made, by = date(2026, 11, 1), date(2026, 11, 30)
    way = course.way("reduce_cuda")
    plan = course.plan("reduce_cuda", made, by, date(2026, 11, 16), way[:2])
    assert plan.done == 2 and plan.whole == len(way) and plan.days == 15 and plan.left == way[2:] and "behind an even pace" in plan.words
    assert plan.a_day == -(-len(plan.left) // 15)
    assert "ahead of an even pace" in course.plan("reduce_cuda", made, by, made, way[:3]).words
    assert "reached" in course.plan("reduce_cuda", made, by, made, way).words
    assert "has passed with" in course.plan("reduce_cuda", made, by, date(2026, 12, 1), ()).words


@pytest.mark.parametrize(("text", "by"), [
    ("attention_fwd by 2027-01-20", date(2027, 1, 20)), ("attention_fwd by 20 January", date(2027, 1, 20)), ("banks by 1 Dec", date(2026, 12, 1)),
    ("attention_fwd by January 20", date(2027, 1, 20)), ("attention_fwd by 3 March 2028", date(2028, 3, 3)),
])
def test_goals_as_they_are_typed(text: str, by: date) -> None:
    assert course.goal_of(text, NOW.date()) == (text.partition(" ")[0], by)


@pytest.mark.parametrize(("text", "said"), [
    ("attention_fwd", "it is written 'LADDER by DATE'"), ("attention_fwd by soon", "'soon' is no date"),
    ("attention_fwd by 2020-01-01", "has passed; today is 2026-11-29"),
    ("nix by 2027-01-20", "no ladder or topic 'nix'"), ("attention_fwd by 31 February", "is no date"),
])
def test_goals_that_are_none(text: str, said: str) -> None:
    with pytest.raises((ValueError, RegistryError), match=said):
        course.goal_of(text, NOW.date())


def test_what_a_ladder_needs_is_a_list_of_names(tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    rest = 'op = "softmax"\ntitle = "T"\nintro = "I."\ndtypes = ["f32"]\ntargets = [90]\nheadline = "h"\ncases = ["h"]\n'
    house = registry.House(ladders=tmp_path)
    folder.joinpath("ladder.toml").write_text(f'{rest}needs = "banks"\n', encoding="utf-8")
    with pytest.raises(RegistryError, match="needs must be names of ladders and topics"):
        registry.ladder("steps", house)
    folder.joinpath("ladder.toml").write_text(f'{rest}needs = ["banks"]\n', encoding="utf-8")
    assert registry.ladder("steps", registry.House(ladders=tmp_path)).needs == ("banks",)
