"""The climb of ladders: what it checks and in which order, what it says meanwhile and at the end."""

from __future__ import annotations

import io
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import _report
import pytest
from rich.console import Console

from rooftop.core import registry
from rooftop.core.spec import TARGETS
from rooftop.lab import aot, candidates, climb
from rooftop.lab.check import check_cache, checker
from rooftop.lab.check.proofs import Proofs
from rooftop.lab.records.record import Record
from rooftop.lab.report import findings
from rooftop.lab.report.data import gather


def test_a_climb_says_how_many_cases_it_did_not_run() -> None:
    said = climb.not_run(Counter({"a": 5, "b": 3, "c": 1, "d": 1, "e": 2}))
    assert said == ["5 cases: a", "3 cases: b", "2 cases: e", "2 more, for 2 other reasons: rooftop check names them"]
    assert climb.not_run(Counter({"a": 1})) == ["1 case: a"]


def test_five_lines_say_how_far_each_ladder_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _report.make(tmp_path, monkeypatch)
    of_another = [made.bench(f"steps/0{n}", seconds, device=_report.H200) for n, seconds in (("1_plain", 8e-4), ("2_wide", 2e-4))]
    pages = gather(map(Record, [*made.climb(), *of_another]), house=made.house, now=_report.NOW)
    said = findings.found_out(pages, {"steps"})
    assert said[0].startswith("steps on H100 80GB HBM3, big f32: 8.0x from 01 to 03") and said[0].endswith("1.25x torch")
    assert said[1].startswith("largest steps 03_shipped 4.0x, 02_wide 2.0x; then: ") and "predicted" in said[2] and len(said) == 3
    assert findings.found_out(pages, {"steps"}, "NVIDIA H200")[0].startswith("steps on H200, big f32: 4.0x from 01 to 02")
    assert findings.found_out(gather([], house=made.house, now=_report.NOW), {"steps"})[0] == "steps: 3 rungs, not measured on any GPU"
    seven = replace(pages, ladders=tuple(replace(pages.ladders[0], name=f"steps{n}") for n in range(7)))
    said = findings.found_out(seven, {p.name for p in seven.ladders})
    assert len(said) == findings.LINES and said[-1] == "and 3 more ladders: the report has them" and "; largest step 03_shipped 4.0x" in said[0]


def test_a_step_says_what_it_is_at_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(climb.time, "monotonic", lambda: now[0])
    with climb.step(Console(file=io.StringIO()), "check", 30) as advance:
        for _ in range(25):
            now[0] += 1
            advance()
    assert capsys.readouterr().out.splitlines() == ["check: 10 of 30, 10 s", "check: 20 of 30, 20 s", "check: 25 of 30, 25 s"]


def test_on_a_gpu_the_rungs_come_first_and_checks_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What records of the card prove is left out, and nothing begins after the time that checks have."""
    device, rungs = TARGETS["h200"], candidates.rungs(registry.ladder("softmax_cuda"))[:2]
    shipped = candidates.implementations(registry.op("softmax"))[:1]
    asked: list[tuple[str, Any]] = []

    def check(s: candidates.Subject, c: Any, **_: Any) -> checker.Result:
        asked.append((s.name, c))
        return checker.Result(s.name, s.op.name, c.id, "ok", "gpu")

    monkeypatch.setattr(checker, "check", check)
    monkeypatch.setattr(checker, "backend_of", lambda s: ("gpu", None))
    monkeypatch.setattr(check_cache, "find", lambda *_: None)
    monkeypatch.setattr(check_cache, "keep", lambda *_: None)
    monkeypatch.setattr(aot, "compile_first", lambda todo, device: 0)
    monkeypatch.setattr(Proofs, "hold", lambda self, s, c, card, device: s.name == shipped[0].name and "bench" in c.tags)
    quiet = Console(file=io.StringIO())
    results, unchanged = climb._checked(quiet, rungs, shipped, device, time.monotonic())
    assert unchanged == 0 and len(results) == len(asked)
    names = [name for name, _ in asked]
    firsts = [i for i, (name, c) in enumerate(asked) if name.startswith("softmax_cuda/") and ("edge" in c.tags or c.id == "rows 16384x8192 bf16")]
    assert firsts == list(range(len(firsts))) and set(names) == {*(s.name for s in rungs), shipped[0].name}
    assert not any("bench" in c.tags for name, c in asked if name == shipped[0].name) and not any("huge" in c.tags for _, c in asked)
    asked.clear()
    assert climb._checked(quiet, rungs, shipped, device, time.monotonic() - climb.CHECKS_S - 1) == ([], 0) and not asked
