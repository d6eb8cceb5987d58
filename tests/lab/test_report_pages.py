"""The pages as files: sources and their differences, well-formed, escaped, closed to the network, their charts."""

from __future__ import annotations

import re
from html import unescape
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _report import FACTS, H100, H200, Made, Strict, kernel, make, quoted, ratio

from rooftop.core import registry
from rooftop.lab.report import charts, scatter, site
from rooftop.lab.report.markup import number


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


# -- sources ---------------------------------------------------------------------------------------------------------


def test_the_difference_shows_what_changed_and_not_the_words_about_it(made: Made) -> None:
    page = made.page([])
    found = site.listing(page.rungs[0], page.rungs[1])
    kinds = {kind: [line.text for line in found.lines if line.kind == kind] for kind in ("added", "removed")}
    assert "threads = 256" in kinds["added"]
    assert "threads = 128" in kinds["removed"]
    assert [x.strip() for x in kinds["added"] if "if (i" in x] == ["if (i < n) y[i] = factor * x[i];"]
    assert not any(re.match(r"idea|predict|limit", x) for x in kinds["added"] + kinds["removed"])
    assert (found.added, found.removed) == (len(kinds["added"]), len(kinds["removed"]))
    old, new = (page.rungs[i].source.splitlines() for i in (0, 1))
    assert [(line.number, line.text) for line in found.lines if line.kind != "removed"] == list(enumerate(new, 1)), "the whole source, in its order"
    assert all(old[line.number - 1] == line.text for line in found.lines if line.kind == "removed")
    assert {line.kind for line in found.lines} == {"far", "same", "added", "removed"}
    first = site.listing(None, page.rungs[0])
    assert {line.kind for line in first.lines if line.number <= 4} == {"far"} and first.lines[-1].kind == "same" and first.cut, "the head is left out"
    assert not site.listing(page.rungs[0], page.rungs[0]).added and not site.listing(page.rungs[0], page.rungs[0]).removed
    ladder = made.build([])[1]
    assert ladder.count('<div class="source">') == 3 == ladder.count('<input type="checkbox" class="whole"')


def test_a_difference_is_where_the_lines_were() -> None:
    def rung(*lines: str) -> Any:
        return SimpleNamespace(name="a/01_b", source="".join(f"{line}\n" for line in lines))

    before, after = rung("a", "b", "c", "d"), rung("a", "x", "c")
    assert [(line.kind, line.number, line.text) for line in site.listing(before, after).lines] == [
        ("same", 1, "a"), ("removed", 2, "b"), ("added", 2, "x"), ("same", 3, "c"), ("removed", 4, "d"),
    ]
    found = site.listing(rung(*(str(i) for i in range(40))), rung(*(str(i) for i in range(40) if i not in (0, 20))))
    assert [(kind, first, text.count("\n") + 1) for kind, first, text in found.runs] == [
        ("removed", 1, 1), ("same", 1, 3), ("far", 4, 13), ("same", 17, 3), ("removed", 21, 1), ("same", 20, 3), ("far", 23, 16),
    ]


def test_a_long_idea_is_left_out_of_the_difference_whole() -> None:
    text = '/* rooftop\nidea = """\nlimit = "none of this"\n"""\nargs = []\n*/\nidea = 3;\n'
    assert [text.splitlines()[i] for i in site.lesson(text)] == ["idea = 3;"]
    text = '/* rooftop\nlimit = "x"\nargs = []\n[config]\nBM = 64\n[[launch]]\nkernel = "k<{BM}>"\nblock = [1]\n*/\nint k;\n'
    assert [text.splitlines()[i] for i in site.lesson(text)] == ["BM = 64", "int k;"]
    text = '"""A rung."""\nIDEA = (\n    "a"\n)\nPREDICT = {"speedup": 2.0}\n\n\ndef f():\n    LIMIT = 3\n'
    assert [text.splitlines()[i] for i in site.lesson(text)] == ['"""A rung."""', "", "", "def f():", "    LIMIT = 3"]


