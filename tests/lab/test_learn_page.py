"""The table of docs/learn.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rooftop.lab.records import store
from rooftop.lab.report import tables

DEVICE = {"name": "a CPU", "machine": "x86_64", "cores": 2}


def written(folder: Path, rows: list[dict[str, Any]]) -> list[store.Record]:
    with store.Writer(folder, DEVICE["name"]) as writer:
        writer.write({"kind": "clock", "subject": "learn", "device": DEVICE, "versions": {}, "browser": "Chromium 150", "rows": rows})
    return list(store.read(folder))


def test_the_median_and_the_slowest_of_each_width(tmp_path: Path) -> None:
    seconds = {"a": 0.5, "b": 0.25, "c": 0.125}
    pages = [{"what": "page", "of": f"learn-{n}.html", "width": w, "seconds": s * w / 390} for n, s in seconds.items() for w in (390, 780)]
    text = tables.learn(written(tmp_path, [*pages, {"what": "terminal", "of": "a/02", "seconds": 1.5}]), None)
    assert text.splitlines()[0] == "a CPU, 2 cores; Chromium 150, headless." and text.splitlines()[4:] == [
        "| a page at 390 px | 3 | 0.25 | 0.50 | `learn-a.html` |", "| a page at 780 px | 3 | 0.50 | 1.00 | `learn-a.html` |",
        "| a lesson in the terminal, to its first question | 1 | 1.50 | 1.50 | `a/02` |",
    ]


@pytest.mark.parametrize("row", [{"what": "page", "of": "x"}, {"what": "page", "of": "x", "seconds": 0}])
def test_a_row_without_a_time_is_no_record(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(store.RecordError, match=r"rows\[0\]\.seconds"):
        written(tmp_path, [row])
