"""What the pages say of binaries, checks and the sanitizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _report import FACTS, H100, H200, Made, Strict, make
from _support import committed

from rooftop.lab import sanitize
from rooftop.lab.check.proofs import device_of
from rooftop.lab.records import identity
from rooftop.lab.records.record import Record
from rooftop.lab.report import language_page
from rooftop.lab.report.facts import target_facts
from rooftop.lab.report.joined import CHANGED


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


def test_facts_of_binaries_stand_on_the_page(made: Made) -> None:
    two = {"kernels": [FACTS, {**FACTS, "registers": 77, "unmet": ["no <LDG.E.128>"]}]}
    text = Strict(made.build([], {("steps/01_plain", 80): {"refused": "needs sm_90 & more"}, ("steps/01_plain", 90): two})[1]).text
    row = "sm_90a scale<float> 17 8 4 096 192 62.5 shared memory FFMA 43 LDG.128 41 LDG.32 3 hottest loop: LDS.128 47"
    for want in ("needs sm_90 & more", row, "77", "demand not met no <LDG.E.128>"):
        assert want in text, want
    assert "S2R" not in text
    assert "not inspected" in text


def test_facts_that_lack_one_are_refused() -> None:
    with pytest.raises(ValueError, match="facts for sm_80 lack occupancy, spills"):
        target_facts(80, {k: v for k, v in FACTS.items() if k not in ("spills", "occupancy")})


def test_checks_of_now_and_on_record(made: Made) -> None:
    subject = made.gatherer.subject("scale", "steps/01_plain")
    assert subject is not None
    base = {"kind": "check", "op": "scale", "subject": "steps/01_plain", "device": H100, "at": "2026-01-01T10:00:00+00:00", "run": "c", "backend": "gpu"}
    good = {**base, "case": "big f32", **subject.identity(subject.op.case("big f32"), device_of(Record(base))).facts, "error": {"ok": True}}
    old = {**base, "case": "odd f32", "digest": "old", "error": {"ok": False}}
    now = [
        {"op": "scale", "subject": "steps/01_plain", "case": "tiny f32", "status": "wrong", "message": "<3> is not 4", "backend": "interpreter"},
        {"op": "scale", "subject": "steps/01_plain", "case": "odd f32", "status": "skipped", "message": "no GPU", "backend": ""},
    ]
    text = Strict(made.build([good, old], checks=now)[1]).text
    assert "right NVIDIA H100 80GB HBM3, 2026-01-01 (gpu): 1 cases right" in text
    assert "1 wrong just now, here (interpreter): 0 cases right, 1 could not run there (no GPU) tiny f32 : <3> is not 4" in text
    assert text.count("no check on record for this version") == 2


# -- the sanitizer ---------------------------------------------------------------------------------------------------


def ran(made: Made, tool: str, cases: tuple[str, ...] = ("small f32",), subject: str = "steps/01_plain", **more: Any) -> dict[str, Any]:
    """A record as `rooftop sanitize` writes it."""
    found = made.gatherer.subject("scale", subject)
    assert found is not None
    record: dict[str, Any] = {
        "kind": "sanitize", "op": "scale", "subject": subject, "case": tool, "cases": list(cases), "errors": 0, "first": "", "message": "",
        "device": {k: H100[k] for k in ("name", "arch", "sms")}, "at": "2026-01-01T10:00:00+00:00", "run": "s",
    }
    return {**record, **identity.of(found, [found.op.case(c) for c in cases], device_of(Record(record))).facts, **more}


def lines(made: Made, records: list[dict[str, Any]], rung: int = 1) -> list[tuple[str, str, str, int, int]]:
    """(card, tools, state, errors, cases) of a rung."""
    found = made.page(records).rungs[rung - 1].sanitized
    return [(s.short, names, run.state, run.errors, run.cases) for s in found for names, run in s.lines]


ALL = "memcheck, racecheck, synccheck"


def test_a_clean_rung_says_which_tools_ran_on_how_many_cases(made: Made) -> None:
    records = [ran(made, tool, ("small f32", "big f32")) for tool in sanitize.TOOLS]
    assert lines(made, records) == [("H100 80GB HBM3", ALL, "clean", 0, 2)]
    assert f"clean {ALL} clean on 2 cases, NVIDIA H100 80GB HBM3, 2026-01-01" in Strict(made.build(records)[1]).text
    records = [ran(made, tool) for tool in sanitize.TOOLS]
    home, ladder = (Strict(t).text for t in made.build(records))
    assert f"{ALL} clean on 1 edge case, NVIDIA H100" in ladder
    assert ladder.count("compute-sanitizer has not run on this") == 2
    assert "sm_80 not run" in home, "the shipped kernel's own mark"


def test_a_tool_that_did_not_run_is_not_clean(made: Made) -> None:
    records = [ran(made, "memcheck", subject="scale__cuda"), ran(made, "synccheck", subject="scale__cuda")]
    assert lines(made, records, 3) == [("H100 80GB HBM3", "memcheck, synccheck", "clean", 0, 1), ("H100 80GB HBM3", "racecheck", "not run", 0, 0)]
    home = Strict(made.build(records)[0]).text
    assert "sm_80 not run H100 80GB HBM3" in home
    assert "sm_80 clean H100 80GB HBM3" in Strict(made.build([*records, ran(made, "racecheck", subject="scale__cuda")])[0]).text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"errors": 3, "first": "Invalid __global__ read of size <4>\nat k.cu:7"}, "wrong racecheck: 3 errors on 1 edge case, NVIDIA H100 80GB HBM3"),
        ({"errors": 1, "first": "Race"}, "racecheck: 1 error on 1 edge case"),
        ({"message": "small f32 is wrong: y off"}, "wrong racecheck on 1 edge case, NVIDIA H100 80GB HBM3, 2026-01-01 small f32 is wrong: y off"),
    ],
)
def test_findings_are_shown_in_the_tools_words(made: Made, more: dict[str, Any], said: str) -> None:
    records = [ran(made, "memcheck"), ran(made, "racecheck", **more), ran(made, "synccheck")]
    assert [(names, state) for _, names, state, _, _ in lines(made, records)] == [("memcheck, synccheck", "clean"), ("racecheck", "wrong")]
    text = Strict(made.build(records)[1]).text
    assert said in text
    assert " ".join(str(more.get("first", "")).split()) in text


def test_a_run_on_another_kernel_is_stale(made: Made) -> None:
    records = [ran(made, tool, digest="000000000000") for tool in sanitize.TOOLS]
    assert all(state == "stale" for _, _, state, _, _ in lines(made, records))
    records = [ran(made, "memcheck"), ran(made, "synccheck"), ran(made, "racecheck", digest="000000000000", errors=5)]
    assert [(names, state, errors) for _, names, state, errors, _ in lines(made, records)] == [
        ("memcheck, synccheck", "clean", 0),
        ("racecheck", "stale", 0),
    ]
    assert f"stale racecheck ran before: {CHANGED}" in Strict(made.build(records)[1]).text
    gone = [ran(made, tool) | {"cases": ["gone f32"]} for tool in sanitize.TOOLS]
    assert "ran before: scale no longer has this case" in Strict(made.build(gone)[1]).text


def test_a_later_run_of_one_case_hides_neither_the_findings_nor_the_cases_of_one_of_all(made: Made) -> None:
    first = ran(made, "memcheck", ("small f32", "big f32"), errors=2)
    later = ran(made, "memcheck", at="2026-01-02T10:00:00+00:00")
    assert lines(made, [first, later])[0][1:] == ("memcheck", "wrong", 2, 2)
    assert lines(made, [later, first])[0][1:] == ("memcheck", "wrong", 2, 2), "whatever order they are read in"
    again = ran(made, "memcheck", ("small f32", "big f32"), at="2026-01-02T10:00:00+00:00")
    assert lines(made, [first, again])[0][1:] == ("memcheck", "clean", 0, 2)


def test_the_last_rung_takes_the_runs_of_the_kernel_that_it_is_and_each_card_has_its_line(made: Made) -> None:
    other = {"device": {"name": "NVIDIA H200", "arch": 90, "sms": 132}}
    records = [ran(made, tool, subject="scale__cuda") for tool in sanitize.TOOLS]
    records += [ran(made, "memcheck", subject="steps/03_shipped") | other]
    assert H200["name"] == "NVIDIA H200"
    assert lines(made, records, 3) == [
        ("H100 80GB HBM3", ALL, "clean", 0, 1),
        ("H200", "memcheck", "clean", 0, 1),
        ("H200", "racecheck, synccheck", "not run", 0, 0),
    ]


def test_a_record_of_a_language_without_its_time_is_read_as_the_oldest() -> None:
    found = [r.but(at=None) for r in committed() if r["kind"] == "language"]
    assert found
    assert language_page.rows(found, {}, lambda r: None) == ()