def test_lines_of_a_kind_that_follow_each_other_are_one_run(made: Made) -> None:
    page = made.page([])
    found = site.listing(page.rungs[0], page.rungs[1])
    assert "\n".join(text for _, _, text in found.runs).expandtabs(4) == "\n".join(line.text for line in found.lines)
    assert all(a != b for (a, _, _), (b, _, _) in pairwise(found.runs))
    assert [n for kind, n, _ in found.runs if kind in ("same", "added")] == sorted(n for kind, n, _ in found.runs if kind in ("same", "added"))


def test_a_source_stands_whole_on_its_page(made: Made) -> None:
    parts = re.findall(r"<pre class=\"code\" data-lines tabindex=\"?0\"?>(.*?)</pre>", made.build([])[1], re.S)
    for part, rung in zip(parts, made.page([]).rungs, strict=True):
        kept = re.sub(r'<span class="removed"[^>]*>.*?</span>', "", part, flags=re.S)
        shown = re.sub(r"</?span[^>]*>", "", kept)
        assert unescape(shown).expandtabs(4) == rung.source.rstrip("\n") + "\n" and "<script" not in shown


# -- the pages as files ----------------------------------------------------------------------------------------------


def every_page(made: Made) -> dict[str, str]:
    shipped = made.bench("scale__cuda", 2e-4, versus={"peer:torch": ratio(0.8, "faster"), "ceiling:copy": ratio(1.1, "slower")})
    made.build([*made.climb(), shipped, made.bench("steps/02_wide", 1e-3, stale=True, device=H200)], {("steps/01_plain", 90): FACTS})
    return {p.name: quoted(p) for p in made.out.glob("*.html")}


def test_pages_are_well_formed_and_their_links_lead_somewhere(made: Made) -> None:
    pages = {name: Strict(text) for name, text in every_page(made).items()}
    assert set(pages) == {"index.html", "api.html", "ladder-steps.html", "op-scale.html", "card-h100-80gb-hbm3.html", "card-h200.html"}
    ids = {name: [i for _, i in page.of("id")] for name, page in pages.items()}
    assert all(len(set(found)) == len(found) for found in ids.values())
    for name, page in pages.items():
        for tag, href in page.of("href"):
            if tag == "a":
                file, _, anchor = href.partition("#")
                assert (file or name) in pages, href
                assert not anchor or anchor in ids[file or name], href
        assert page.widths or name == "api.html", "a page without a table"
        assert all(len(set(widths)) == 1 for widths in page.widths), f"{name}: rows of one table have different widths: {page.widths}"


def test_the_check_of_form_can_fail() -> None:
    for bad in ("<p><b>x</p></b>", "<p>x", "x</p>", '<p id="a" id="b">x</p>'):
        with pytest.raises(AssertionError):
            Strict(bad)


def test_pages_load_nothing(made: Made) -> None:
    for text in every_page(made).values():
        page = Strict(text)
        policy = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
        assert [p.split(";")[0] for p in policy if p] == ["default-src 'none'"]
        assert not re.search(r"(connect|font|frame|worker)-src|https?:", str(policy[0]))
        assert list(page.of("src")) == [("script", "report.js")]
        for name in ("srcset", "action", "data", "poster", "background"):
            assert list(page.of(name)) == []
        for tag, href in page.of("href"):
            assert (tag, href) in (("link", "data:,"), ("link", "report.css")) or (tag == "a" and not re.match(r"\w+:|//", href))
        assert not re.search(r"@import|url\(", text)


def test_what_others_wrote_is_escaped(made: Made) -> None:
    made.house.ladders.joinpath("steps", "04_x.cu").write_text(kernel('</script><script>alert(2)</script> & \\"quoted\\"'), encoding="utf-8")
    registry.ladder.cache_clear()
    records = [*made.climb(), made.bench("steps/01_plain", 1e-3, device={**H100, "name": "</script><img src=x onerror=alert(3)>"})]
    pages = made.build(records)
    for text in pages:
        page = Strict(text)
        assert not any(tag == "img" for tag, _ in page.tags)
        assert not re.search(r"<script>\s*alert", text)
        assert "<b>stairs" not in text
    assert '</script><script>alert(2)</script> & "quoted"' in Strict(pages[1]).text
    assert "A tensor times a number & <nothing> else." in Strict(pages[0]).text
    assert "x < y && <script>alert(1)</script>" in Strict(pages[1]).text
    registry.ladder.cache_clear()


