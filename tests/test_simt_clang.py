"""The simulator built by clang++, as on a machine without g++: it finds the planted faults and counts what g++'s build counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from simt.corpus import BUGS, CLEAN, KINDS, Bug

from rooftop.lab import registry, report_data, rung_counts, settings, simt, subjects
from rooftop.lab.simt import build

CLANG = settings.tool_path("clang++")
pytestmark = pytest.mark.skipif(CLANG is None or simt.unavailable() is not None, reason="no clang++ here (apt install clang)")
# What clang++ makes of these is other code: a copy of 16 bytes becomes a call that knows no alignment, an array on the stack is not watched, and the
# arms of a branch that end alike are made one, at no line.
OPEN = {"misaligned_float4", "misaligned_rows", "local_array_overrun", "uninitialised_output"}
ONE_OF_EACH = [next(b for b in BUGS if b.name not in OPEN and kind in {k[0] for k in b.marks("BUG").values()}) for kind in KINDS if kind != "misaligned"]


@pytest.fixture
def clang(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No g++ is on PATH."""
    with without("g++", "c++", monkeypatch=monkeypatch):
        yield


@contextmanager
def without(*names: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs that are not on PATH meanwhile."""
    found = settings.tool_path

    def tool(name: str) -> Path | None:
        return None if name in names else found(name)

    def forget() -> None:
        for cached in (build.compiler, rung_counts.engine):
            cached.cache_clear()

    with monkeypatch.context() as patch:
        patch.setattr(settings, "tool_path", tool)
        forget()
        try:
            yield
        finally:
            forget()


@pytest.mark.usefixtures("clang")
def test_without_gcc_clang_is_taken() -> None:
    assert build.compiler().clang
    assert build.compiler().path == CLANG
    assert simt.unavailable() is None


@pytest.mark.usefixtures("clang")
@pytest.mark.parametrize("bug", ONE_OF_EACH, ids=lambda b: b.name)
def test_a_fault_of_each_kind_is_found_at_its_line(bug: Bug) -> None:
    report = simt.run_rung(bug.subject(), bug.case, mode="check", seed=1, schedules=3)
    required = bug.marks("BUG")
    assert [f for f in report.findings if f.line in required and f.kind == required[f.line][0]], [str(f) for f in report.findings]


@pytest.mark.usefixtures("clang")
@pytest.mark.parametrize("bug", [*ONE_OF_EACH[::3], *CLEAN[:2]], ids=lambda b: b.name)
def test_the_corrected_twin_raises_no_alarm(bug: Bug) -> None:
    assert not simt.run_rung(bug.subject(fixed=True), bug.case, mode="check", seed=1, schedules=3).findings


@pytest.mark.parametrize("name", ["sgemm_cuda/05", "softmax_cuda/03", "softmax_cuda/05"])
def test_rungs_are_counted_as_by_gcc(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if settings.tool_path("g++") is None:
        pytest.skip("no g++ here to compare with")
    (subject,) = subjects.find([name])
    ladder = registry.ladder(name.partition("/")[0])
    case = rung_counts.small(subjects.rungs(ladder), report_data.headline_of(ladder, subject.op))
    gcc = rung_counts._count(subject, case)
    with without("g++", "c++", monkeypatch=monkeypatch):
        assert build.compiler().clang
        clang = rung_counts._count(subject, case)
    assert gcc.values
    assert clang.values == pytest.approx(dict(gcc.values), rel=0.02)


def test_without_any_compiler_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with without("g++", "clang++", "c++", monkeypatch=monkeypatch):
        reason = simt.unavailable()
        assert reason == "no C++ compiler on PATH: simulating CUDA C++ needs g++ (11 or later) or clang++, with binutils (apt install g++)"
        with pytest.raises(build.NoCompilerError, match=r"needs g\+\+ \(11 or later\) or clang\+\+"):
            build.build("", path="x.cu", kernels=["k"], mode="check")
