"""What is kept from one run to the next: checks that were right, facts of binaries, digests of records. Each follows from the code, and none is believed
where it is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import _report
import pytest

from rooftop.core import registry
from rooftop.core.spec import TARGETS
from rooftop.lab import candidates, climb
from rooftop.lab.check import check_cache, checker
from rooftop.lab.inspect import inspector
from rooftop.lab.records.record import Record
from rooftop.lab.report import data, known, rung_counts

DEVICE = TARGETS[90]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path))
    return tmp_path


def subject() -> candidates.Subject:
    return candidates.find(["add__triton"])[0]


def test_a_check_that_was_right_is_found_again_and_no_other(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = subject()
    case, other = s.op.case("odd f32"), s.op.case("odd f16")
    assert check_cache.find(s, case, "interpreter", DEVICE) is None
    result = checker.check(s, case, backend="interpreter", seed=1)
    check_cache.keep(s, case, result, DEVICE)
    again = check_cache.find(s, case, "interpreter", DEVICE)
    assert again is not None and again.status == "ok" and again.backend == "interpreter"
    assert again.to_json() == result.to_json()
    assert check_cache.find(s, other, "interpreter", DEVICE) is None
    assert check_cache.find(s, case, "gpu", DEVICE) is None
    monkeypatch.setattr(check_cache, "_judges", lambda: "another checker")
    assert check_cache.find(s, case, "interpreter", DEVICE) is None


def test_what_was_wrong_is_not_kept(cache: Path) -> None:
    s = subject()
    case = s.op.case("odd f32")
    check_cache.keep(s, case, checker.Result(s.name, "add", case.id, "wrong", "interpreter"), DEVICE)
    assert not list(cache.rglob("*.json"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"outputs": {"out": {"no": 1}}, "path": []}', '{"outputs": 3, "path": []}'])
def test_a_damaged_check_is_made_again(cache: Path, text: str) -> None:
    s = subject()
    case = s.op.case("odd f32")
    check_cache.keep(s, case, checker.Result(s.name, "add", case.id, "ok", "interpreter"), DEVICE)
    [path] = cache.rglob("*.json")
    path.write_text(text, encoding="utf-8")
    assert check_cache.find(s, case, "interpreter", DEVICE) is None


def test_facts_are_found_again_and_made_anew_where_they_are_damaged(cache: Path) -> None:
    s = candidates.find(["softmax_cuda/01"])[0]
    case = inspector.inspect_case(s, None, 90)
    assert inspector.kept(s, case, 90) is None
    made = inspector.facts_of(s, case, 90)
    assert inspector.kept(s, case, 90) == json.loads(json.dumps(made))
    assert inspector.kept(s, case, 80) is None
    [path] = cache.rglob("*.of.json")
    for text in ("", "[]", '{"target": "sm_90a"}', '{"target": "sm_90a", "kernels": [{}]}', '{"target": "sm_80", "refused": "x"}'):
        path.write_text(text, encoding="utf-8")
        assert inspector.kept(s, case, 90) is None
        assert json.loads(json.dumps(inspector.facts_of(s, case, 90))) == json.loads(json.dumps(made))


def test_digests_are_kept_for_as_long_as_the_tree_is_the_same(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = known.load()
    key = ("add", "add__triton", ("odd f32",), DEVICE, False)
    assert key not in found
    found[key] = (None, "abc")
    known.save(found)
    again = known.load()
    assert key in again and again[key] == (None, "abc") and not again.grown
    monkeypatch.setattr(known, "FOLDERS", ("ops",))
    assert key not in known.load()
    assert registry.op_names()


def test_what_pages_ask_of_the_tree_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ladder_names", lambda *_: ("softmax_cuda",))
    answers = known.load()
    first = climb.report_facts(False, answers=answers), climb.report_counts((), answers=answers)
    known.save(answers)
    again = known.load()
    assert {key[2:8] for key in again} >= {"facts'", "counts", "place'"}

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("worked out again")

    monkeypatch.setattr(inspector, "inspect_case", asked)
    monkeypatch.setattr(rung_counts, "small", asked)
    assert (climb.report_facts(False, answers=again), climb.report_counts((), answers=again)) == first
    assert not again.grown


def test_what_a_call_takes_and_a_rung_does_not_is_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _report.make(tmp_path, monkeypatch)
    answers: data.Digests = {}
    records = [*made.climb(), made.bench("scale__cuda", 2e-4)]
    first = data.gather(map(Record, records), house=made.house, now=_report.NOW, digests=answers)
    assert {key[0] for key in answers} >= {"takes", "choice", "scale"}
    monkeypatch.setattr(data, "first_choice", lambda *_: "another")
    assert data.gather(map(Record, records), house=made.house, now=_report.NOW, digests=answers) == first