def test_building_again_replaces_the_pages_and_leaves_nothing_else(made: Made) -> None:
    made.build(made.climb())
    made.build([])
    left = {"index.html", "api.html", "ladder-steps.html", "op-scale.html", "report.css", "report.js", "search.js"}
    assert {p.name for p in made.out.iterdir()} == left, "the card's page is gone with its records"
    assert "Not measured on any GPU yet" in (made.out / "ladder-steps.html").read_text(encoding="utf-8")


# -- the chart -------------------------------------------------------------------------------------------------------


def bars(figure: charts.Chart) -> dict[str, charts.Bar]:
    return {b.label: b for b in figure.bars}


def test_a_prediction_far_above_all_else_does_not_press_the_climb_together(made: Made) -> None:
    rung = made.house.ladders / "steps" / "02_wide.cu"
    rung.write_text(rung.read_text(encoding="utf-8").replace("speedup = 2.1", "speedup = 40.0"), encoding="utf-8")
    figure = charts.charts(made.page(made.climb()))[0]
    found = bars(figure)
    assert found["02 wide"].beyond and found["02 wide"].predicted == figure.top
    assert figure.top == pytest.approx(1.02 * max(b.value or 0 for b in figure.bars))
    assert not found["03 shipped"].beyond
    assert "predicted 10\u202f737 GB/s" in found["02 wide"].text


def test_the_chart_holds_rungs_roofs_peers_and_predictions(made: Made) -> None:
    figure = charts.charts(made.page(made.climb()))[0]
    found = bars(figure)
    gigabytes = (1 << 28) / 1e9
    values = {name: b.value for name, b in found.items()}
    assert values == pytest.approx({
        "01 plain": gigabytes / 1e-3, "02 wide": gigabytes / 5e-4, "03 shipped": gigabytes / 1.25e-4, "torch": gigabytes / 1.5625e-4,
        "other": gigabytes / 2.5e-4, "roof, measured": 3000, "roof, datasheet": 3350,
    })
    assert [found[n].kind for n in ("01 plain", "torch", "roof, measured", "roof, datasheet")] == ["rung", "peer", "roof", "sheet"]
    assert (found["01 plain"].predicted, found["02 wide"].predicted) == (None, pytest.approx(2.1 * gigabytes / 1e-3))
    assert found["01 plain"].high == pytest.approx(gigabytes / 0.99e-3) and found["01 plain"].low == pytest.approx(gigabytes / 1.02e-3)
    assert dict(figure.lines) == pytest.approx({"roof": 3000, "peer": gigabytes / 1.5625e-4})
    text = made.build([*made.climb(), made.bench("steps/01_plain", 1e-2, at="2026-02-01")])[1]  # a climb of 80 times
    assert 'value="linear" checked' in text and "data-start" not in text and '"one log"' not in text, "linear until a reader asks otherwise"


def test_bars_stand_at_their_values_on_both_axes(made: Made) -> None:
    figure = charts.charts(made.page(made.climb()))[0]

    def places(value: float) -> tuple[float, float]:
        found = re.fullmatch(r"--lin:([\d.]+)%;--log:([\d.]+)%", figure.style(value))
        assert found
        return float(found[1]), float(found[2])

    assert places(figure.top) == (100, 100) and places(figure.top / 2)[0] == 50
    logs = [places(figure.top / 2**k)[1] for k in range(4)]
    assert all(a - b == pytest.approx(logs[0] - logs[1], abs=0.02) for a, b in pairwise(logs)), "the same ratio is the same distance"
    text = made.build(made.climb())[1]
    assert all(f'style="{figure.style(b.value)}"' in text for b in figure.bars if b.value)


