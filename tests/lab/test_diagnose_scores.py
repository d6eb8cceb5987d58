"""Predicted gains and what came of them are joined, and their error is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rooftop.lab.counters.diagnose import scores
from rooftop.lab.counters.diagnose.diagnosis import Diagnosis
from rooftop.lab.counters.diagnose.levers import Lever
from rooftop.lab.counters.diagnose.reports import ReportError


def test_a_result_is_joined_with_the_last_prediction_before_it(tmp_path: Path) -> None:
    path = tmp_path / "gains.jsonl"
    lines = [
        {"predicted": "1", "kernel": "k", "lever": "conflicts", "low": 9, "high": 9},
        {"predicted": "2", "kernel": "k", "lever": "conflicts", "low": 1, "high": 4},
        {"predicted": "2", "kernel": "k", "lever": "spills", "low": 2, "high": 2},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    scores.came(path, "k", "conflicts", 1.0)
    scores.came(path, "k", "spills", 4.0)
    scores.came(path, "k", "never predicted", 3.0)
    conflicts, spills, every = scores.scores(scores.joined(path))
    assert (conflicts.lever, conflicts.count, conflicts.inside) == ("conflicts", 1, 1)
    assert conflicts.median_error == pytest.approx(1.0) == conflicts.bias and conflicts.no_change == 0  # twice promised, nothing came
    assert spills.inside == 0 and spills.bias == pytest.approx(-1.0) and spills.no_change == pytest.approx(3.0)
    assert (every.lever, every.count) == ("all", 2)


@pytest.mark.parametrize("line", ["{", '{"predicted": 1}', '{"kernel": "k", "lever": "l"}'])
def test_a_file_of_something_else(tmp_path: Path, line: str) -> None:
    path = tmp_path / "gains.jsonl"
    path.write_text('{"predicted": "1", "kernel": "k", "lever": "l", "low": 1, "high": 2}\n' + line + "\n")
    with pytest.raises(ReportError, match="line 2"):
        scores.joined(path)


def test_a_ratio_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no ratio"):
        scores.came(tmp_path / "gains.jsonl", "k", "l", float("nan"))


def test_several_levers_that_are_gone_are_joined_only_where_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gains.jsonl"
    one, other = (Lever(key, "", low, high, "dram", ()) for key, low, high in (("conflicts", 2.0, 3.0), ("spills", 1.5, 1.6)))
    before = Diagnosis("k", (1,), (32,), 8e-6, "l1", "", None, "clear", None, None, (), (), (one, other), ())
    after = replace(before, seconds=2e-6, levers=())
    assert scores.note(path, before) == ""
    assert "(conflicts, spills): --lever says" in scores.note(path, after) and scores.joined(path) == []
    assert scores.note(path, after, "conflicts").endswith("came 4.00x")
    (joined,) = scores.joined(path)
    assert (joined.lever, joined.low, joined.high, joined.came) == ("conflicts", 2.0, 3.0, 4.0)
    assert "had conflicts, spills" in scores.note(path, replace(before, seconds=1e-6), "overlap")
    assert scores.note(path, replace(before, seconds=4e-6, card="another")) == "" and len(scores.joined(path)) == 1
