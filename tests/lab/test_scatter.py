"""Points on two axes: no text of the drawing lies on another."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from rooftop.lab.report import scatter

NUMBER = re.compile(r'<text x="([\d.]+)" y="303">([^<]*)</text>')  # of a tick, on a drawing of the usual height


@pytest.mark.parametrize(("low", "high"), [(1e2, 2e6), (3e5, 4e6), (1e6, 9e6), (0.01, 1e9), (5.0, 5.0)])
@pytest.mark.parametrize("wide", [True, False])
def test_the_numbers_of_ticks_stand_apart(low: float, high: float, wide: bool) -> None:
    points, width = [scatter.Point(low, 0.5, "a"), scatter.Point(high, 0.9, "b")], scatter.WIDE if wide else scatter.NARROW
    drawn = scatter._one(points, "columns", None, 1.0, (width, scatter.HEIGHT), wide)
    found = [(float(at), scatter._length(said)) for at, said in NUMBER.findall(drawn)]
    assert found or "v4" not in drawn
    assert all(a + one / 2 < b - other / 2 for (a, one), (b, other) in pairwise(sorted(found)))


def test_broad_letters_take_more_room() -> None:
    assert scatter._length("cumsum") > scatter._length("linear") == 6 * scatter.LETTER


@pytest.mark.parametrize("share", [0.97, 0.985, 1.0, 1.015])
def test_no_label_lies_on_the_line_of_the_roof(share: float) -> None:
    points = [scatter.Point(x, share if n else 0.2, "a", label="cross_entropy") for n, x in enumerate((1.0, 1e3, 1e6))]
    drawn = scatter._one(points, "columns", None, 1.0, (scatter.WIDE, scatter.HEIGHT), True)
    roof = float(re.findall(r'class="top"[^>]*y1="([\d.]+)"', drawn)[0])
    labels = [float(y) for y in re.findall(r'class="label" x="[\d.]+" y="([\d.]+)"', drawn)]
    assert labels and all(not y - 11 < roof < y + 3 for y in labels)


@pytest.mark.parametrize("share", [3.0, 1e6, 1e300])
def test_a_vast_share_has_few_numbers(share: float) -> None:
    drawn = scatter.drawing([scatter.Point(1.0, 0.5, "a"), scatter.Point(2.0, share, "b")], "n")
    assert drawn.count("<text") < 120 and len(drawn) < 60_000