def test_each_case_and_card_has_its_chart_and_its_table(made: Made) -> None:
    text = made.build([*made.climb(), made.bench("steps/01_plain", 2e-3, "big bf16"), made.bench("steps/02_wide", 1e-3, device=H200)])[1]
    parts = re.split(r'<div class="one[^>]*data-part=', text)[1:]
    assert len(parts) == text.count("<option") == 3
    assert [("big bf16" in p.partition("</div>")[0], "H200" in p.partition("</div>")[0]) for p in parts] == [(False, False), (True, False), (False, True)]
    assert all(p.count("<tbody>") >= 1 for p in parts)
    assert "2\u202f000" in parts[1].partition("</table>")[0], "the table of a case has its times"


def test_points_stand_at_their_shares_and_no_label_lies_on_another() -> None:
    points = [scatter.Point(10.0 ** (i % 7), 0.3 + i / 50, f"point {i} & <b>", label=f"name{i}") for i in range(30)]
    text = str(scatter.drawing(points, "things", mark=(100.0, "here")))
    assert Strict(text) and "&lt;b&gt;" in text and "<b>" not in text
    wide = text.partition('<div class="narrow">')[0]
    heights = {t: float(y) for y, t in re.findall(r'cy="([\d.]+)" r="4.5"><title>(point \d+)', wide)}
    assert len(heights) == 30 and all(heights[f"point {i}"] > heights[f"point {i + 1}"] for i in range(29))
    boxes = [(float(x), float(y), len(t) * scatter.LETTER) for x, y, t in re.findall(r'class="label" x="([\d.]+)" y="([\d.]+)">(\w+)', wide)]
    assert len(boxes) > 10
    for (x, y, w), (x2, y2, w2) in ((a, b) for i, a in enumerate(boxes) for b in boxes[:i]):
        assert x + w <= x2 or x2 + w2 <= x or abs(y - y2) >= 13
    assert scatter.drawing([], "things") == ""


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.0336, 4, "0.03360"), (1.0, 3, "1.00"), (184730.2, 4, "184\u202f730"), (999.96, 4, "1\u202f000"), (0.0, 4, "0"), (-12.346, 4, "-12.35")],
)
def test_numbers_are_written_to_so_many_digits(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


# -- the tree as it is -----------------------------------------------------------------------------------------------


def test_the_pages_of_the_tree_itself(tmp_path: Path) -> None:
    index = site.build(tmp_path, [])
    ops = {f"op-{n}{b}.html" for n in registry.op_names() for b in ("", "_bwd") if not b or registry.op(n).bwd}
    own = {"index.html", "api.html", "tutorial.html", "report.css", "report.js", "search.js"}
    assert {p.name for p in tmp_path.iterdir()} == {*own, *ops, *(f"ladder-{n}.html" for n in registry.ladder_names())}
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 6e6
    for path in tmp_path.glob("*.html"):
        page = Strict(path.read_text(encoding="utf-8"))
        assert [h for t, h in page.of("href") if t == "a" and re.match(r"\w+:|//", h)] == []
    text = Strict(index.read_text(encoding="utf-8")).text
    for name in (*registry.op_names(), *registry.ladder_names()):
        assert name in text
    for name in registry.ladder_names():
        ladder = Strict((tmp_path / f"ladder-{name}.html").read_text(encoding="utf-8")).text
        assert all(" ".join(r.head.idea.split()) in ladder for r in registry.ladder(name).rungs if r.head)


def test_a_rung_that_has_no_time_has_no_bar(made: Made) -> None:
    records = [r for r in made.climb() if r.get("subject") != "steps/02_wide"]
    found = bars(charts.charts(made.page(records))[0])
    assert (found["02 wide"].kind, found["02 wide"].value) == ("missing", None)
    part = made.build(records)[1].partition("02 wide</span>")[2].partition("</a>")[0]
    assert 'class="fill"' not in part and "–" in part


def test_the_table_of_a_ladder_without_times_has_no_columns_for_them(made: Made) -> None:
    heads = []
    for records in ([], made.climb()):
        text = made.build(records)[1]
        heads.append(text.partition("<th>Rung<")[2].partition("<tbody>")[0])
        assert all(len(set(widths)) == 1 for widths in Strict(text).widths)
    assert [("Time" in head, "Best peer" in head, "Speed-up predicted" in head) for head in heads] == [(False, False, True), (True, True, True)]
