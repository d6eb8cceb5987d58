"""What every kernel keeps: it is right where it can run without a GPU, and it compiles for every target."""

from __future__ import annotations

import pytest
from contracts import plan

from rooftop.core import triton_compat
from rooftop.core.spec import TARGETS
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.inspect import inspector

EVERY = plan.every()
RUNS = [s for s in EVERY if plan.place(s)[1] is None]
SPLIT = [pytest.param(s, d, id=f"{plan.label(s)} {d}") for s in RUNS for d in sorted({c.dtype for c in checker.select_cases(s)})]
COMPILED = [s for s in EVERY if s.implementation is not None and s.op.twin_of is None and s.implementation.where().place != "torch"]
TRITON = [s for s in COMPILED if s.implementation is not None and s.implementation.backend in ("triton", "gluon") and s.rung is None]


@pytest.fixture(scope="session")
def planned(pytestconfig: pytest.Config) -> plan.Plan:
    from conftest import whole

    return plan.Plan(RUNS, plan.seed(), all_=whole(pytestconfig))


@pytest.mark.parametrize(("subject", "dtype"), SPLIT)
def test_every_kernel_is_right_without_a_gpu(subject: Subject, dtype: str, planned: plan.Plan) -> None:
    """On its cases that have changed since they were checked, and on those of the sample (contracts/plan.py)."""
    found = []
    for case in (c for c in planned.cases(subject) if c.dtype == dtype):
        if planned.always(subject, case):
            found.append(checker.check(subject, case, backend="cpu", seed=7))
        elif plan.CLOCK.allows([plan.label(subject)]):
            with plan.CLOCK.running():
                found.append(checker.check(subject, case, backend="cpu", seed=7))
    assert [(r.case, r.message) for r in found if r.status in ("wrong", "error")] == []
    if not any(r.status == "ok" for r in found):
        reasons = [r.message for r in found]
        pytest.skip(max(reasons, key=reasons.count) if reasons else "no case has changed since it was checked, and none is in the sample of this commit")


@pytest.mark.parametrize("subject", EVERY, ids=plan.label)
def test_every_kernel_takes_some_case_of_its_contract(subject: Subject) -> None:
    assert subject.implementation is not None
    devices = [d for arch, d in TARGETS.items() if isinstance(arch, int) and arch >= subject.implementation.arch]
    reasons = set()
    for reason in (subject.supports(c, d) for c in subject.op.cases for d in devices):
        if reason is None:
            return
        reasons.add(reason)
    pytest.fail(f"it takes none: {reasons}")


@pytest.mark.sampled("binaries", "{subject.name}")
@pytest.mark.parametrize("subject", COMPILED, ids=lambda s: s.name)
@pytest.mark.parametrize("arch", sorted(TARGETS))
def test_every_kernel_compiles_and_meets_its_demands(subject: Subject, arch: int) -> None:
    if subject.implementation is not None and (reason := subject.implementation.builds()):
        pytest.skip(reason)
    facts = inspector.facts_of(subject, inspector.inspect_case(subject, None, arch), arch)
    assert facts.get("kernels") or arch < max(TARGETS), facts
    assert [u for k in facts.get("kernels", []) for u in k["unmet"]] == []


@pytest.mark.sampled("binaries", "{subject.name}")
@pytest.mark.parametrize("arch", sorted(TARGETS))
@pytest.mark.parametrize("subject", TRITON, ids=lambda s: s.name)
def test_every_path_of_every_triton_kernel_compiles(subject: Subject, arch: int) -> None:
    """With the Triton that is installed; `make test-triton39` runs this with 3.9."""
    implementation = subject.implementation
    assert implementation is not None
    if arch < implementation.arch:
        pytest.skip(f"it is for sm_{implementation.arch} and later")
    seen = set()
    for case in subject.op.cases:
        _, problem = subject.kernel_problem(case, TARGETS[arch])
        if implementation.supports(problem) is not None:
            continue
        config, _ = implementation.resolve(problem)
        for launch in implementation.launches(problem, config):
            path = (launch.kernel.__name__, case.dtype)
            if path not in seen:
                seen.add(path)
                made = implementation.machine_code(problem, launch, implementation.scratch(problem, config))
                assert f".target sm_{arch}" in made.ptx
                assert made.cubin
                assert made.shared <= TARGETS[arch].shared_per_block
    assert seen or arch < max(TARGETS), f"{subject.name} takes nothing on sm_{arch}"


def test_the_installed_triton_is_accepted() -> None:
    assert (3, 6) <= triton_compat.version() <= (3, 9)
