"""What ladder pages open with: texts whose figures are worked out from the kernels' own configs, and drawings made from them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import _report
import pytest

from rooftop.core import registry
from rooftop.core.names import RegistryError, UnknownName
from rooftop.lab.report import derivation, drawings
from rooftop.lab.report.drawings import banks, causal, lanes, order, pipeline, tree
from rooftop.lab.report.drawings.canvas import length


@pytest.mark.parametrize("name", registry.ladder_names())
def test_each_ladder_opens_with_a_derivation_and_a_drawing(name: str) -> None:
    steps = derivation.steps(registry.ladder(name))
    assert any(step.picture for step in steps)
    text = "\n".join(p for step in steps for p, _ in step.paragraphs)
    assert len(text) > 400
    assert "{" not in text
    for step in steps:
        assert step.paragraphs
        if step.picture:
            svg = ET.fromstring(step.picture.svg)
            assert svg.attrib["aria-label"] == step.picture.about
            width, height = (float(svg.attrib[side]) for side in ("width", "height"))
            assert width <= 1000
            for box in svg.iter("rect"):
                assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
                assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height
            for several in svg.iter("path"):
                for x, y, w, h, back in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-([\d.]+)z", several.attrib["d"]):
                    assert float(x) + float(w) <= width and float(y) + float(h) <= height and w == back


def test_a_drawing_of_banks_counts_what_the_rungs_predict() -> None:
    ladder = registry.ladder("transpose_cuda")
    drawn = next(step["draw"]["variants"] for step in ladder.derivation if step["draw"]["kind"] == "banks")
    for rung, variant in zip(("03", "04", "05"), drawn, strict=True):
        head = registry.rung(f"transpose_cuda/{rung}").head
        assert head is not None
        given = {k: v for k, v in variant.items() if k != "name"}
        assert banks.turns(banks.asked(**given)) == head.predict["conflicts"]


def test_a_drawing_of_lanes_counts_what_the_rungs_predict() -> None:
    row, column = lanes.touched("lane * 4", 4), lanes.touched("lane * 32768", 4)
    head = registry.rung("transpose_cuda/01").head
    assert head is not None
    assert (len(row), len(column)) == (head.predict["sectors_read"], head.predict["sectors_written"])
    assert sum(map(len, column.values())) == 128


@pytest.mark.parametrize(("given", "turns"), [
    ({"row": "0", "unit": "lane", "pitch": 32}, 1),
    ({"row": "0", "unit": "0", "pitch": 32}, 1),  # one word for all lanes
    ({"row": "0", "unit": "lane * 2", "pitch": 32}, 2),
    ({"row": "0", "unit": "lane", "pitch": 32, "words": 4}, 4),  # eight lanes at a time
    ({"row": "0", "unit": "lane * 2", "pitch": 32, "words": 4}, 8),
    ({"row": "lane", "unit": "0", "pitch": 16, "words": 4, "lanes": 8}, 4),
])
def test_turns_of_shared_memory(given: dict[str, object], turns: int) -> None:
    assert banks.turns(banks.asked(**given)) == turns  # type: ignore[arg-type]


def test_times_of_a_pipeline() -> None:
    one, two = pipeline.times(1, 3, 2, 4), pipeline.times(2, 3, 2, 4)
    assert [start for _, _, start in one] == [3, 8, 13, 18]  # a load and a product in turn
    assert [start for _, _, start in two] == [3, 5, 8, 10]  # the third load begins when the first buffer is free, at 5
    assert [start for _, _, start in pipeline.times(8, 3, 2, 4)] == [3, 5, 7, 9]


def test_counts_of_causal_tiles() -> None:
    for m, n in ((4, 8), (8, 4), (16, 16)):
        wanted = [0, 0, 0]
        for a in range(64 // m):
            for b in range(64 // n):
                seen = sum(k <= q for q in range(a * m, a * m + m) for k in range(b * n, b * n + n))
                wanted[0 if seen == 0 else 2 if seen == m * n else 1] += 1
        assert causal.counts(64, 64, m, n) == tuple(wanted)


def test_orders_take_every_tile_once() -> None:
    for group in (1, 3, 8):
        assert sorted(order.places(10, 7, group, 70)) == [(m, n) for m in range(10) for n in range(7)]
    assert order.places(10, 7, 4, 5) == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]


def test_trees_add_everything_once() -> None:
    for name, rule in tree.ORDERS.items():
        values = list(range(32))
        for step in tree.steps(name, 32):
            before = list(values)
            for t in range(32):
                works, one, other = rule(t, step, 32)
                if works:
                    values[one] = before[one] + before[other]
        assert values[0] == sum(range(32)), name


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(UnknownName, match=r"tile"):
        drawings.draw("tiles", {})
    with pytest.raises(ValueError, match=r"drawing tile: .*levels"):
        drawings.draw("tile", {"deep": 3})


def _with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> _report.Made:
    made = _report.make(tmp_path, monkeypatch)
    path = tmp_path / "ladders/steps/ladder.toml"
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")
    return made


def test_a_derivation_stands_on_the_page_and_is_worked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[[derivation]]\nrung = "wide"\ntext = """\nSo many & no more: {block}, {block / 7:.2f}.\n\n    f = {2 * block}\n"""\n'
    made = _with(tmp_path, monkeypatch, text + '[derivation.draw]\nkind = "split"\nlevels = [["row < all", "=block"], ["thread", 1]]\n')
    _, page = made.build([])
    assert "<p>So many & no more: 256, 36.57.<" in page
    assert '<pre class="formula">f = 512</pre>' in page
    assert "row &lt; all: 256 elements" in page and 'id="step-1"' in page, "lessons link to it"
    assert "The times below" not in page, "nothing was timed"
    assert "for an H100, from its datasheet. The times below were measured on H100 80GB HBM3." in _report.Strict(made.build(made.climb())[1]).text


@pytest.mark.parametrize(("text", "said"), [
    ('[[derivation]]\ntext = "{tiles}"\n', "derivation 1: 'tiles' names 'tiles'"),
    ('[[derivation]]\ntext = "a"\n[[derivation]]\nrung = 9\ntext = "b"\n', "derivation 2: .*rung"),
    ('[[derivation]]\nwords = "a"\n', "derivation 1: unknown keys words"),
    ('[[derivation]]\ntext = "a"\ndraw = { kind = "circle" }\n', "derivation 1: .*circle"),
])
def test_a_derivation_that_does_not_work_out_is_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    made = _with(tmp_path, monkeypatch, text)
    with pytest.raises(RegistryError, match=f"ladders/steps/ladder.toml: {said}"):
        derivation.steps(registry.ladder("steps", made.house), made.house)


def test_a_derivation_must_be_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _with(tmp_path, monkeypatch, 'derivation = "because"\n')
    with pytest.raises(RegistryError, match="derivation must be tables"):
        registry.ladder("steps", made.house)


def test_a_text_is_given_the_room_that_the_widest_font_takes() -> None:
    """Measured in Chromium with DejaVu Sans, 12 pixels: the label takes 256 of them, "FMAs" in a box 27."""
    assert 250 < length("15: groups of 8 rows, column by column", "label") < 300
    assert length("FMAs") > 27 and length("fmas") < length("FMAS")
