"""The simulator against what is known beforehand: planted faults that it must find and name, and access patterns counted by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simt.corpus import BUGS, CLEAN, KINDS, Bug
from simt.counts import EXPECTED, FOLDER, PROBES, SIZE, Expected

from rooftop.core.spec import TARGETS
from rooftop.lab.check import checker, judgement
from rooftop.lab.counters.jobs import Job

if TYPE_CHECKING:
    from rooftop.lab.simt import Report

H100 = TARGETS[90]
FILES = sorted(FOLDER.glob("*.cu"))


def simulator() -> Any:
    """rooftop.lab.simt, where there is a C++ compiler to build kernels with; else the test is skipped, with the reason."""
    from rooftop.lab import simt
    from rooftop.lab.simt.build import NoCompilerError, compiler

    try:
        compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))
    return simt


# -- the corpus itself ------------------------------------------------------------------------------------------------


def test_the_corpus_holds_what_it_promises() -> None:
    assert len(BUGS) >= 25
    first = {kinds[0] for bug in BUGS for kinds in bug.marks("BUG").values()}
    assert first == set(KINDS)
    for bug in BUGS:
        assert bug.marks("BUG"), bug.name
        assert all(k in KINDS for word in ("BUG", "MAY") for kinds in bug.marks(word).values() for k in kinds), bug.name
        head = bug.subject().head
        assert head is not None
        assert head.idea.startswith("Planted fault: "), bug.name
        assert head.limit.startswith("On a GPU: "), bug.name
        assert bug.text(False) != bug.text(True), bug.name
        assert bug.text(False).count("\n") == bug.text(True).count("\n")


@pytest.mark.sampled("corpus")
@pytest.mark.parametrize("bug", BUGS + CLEAN, ids=lambda b: b.name)
def test_a_planted_fault_and_its_twin_compile(bug: Bug) -> None:
    for fixed in (False, True):
        subject = bug.subject(fixed)
        assert subject.supports(bug.case, H100) is None
        _, problem = subject.kernel_problem(bug.case, H100)
        implementation: Any = subject.implementation
        launches = implementation.launches(problem, implementation.resolve(problem)[0])
        implementation.compile([x.kernel for x in launches], H100.target)


def test_the_patterns_are_more_than_twenty_and_each_kernel_is_launched() -> None:
    assert len({(e.file, e.kernel) for e in EXPECTED}) >= 60
    for file in FILES:
        job = job_of(file)
        launches = job.launches(H100)
        assert file.read_text(encoding="utf-8").count("__global__ void ") == len(launches)
        job.implementation.compile([x.kernel for x in launches], H100.target)
    assert {e.kernel for e in EXPECTED if e.file.stem == "shared_words"} >= {"stride_32", "column_of_33", "column_swizzled"}


@pytest.mark.parametrize("expected", [e for e in EXPECTED if e.op != "atomic" and e.space == "global"], ids=str)
def test_counts_written_down_are_possible(expected: Expected) -> None:
    """Every request touches a sector at least and 32 times the width at most; the ideal is no more than what is touched."""
    c = expected.counts
    assert c["requests"] <= c["sectors"] <= 64 * c["requests"]
    assert c.get("ideal_sectors", 0) <= c["sectors"]
    assert expected.reason


# -- the simulator on it ----------------------------------------------------------------------------------------------


@pytest.mark.sampled("corpus")
@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name)
def test_a_planted_fault_is_found_at_its_line(bug: Bug) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOFTOP_SIMT_PATIENCE", "2")  # seconds: some of the faults are loops that do not end
        report: Report = simulator().run_rung(bug.subject(), bug.case, mode="check", seed=1, schedules=3)
    required, allowed = bug.marks("BUG"), bug.marks("MAY")
    named = [f for f in report.findings if f.line in required and f.kind == required[f.line][0]]
    assert named, f"not found; reported: {[str(f) for f in report.findings]}"
    stray = [str(f) for f in report.findings if f.kind not in (*required.get(f.line, ()), *allowed.get(f.line, ()))]
    assert not stray, "\n".join(stray)
    source = bug.text(False).splitlines()
    assert all(f.text.strip() == source[f.line - 1].strip() for f in report.findings)


@pytest.mark.sampled("corpus")
@pytest.mark.parametrize("bug", BUGS + CLEAN, ids=lambda b: b.name)
def test_the_corrected_twin_is_clean_and_right(bug: Bug) -> None:
    subject = bug.subject(fixed=True)
    report: Report = simulator().run_rung(subject, bug.case, mode="check", seed=1, schedules=3)
    assert not report.findings, "\n".join(map(str, report.findings))
    expected = judgement.expect(subject.op, bug.case, "cpu", 1)
    for name, verdict in judgement.judge(subject.op, bug.case, expected, shaped(subject.op, bug, report)).items():
        assert verdict.ok, f"{name}: {verdict.message}"


def test_a_race_between_blocks_of_a_cluster_names_both() -> None:
    (bug,) = [b for b in BUGS if b.name == "st_async_slot_freed_too_soon"]
    report: Report = simulator().run_rung(bug.subject(), bug.case, mode="check", seed=1)
    (race,) = [f for f in report.findings if f.text.startswith("            asm volatile") or "st.async" in f.text]
    assert race.other is not None
    assert race.other.text.strip().startswith("s += theirs[k % 2];")
    assert race.other.block is not None
    assert {race.block[0], race.other.block[0]} == {0, 1}
    assert f"of block {race.other.block} read at line {race.other.line} with no barrier of the cluster, nor an mbarrier that counts it, between" in race.message


def shaped(op: Any, bug: Bug, report: Report) -> dict[str, Any]:
    """The outputs in the shapes of the op (kernels see them flattened)."""
    problem = op.problem(bug.case)
    return {n: report.outputs[n].reshape(problem[n].shape) if problem.get(n) is not None else None for n in op.output_names}


def job_of(file: Path) -> Job:
    return Job(str(file), "lines", 0, (("N", SIZE),))


@cache
def counted(file: Path, kernel: str) -> Report:
    """One kernel of a file of patterns, counted."""
    job = job_of(file)
    (launch,) = [x for x in job.launches(H100) if x.kernel == kernel]
    memory = job.memory(H100, "cpu")
    report: Report = simulator().simulate(
        job.implementation.head.source, launch.kernel, memory, grid=(*launch.grid, 1, 1)[:3], block=(*launch.block, 1, 1)[:3],
        arguments=list(zip(launch.args.values(), launch.types, strict=True)), shared=launch.shared, mode="count",
    )
    return report


@pytest.mark.sampled("corpus")
@pytest.mark.parametrize("expected", EXPECTED, ids=str)
def test_a_pattern_is_counted_as_by_hand(expected: Expected) -> None:
    report = counted(expected.file, expected.kernel)
    rows = [c for c in report.lines if (c.line, c.space, c.op) == (expected.line, expected.space, expected.op)]
    assert len(rows) == 1, f"{len(rows)} rows for {expected}: {report.lines}"
    assert {k: getattr(rows[0], k) for k in expected.counts} == expected.counts, expected.reason


@pytest.mark.sampled("simulator")
def test_the_probes_run_too() -> None:
    file = FOLDER / f"{PROBES}.cu"
    for launch in job_of(file).launches(H100)[:3]:
        assert [c for c in counted(file, launch.kernel).lines if c.space == "shared" and c.op == "read"]


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("bug", BUGS + CLEAN, ids=lambda b: b.name)
def test_the_corrected_twin_is_right_on_a_gpu(bug: Bug) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    result = checker.check(bug.subject(fixed=True), bug.case, backend="gpu", seed=1)
    assert result.status == "ok" or (result.status == "wrong" and "differ between two runs" in result.message), result.message
