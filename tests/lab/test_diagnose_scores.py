"""Predicted gains and what came of them are joined, and their error is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooftop.lab.counters.diagnose import scores
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
