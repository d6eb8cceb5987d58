"""The sanitizer's words are read rightly, and the planted faults are faults. (Running it needs a GPU: records show that.)"""

from __future__ import annotations

import json

import pytest

from rooftop.core.spec import TARGETS
from rooftop.lab import candidates, sanitize
from rooftop.lab.check import checker

RESULTS = "\n" + sanitize._RESULTS

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at overrun(int, const float *, const float *, float *)+0x90 in overrun.cu:18
=========     by thread (107,0,0) in block (7,0,0)
=========     Access to 0x7f27e3a00fac is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: somewhere
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at race(int)+0x120 in race.cu:19
=========     and Read access at race(int)+0x1f0 in race.cu:21 [4096 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""


def results(**statuses: tuple[str, str]) -> str:
    return RESULTS + json.dumps(statuses) + "\n"


def test_memcheck_findings_are_counted_and_the_first_is_quoted() -> None:
    found = sanitize.parse("k", "add", "memcheck", MEMCHECK + results(odd=("wrong", "")))
    assert (found.errors, found.cases, found.clean) == (3, ("odd",), False)
    assert found.first.splitlines()[0] == "Invalid __global__ write of size 4 bytes"
    assert "overrun.cu:18" in found.first
    assert "Host Frame" not in found.first


def test_racecheck_findings_are_counted() -> None:
    found = sanitize.parse("k", "add", "racecheck", RACECHECK + results(odd=("ok", "")))
    assert found.errors == 2
    assert "race.cu:21" in found.first
    assert not found.clean


def test_clean_needs_a_summary_of_zero_and_right_results() -> None:
    summary = "========= ERROR SUMMARY: 0 errors\n"
    assert sanitize.parse("k", "add", "memcheck", summary + results(a=("ok", ""), b=("skipped", "huge"))).clean
    assert sanitize.parse("k", "add", "memcheck", summary + results(a=("ok", ""), b=("skipped", "huge"))).cases == ("a",)
    wrong = sanitize.parse("k", "add", "memcheck", summary + results(a=("wrong", "y: off by 3")))
    assert not wrong.clean
    assert "off by 3" in wrong.message


def test_a_process_that_died_is_not_clean() -> None:
    without_summary = sanitize.parse("k", "add", "memcheck", "", "Segmentation fault")
    assert without_summary.errors is None
    assert not without_summary.clean
    assert "Segmentation fault" in without_summary.message
    without_results = sanitize.parse("k", "add", "memcheck", "========= ERROR SUMMARY: 0 errors\n", "ImportError: no module")
    assert not without_results.clean
    assert "ImportError" in without_results.message


@pytest.mark.parametrize("tool", sorted(sanitize.TOOLS))
def test_every_tool_has_a_planted_fault_that_compiles_for_every_target(tool: str) -> None:
    for file in sanitize.TOOLS[tool]:
        subject = candidates.find([str(sanitize.PLANTED / file)])[0]
        for device in TARGETS.values():
            assert sanitize.select_cases(subject, device, "odd f32")
            assert sanitize.symbols(subject, ["odd f32"], device)


def test_symbols_are_those_the_driver_knows() -> None:
    race = candidates.find([str(sanitize.PLANTED / "race.cu")])[0]
    assert sanitize.symbols(race, ["odd f32"], TARGETS[90]) == {"_Z4raceIfLi128EEviPKT_S2_PS0_"}
    add = candidates.find(["add__triton"])[0]
    assert sanitize.symbols(add, ["odd f32"], TARGETS[90]) == {"_add"}


def test_the_planted_triton_fault_is_a_fault_in_the_interpreter_too() -> None:
    subject = candidates.find([str(sanitize.PLANTED / "add__overrun__triton.py")])[0]
    result = checker.check(subject, subject.op.case("odd f32"), backend="interpreter")
    assert result.status == "error"
    assert "OutOfBounds" in result.message


def test_cases_are_small_edges_that_the_kernel_takes() -> None:
    for subject in (*candidates.find(["softmax"]), *candidates.find(["sgemm_cuda/16"])):
        if subject.implementation and subject.implementation.platform != "gpu":
            continue
        chosen = sanitize.select_cases(subject, TARGETS[90])
        assert chosen
        assert all("edge" in c.tags and "huge" not in c.tags for c in chosen)
        assert all(subject.supports(c, TARGETS[90]) is None for c in chosen)


def test_an_unknown_tool_is_named() -> None:
    with pytest.raises(ValueError, match=r"leakcheck.*memcheck, racecheck, synccheck"):
        sanitize.run([], ["leakcheck"])
