"""Counts on the pages: predicted by name, counted by the simulator, kept by digest, shown with what changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _report import H100, Made, Strict, kernel, make, rows

from rooftop.core import head, head_text, prediction_names, registry, settings
from rooftop.core.spec import Work
from rooftop.lab import candidates, climb, simt
from rooftop.lab.records.record import Record
from rooftop.lab.report import counts, data, ladder_cases, predictions, rung_counts, site
from rooftop.lab.report.rung_counts import RungCounts
from rooftop.lab.simt import build
from rooftop.lab.simt.report import Finding, LineCounts, Report

needs_compiler = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
SCATTERED = "const long long j = i % 256 * (n / 256) + i / 256; if (i < n) y[j] = x[j] * factor;"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["speedup", *predictions.COUNTS, "registers", "occupancy", '"LDG.128"', "FFMA", '"dram__bytes_read.sum"'])
def test_what_is_measured_may_be_predicted(name: str) -> None:
    found = head_text.parse(kernel("x", predict=f"{name} = 2"), "x.cu")
    assert dict(found.predict) == {name.strip('"'): 2}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sector_read", "did you mean 'sectors_read'?"), ("speed_up", "did you mean 'speedup'?"), ("zebra", "there are speedup, sectors_read, "),
        ("ffma", "there are"),
    ],
)
def test_what_nobody_measures_is_refused_with_what_there_is(name: str, said: str) -> None:
    with pytest.raises(head.HeadError, match=rf"x\.cu: predict\.{name}: nothing is measured by that name; ") as caught:
        head_text.parse(kernel("x", predict=f"{name} = 2"), "x.cu")
    assert said in str(caught.value)
    with pytest.raises(head.HeadError, match=f"predict.{name}"):
        head_text.of_python(f'IDEA = "x"\nPREDICT = {{"{name}": 2}}\n', "x.py")


# -- scores ----------------------------------------------------------------------------------------------------------


def some_counts(**values: float) -> RungCounts:
    return RungCounts("a case", 1, 2, values)


def predicted(made: Made, text: str) -> None:
    made.house.ladders.joinpath("steps", "02_wide.cu").write_text(kernel("More.", predict=text, threads=256), encoding="utf-8")
    registry.ladder.cache_clear()


@pytest.mark.parametrize(("value", "verdict"), [(4.0, "hit"), (4.5, "hit"), (5.0, "too low"), (3.0, "too high"), (None, "not counted")])
def test_a_predicted_count_is_held_against_the_simulator(made: Made, value: float | None, verdict: str) -> None:
    predicted(made, "sectors_read = 4")
    found = {} if value is None else {"steps/02_wide": some_counts(sectors_read=value)}
    rung = rows(data.gather([], {}, [], found, house=made.house).ladders[0])[2]
    assert [(p.name, p.predicted, p.measured, p.verdict) for p in rung.predictions] == [("sectors_read", 4.0, value, verdict)]


def test_a_count_predicted_after_the_times_were_measured_is_judged_and_restates_nothing(made: Made) -> None:
    before = made.bench("steps/02_wide", 5e-4, predict={"speedup": 2.1})
    predicted(made, "speedup = 2.1, conflicts = 2")
    rung = rows(data.gather(map(Record, [before]), {}, [], {"steps/02_wide": some_counts(conflicts=2.0)}, house=made.house).ladders[0])[2]
    assert [(p.name, p.verdict) for p in rung.predictions] == [("speedup", "not measured"), ("conflicts", "hit")]
    assert not rung.restated
    predicted(made, "speedup = 3, conflicts = 2")
    assert rows(data.gather(map(Record, [before]), house=made.house).ladders[0])[2].restated


def test_a_count_that_the_record_predicted_stays_what_it_was(made: Made) -> None:
    before = made.bench("steps/02_wide", 5e-4, predict={"conflicts": 4.0})
    predicted(made, "conflicts = 2")
    rung = rows(data.gather(map(Record, [before]), {}, [], {"steps/02_wide": some_counts(conflicts=2.0)}, house=made.house).ladders[0])[2]
    assert ([(p.predicted, p.verdict) for p in rung.predictions], rung.restated) == ([(4.0, "too high")], True)


# -- from a simulation -----------------------------------------------------------------------------------------------


def line(number: int, space: str, op: str, requests: int, found: int, ideal: int) -> LineCounts:
    sectors, waves = (0, found) if space == "shared" else (found, 0)
    return LineCounts(
        "a.cu", number, f"  line  {number}", space, op, 4, requests, sectors=sectors, ideal_sectors=ideal if sectors else 0, wavefronts=waves,
        ideal_wavefronts=ideal if waves else 0,
    )


def test_counts_are_by_request_and_by_the_least_that_the_op_needs() -> None:
    lines = (
        line(1, "global", "read", 10, 320, 40), line(2, "global", "read", 10, 10, 40), line(3, "global", "write", 5, 20, 20),
        line(4, "shared", "read", 8, 32, 8), line(5, "shared", "write", 8, 8, 8),
    )
    found = rung_counts.summarise(Report(lines=lines, fma=640, other_flops=160, blocks=2, grid_blocks=8), Work(10560, 2560, {"fma32": 20000.0}), "c", "a.cu")
    assert found.values == pytest.approx({
        "sectors_read": 16.5, "reads": 32 * 330 * 4 / 10560, "sectors_written": 4, "writes": 32 * 20 * 4 / 2560, "wavefronts": 2.5, "conflicts": 4,
        "wavefronts_per_fma": 32 * 40 / 640, "intensity": 1440 / (32 * 350),
    })
    assert found.ideals == pytest.approx({"sectors_read": 4, "sectors_written": 4, "wavefronts": 1, "conflicts": 1})
    assert [(x.line, x.what, x.unit, x.found, x.ideal, x.text, x.here) for x in found.lines] == [
        (1, "global read", "sectors", 32, 4, "line 1", True), (4, "shared read", "wavefronts", 4, 1, "line 4", True),
    ]


def test_where_arithmetic_says_little_it_is_left_out() -> None:
    lines = (line(1, "global", "read", 10, 40, 40), line(4, "shared", "read", 8, 8, 8))
    found = rung_counts.summarise(Report(lines=lines, fma=64, blocks=1, grid_blocks=1), Work(1280, 1280, {"fma32": 40.0}), "c", "a.cu")
    assert set(found.values) == {"sectors_read", "reads", "wavefronts", "conflicts"}


def test_a_line_of_hardly_any_wavefronts_is_not_the_worst() -> None:
    lines = (line(1, "shared", "read", 1000, 1000, 1000), line(2, "shared", "write", 1, 8, 1))
    assert rung_counts.summarise(Report(lines=lines, blocks=1, grid_blocks=1), Work(1, 1), "c", "a.cu").values["conflicts"] == 1


def test_a_run_that_found_a_fault_has_no_counts() -> None:
    fault = Finding("not-simulated", "wgmma", "a.cu", 3, "", (0, 0, 0), (0, 0, 0))
    found = rung_counts.summarise(Report(findings=(fault,)), Work(1, 1), "c", "a.cu")
    assert not found.values
    assert "not-simulated: wgmma" in found.why


# -- the case --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ladder", "shapes"),
    [("sgemm_cuda", {"a": (2048, 2048), "b": (2048, 2048)}), ("softmax_cuda", {"x": (256, 8192)}), ("layer_norm_cuda", {"x": (1024, 8192), "weight": (8192,)})],
)
def test_the_case_is_the_headline_made_smaller_while_every_rung_launches_the_same(ladder: str, shapes: dict[str, tuple[int, ...]]) -> None:
    known = registry.ladder(ladder)
    headline = ladder_cases.headline_of(known, registry.op(known.op))
    rungs = candidates.rungs(known)
    found = rung_counts.small(rungs, headline)
    assert {n: v.shape for n, v in found.tensors() if n in shapes} == shapes
    assert found.dtype == headline.dtype
    for s in rungs:
        assert rung_counts._kernels(s, found) == rung_counts._kernels(s, headline) is not None


# -- a ladder of our own, counted ------------------------------------------------------------------------------------


@pytest.fixture
def strided(made: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """The first rung reads and writes with a stride, the second does not, the third is the shipped kernel. Nothing is kept from elsewhere."""
    folder = made.house.ladders / "steps"
    folder.joinpath("01_plain.cu").write_text(kernel("Apart.", predict="sectors_read = 32", body=SCATTERED), encoding="utf-8")
    folder.joinpath("02_wide.cu").write_text(kernel("Together.", predict="sectors_read = 4, reads = 2", threads=256), encoding="utf-8")
    registry.ladder.cache_clear()
    monkeypatch.setattr(rung_counts, "folder", lambda: made.house.ops.parent / "counts")
    yield made
    registry.ladder.cache_clear()


def count(made: Made, **how: Any) -> dict[str, RungCounts]:
    ladder = registry.ladder("steps", made.house)
    op = registry.op("scale", made.house)
    return rung_counts.count([candidates.Subject(r.name, op, r.implementation, r) for r in ladder.rungs], ladder_cases.headline_of(ladder, op), **how)


@needs_compiler
def test_a_ladder_is_counted_shown_and_kept(strided: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {c.why for c in count(strided, run=False).values()} == {"not counted yet: rooftop report --compute counts it"}
    told: list[str] = []
    found = count(strided, done=lambda s: told.append(s.name))
    assert sorted(told) == sorted(found) == ["steps/01_plain", "steps/02_wide", "steps/03_shipped"]
    assert [(c.values["sectors_read"], c.values["sectors_written"], c.values["reads"]) for c in found.values()] == [(32, 32, 8), (4, 4, 1), (4, 4, 1)]

    index = site.build(strided.out, [], counts=found, house=strided.house)
    page = Strict(index.with_name("ladder-steps.html").read_text(encoding="utf-8"))
    assert "32 → 4" in page.text
    assert "sectors_read 32; counted 32 hit" in page.text
    assert "reads 2; counted 1 too high" in page.text
    assert "least 4" in page.text
    assert all(len(set(widths)) == 1 for widths in page.widths)

    def simulated(*_: Any, **__: Any) -> Report:
        raise ValueError("simulated again")

    monkeypatch.setattr(simt, "run_rung", simulated)
    assert count(strided) == found == count(strided, run=False)
    changed = strided.house.ladders / "steps" / "02_wide.cu"
    changed.write_text(changed.read_text(encoding="utf-8").replace("* factor", "* 2"), encoding="utf-8")
    registry.ladder.cache_clear()
    again = count(strided)
    assert again["steps/02_wide"].why == "simulated again"
    assert again["steps/01_plain"] == found["steps/01_plain"]
    monkeypatch.setattr(rung_counts, "engine", lambda: "another engine")
    assert {c.why for c in count(strided).values()} == {"simulated again"}


@needs_compiler
@pytest.mark.parametrize("text", ["", "{", "[]", '{"values": {}}', '{"case": "c", "blocks": "x"}'])
def test_what_is_kept_and_broken_is_not_taken(strided: Made, text: str) -> None:
    ladder = registry.ladder("steps", strided.house)
    op = registry.op("scale", strided.house)
    rung = ladder.rungs[1]
    subject = candidates.Subject(rung.name, op, rung.implementation, rung)
    case = rung_counts.small([subject], ladder_cases.headline_of(ladder, op))
    path = rung_counts._at(rung_counts._key(subject, case))
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    assert rung_counts._read(path) is None
    rung_counts._write(path, some_counts(sectors_read=4.0))
    assert rung_counts._read(path) == some_counts(sectors_read=4.0)


def test_without_a_compiler_the_page_says_what_is_missing(strided: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "tool_path", lambda name: None)
    build.compiler.cache_clear()
    try:
        found = count(strided)
    finally:
        monkeypatch.undo()
        build.compiler.cache_clear()
    assert all(c.why.startswith("no C++ compiler on PATH: simulating CUDA C++ needs g++") for c in found.values())
    index = site.build(strided.out, [], counts=found, house=strided.house)
    text = Strict(index.with_name("ladder-steps.html").read_text(encoding="utf-8")).text
    assert text.count("Not counted here: no C++ compiler on PATH") == 1
    assert text.count("sectors_read 32 not counted") == 1


def test_what_was_not_counted_yet_is_said_once(strided: Made) -> None:
    index = site.build(strided.out, [], counts=count(strided, run=False), house=strided.house)
    text = Strict(index.with_name("ladder-steps.html").read_text(encoding="utf-8")).text
    assert "Not counted yet: rooftop report --compute counts it" in text and "Not counted here" not in text


def test_a_rung_without_counts_stands_between_others_with_its_reason(made: Made) -> None:
    found = {"steps/01_plain": some_counts(sectors_read=32.0), "steps/02_wide": RungCounts("a case", why="not simulated: <wgmma>")}
    found["steps/03_shipped"] = some_counts(sectors_read=4.0)
    pages = data.gather([], {}, [], found, house=made.house)
    table = counts.table(pages.ladders[0].rungs)
    assert table is not None
    shown = [(r.why, [c and (c.value, c.before) for c in r.cells]) for r in table.rows]
    assert shown == [("", [("32", None)]), ("not simulated: <wgmma>", [None]), ("", [("4", None)])]
    site.write(made.out, pages)
    page = Strict((made.out / "ladder-steps.html").read_text(encoding="utf-8"))
    assert "Not counted: not simulated: <wgmma>" in page.text
    assert all(len(set(widths)) == 1 for widths in page.widths)


def test_a_page_without_counts_speaks_of_none(made: Made) -> None:
    assert "asks of memory" not in made.build(made.climb())[1]
    assert counts.table([]) is None


@pytest.mark.parametrize(
    ("value", "text"), [(16.5, "16.5"), (32.0, "32"), (0.0606, "0.0606"), (8448.0, "8\u202f448"), (1.0, "1"), (0.2, "0.2"), (100.0, "100")]
)
def test_counts_are_written_without_needless_zeros(value: float, text: str) -> None:
    assert counts.plain(value) == text


def test_the_climb_counts_its_own_ladders_and_looks_the_others_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, bool] = {}

    def counted(rungs: list[Any], headline: Any, *, run: bool, done: Any, answers: Any) -> dict[str, RungCounts]:
        asked[rungs[0].rung.ladder] = run
        return {s.name: RungCounts("c") for s in rungs}

    monkeypatch.setattr(climb, "rung_counts", SimpleNamespace(count=counted, RungCounts=RungCounts))
    found = climb.report_counts({"softmax_cuda"})
    assert asked == {n: n == "softmax_cuda" for n in registry.ladder_names()}
    assert set(found) == {r.name for n in registry.ladder_names() for r in registry.ladder(n).rungs}


def test_the_predictions_of_the_tree_have_names_that_are_counted() -> None:
    ladders = [registry.ladder(name) for name in ("sgemm_cuda", "softmax_cuda", "layer_norm_cuda", "rms_norm_cuda")]
    names = {n for ladder in ladders for r in ladder.rungs if r.head for n in r.head.predict}
    assert names & set(predictions.COUNTS)
    assert not [n for n in names if prediction_names.refused(n)]
    assert H100["arch"] == rung_counts.ARCH
