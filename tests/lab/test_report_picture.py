"""The picture of a climb: every value from a record, one that is missing shown as missing, the same records the same bytes."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from _report import FMA, H100, Made, ceiling, make

from rooftop.lab.records.store import Record
from rooftop.lab.report.drawings.canvas import length
from rooftop.lab.report.picture import picture

SVG = "{http://www.w3.org/2000/svg}"
WORK = {"read": 1 << 20, "write": 1 << 20, "ops": {"fma32": 1e10}}  # 20 GFLOP
SECONDS = {"steps/01_plain": 2e-3, "steps/02_wide": 1e-3, "steps/03_shipped": 5e-4, "peer:torch": 6.25e-4, "peer:other": 8e-4}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


def measured(made: Made, **more: Any) -> list[Record]:
    return [ceiling(H100), *(made.bench(name, seconds, work=WORK, **more) for name, seconds in SECONDS.items())]


def of(svg: str, tag: str, kind: str) -> list[ElementTree.Element]:
    return [e for e in ElementTree.fromstring(svg).iter(SVG + tag) if e.get("class") == kind]


def words(svg: str, kind: str) -> list[str]:
    return [str(e.text) for e in of(svg, "text", kind)]


def at(svg: str, tag: str, kind: str, *names: str) -> list[float]:
    return [float(str(e.get(name))) for e in of(svg, tag, kind) for name in names]


def test_bars_and_lines_stand_at_what_was_measured(made: Made) -> None:
    svg = picture(made.page(measured(made)), {"torch": "torch (theirs)"})
    assert words(svg, "value") == ["10.0", "20.0", "40.0"], "20 GFLOP in 2, 1 and 0.5 ms, in TFLOP/s"
    assert words(svg, "roof") == [f"{2 * FMA / 1e12:.1f}"]
    assert words(svg, "peer") == ["32.0", "25.0"], "the fastest peer first"
    widths = at(svg, "rect", "bar", "width")
    assert (widths[1] / widths[0], widths[2] / widths[0]) == (pytest.approx(2, abs=0.01), pytest.approx(4, abs=0.02))
    (left,) = set(at(svg, "rect", "bar", "x"))
    roof, peer = (at(svg, "line", kind, "x1")[0] - left for kind in ("roof", "peer"))
    assert (roof / widths[2], peer / widths[2]) == (pytest.approx(60 / 40, abs=0.01), pytest.approx(32 / 40, abs=0.01))
    assert at(svg, "rect", "roof", "width") == [pytest.approx(roof, abs=0.1)]
    assert "not measured" not in svg and "datasheet" not in svg
    assert "01 plain: 10.0; 02 wide: 20.0; 03 shipped: 40.0; torch (theirs): 32.0; other: 25.0; roof, measured: 60.0" in svg


def test_what_was_predicted_is_marked_where_it_was_promised(made: Made) -> None:
    page = made.page(measured(made))
    promised = [r.speedup.predicted for r in page.rungs if r.speedup]
    svg = picture(page)
    (left,) = set(at(svg, "rect", "bar", "x"))
    marks = [float(str(e.get("d"))[1:].split(" ")[0]) - left for e in of(svg, "path", "predicted")]
    assert len(promised) == 2 and len(marks) == 3, "one of them says what the mark means"
    assert marks[1:] == [pytest.approx(w * p, abs=0.1) for w, p in zip(at(svg, "rect", "bar", "width"), promised, strict=False)]
    assert "predicted before" in svg and "predicted before" not in picture(made.page([]))


CHANGES: dict[str, Callable[[list[Record]], Any]] = {
    "a rung": lambda r: r[2]["clocks"]["kernel"].update(median=9e-4),
    "the peer": lambda r: r[4]["clocks"]["kernel"].update(median=5e-4),
    "the roof": lambda r: r[0]["fma_fp32"]["burst"].update(ops_per_s=3.2e13),
    "the work": lambda r: r[1].update(work={**WORK, "ops": {"fma32": 2e10}}),
    "the card": lambda r: [x.update(device={**H100, "name": "NVIDIA H200"}) for x in r],
    "a rung gone": lambda r: r.pop(2),
    "the peers gone": lambda r: (r.pop(), r.pop()),
    "the roof gone": lambda r: r.pop(0),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_record_changes_the_picture_and_the_same_ones_do_not(made: Made, what: str) -> None:
    records = measured(made)
    before = picture(made.page(records))
    assert picture(made.page(copy.deepcopy(records[::-1]))) == before
    CHANGES[what](records)
    assert picture(made.page(records)) != before


@pytest.mark.parametrize("stale", [False, True])
def test_a_rung_without_a_record_that_holds_has_no_bar(made: Made, stale: bool) -> None:
    records = [r for r in measured(made) if r.get("subject") != "steps/02_wide"]
    records += [made.bench("steps/02_wide", 1e-3, work=WORK, stale=True)] if stale else []
    svg = picture(made.page(records))
    assert words(svg, "value") == ["10.0", "–", "40.0"]
    assert len(of(svg, "rect", "bar")) == 2
    assert "–: not measured as it stands now" in svg
    assert "02 wide: not measured" in svg


def test_without_records_the_picture_says_so(made: Made) -> None:
    svg = picture(made.page([]))
    assert words(svg, "value") == ["–"] * 3
    assert "not measured yet" in svg
    assert [of(svg, tag, kind) for tag, kind in (("rect", "bar"), ("line", "roof"), ("line", "peer"))] == [[], [], []]
    alone = picture(made.page([r for r in measured(made) if not str(r.get("subject")).startswith("peer:") and r["kind"] == "bench"]))
    assert words(alone, "peer") == []
    assert "roof, datasheet: " in alone and len(words(alone, "roof")) == 1


def test_no_name_reaches_into_the_bars(made: Made) -> None:
    svg = picture(made.page(measured(made)), {"torch": "torch with a name that is longer than those of the rungs"})
    (left,) = set(at(svg, "rect", "bar", "x"))
    assert left > 13 / 12 * length("torch with a name that is longer than those of the rungs") and min(at(svg, "rect", "bar", "width")) > 0


def test_the_file_is_closed_escaped_and_small(made: Made) -> None:
    records = measured(made, device={**H100, "name": "</svg><script>alert(1)</script>"})
    svg = picture(made.page(records), {"torch": "<b> & co"})
    assert {e.tag.removeprefix(SVG) for e in ElementTree.fromstring(svg).iter()} == {"svg", "title", "desc", "style", "rect", "text", "line", "path"}
    assert not re.search(r"(href|src|url|@import)", svg)
    assert svg.count("http") == 1, "the name space alone"
    assert len(svg.encode()) < 60_000
    assert "font-family: system-ui" in svg
    assert "prefers-color-scheme: dark" in svg
