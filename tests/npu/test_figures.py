"""What is committed of NPU kernels is of the tree as it is, and what it says holds. No jax is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from _support import command, flat

from rooftop.core import registry, settings, tpu
from rooftop.core.backends.pallas import PallasImplementation
from rooftop.core.backends.table import BACKENDS
from rooftop.core.spec import TARGETS, Meta
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.npu import ascend, figures, pages
from rooftop.lab.npu import tpu as compiler

SUBJECTS = figures.subjects()


def test_every_kernel_was_checked_and_compiled_as_it_now_is() -> None:
    assert [(s.name, what) for s, what, _ in figures.stale(figures.read())] == [], "rooftop npu checks and compiles what changed"


def test_a_triton_kernel_that_changed_since_it_was_compiled_for_ascend_is_named() -> None:
    """Anybody may change one; few have Huawei's compiler."""
    found = ascend.read()
    known = found["kernels"]["matmul__triton"]
    changed = {**found, "kernels": {**found["kernels"], "matmul__triton": {**known, "digest": "0"}}}
    assert "matmul__triton" in ascend.stale(changed) and "Changed since they were compiled: " in pages.of_ascend(changed)
    assert len(found["kernels"]) >= 25 and any("refused" in x for k in found["kernels"].values() for t in k["tried"] for x in t["launches"])


def test_the_pages_are_those_of_the_figures() -> None:
    assert pages.outdated() == [], "rooftop npu --only pages"


def test_every_kernel_compiles_for_every_chip() -> None:
    found = figures.read()["kernels"]
    for s in SUBJECTS:
        for case, targets in found[s.name]["compiled"].items():
            assert set(targets) == set(tpu.TPUS), (s.name, case)
        assert any(all("refused" not in f for f in targets.values()) for targets in found[s.name]["compiled"].values()), s.name


def test_a_product_of_4096_cubed_keeps_the_matrix_units_of_a_v5e_busy() -> None:
    found = figures.read()["kernels"]["matmul__pallas_tpu"]["compiled"]["4096 cubed bf16"]["v5e"]
    assert found["cycles"] * 4 * 128 * 128 * found["matrix_share"] == pytest.approx(4096**3, rel=1e-3)
    assert found["matrix_share"] >= 0.90


def test_the_ladder_climbs_where_the_matrix_units_are_given_bfloat16() -> None:
    """By static cycles at its headline, on v5e: six passes of float32 become one, and what the tiles cost is left."""
    kernels = figures.read()["kernels"]
    rungs = [s for s in SUBJECTS if s.rung is not None]
    cycles = [kernels[s.name]["compiled"]["1024 cubed bf16"]["v5e"]["cycles"] for s in rungs]
    assert cycles[3] < cycles[2] / 1.5


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_every_kernel_takes_some_case_and_says_why_not_of_the_others(subject: Subject) -> None:
    reasons = [subject.supports(c, tpu.ANY) for c in subject.op.cases]
    assert None in reasons and all(r is None or len(r) > 10 for r in reasons)
    assert subject.implementation is not None
    said = subject.supports(subject.op.cases[0], TARGETS[90])
    assert said == f"runs on a TPU, or in its interpreter; {TARGETS[90].name} is none"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_what_a_kernel_chooses_fits_every_chip(subject: Subject) -> None:
    for device in tpu.TPUS.values():
        for case in subject.op.cases:
            if subject.supports(case, device) is None and not subject.op.idle(subject.op.problem(case)):
                _, problem = subject.kernel_problem(case, device)
                implementation = subject.implementation
                assert isinstance(implementation, PallasImplementation)
                config = implementation.choose(problem)
                assert implementation.module.vmem(problem, config) <= device.shared_per_block


def test_numbers_that_a_tpu_has_not_are_refused_by_name() -> None:
    op = registry.op("transpose")
    found = registry.implementation("transpose__pallas_tpu")
    problem = Subject(found.name, op, found).kernel_problem(op.case("odd 3x7 i64"), tpu.ANY)[1]
    assert found.supports(problem) == "x is i64; a TPU computes with 32 bits, bfloat16 and 8 bits"
    wide = op.problem_of({"x": Meta((4, 1 << 28), "f32")}, {"dim0": 0, "dim1": 0}, tpu.ANY)
    assert found.supports(op.canonical(wide)) is None  # type: ignore[misc, arg-type]
    softmax = registry.op("softmax")
    long = softmax.problem_of({"x": Meta((64, 1 << 22), "f32")}, {"dim": 1}, tpu.ANY)
    assert "bytes of VMEM" in str(registry.implementation("softmax__pallas_tpu").supports(softmax.canonical(long)))  # type: ignore[misc, arg-type]


def test_without_jax_a_kernel_is_skipped_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "python", lambda *_: None)
    subject = next(s for s in SUBJECTS if s.name == "softmax__pallas_tpu")
    result = checker.check(subject, subject.op.case("odd 3x7 f32"), backend="pallas")
    assert result.status == "skipped" and ".[tpu]" in result.message and "make npu-env" in result.message
    with pytest.raises(ValueError, match="target is 'v9'; it is one of v5e, v5p, v6e, ascend910b"):
        compiler.device_of("v9")


def test_the_package_never_imports_jax() -> None:
    """Reading, choosing and refusing included."""
    code = (
        "import sys; from rooftop.core import tpu; from rooftop.lab.npu import figures\n"
        "for s in figures.subjects(): [s.supports(c, tpu.ANY) for c in s.op.cases]\n"
        "assert not {'jax', 'libtpu'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=settings.CHECKOUT)


def test_pallas_is_the_last_to_be_asked() -> None:
    assert list(BACKENDS)[-1] == "pallas"
    assert {f.backend for f in registry.kernel_files() if f.path.stem.endswith("_tpu")} == {"pallas"}


def test_the_command_says_what_it_does_not_know_and_what_it_could_not_make(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "npu", "--only", "nosuch") == 1
    assert "--only nosuch: it is one of checked, compiled, ascend, pages" in flat(capsys.readouterr().err)
    monkeypatch.setattr(figures, "update", lambda *_: None)
    monkeypatch.setattr(figures, "stale", lambda *_: iter([(SUBJECTS[0], "checked", None)]))
    assert command(monkeypatch, "npu", "--only", "checked") == 3
    assert f"not made anew: {SUBJECTS[0].name}" in flat(capsys.readouterr().err)


def test_targets_of_two_makers_are_both_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ascend, "absent", lambda: None)
    monkeypatch.setattr(ascend, "inspect", lambda found: [{"subject": s.name, "kernel": "_tile", "verdict": "yes"} for s in found])
    monkeypatch.setattr(tpu, "absent", lambda: None)
    monkeypatch.setattr(compiler, "facts_of", lambda subject, case, target: {"bundles": 178})
    assert command(monkeypatch, "inspect", "softmax", "--target", "v5e", "--target", "ascend910b") == 0
    out = capsys.readouterr().out
    assert "softmax__triton" in out and "softmax__pallas_tpu" in out
    monkeypatch.setattr(ascend, "inspect", lambda found: [])
    assert command(monkeypatch, "inspect", "softmax__pallas_tpu", "--target", "ascend910b") == 1
    assert "none of these is a Triton kernel" in flat(capsys.readouterr().err)
