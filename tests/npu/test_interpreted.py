"""TPU kernels in jax's interpreters, and what these find. Without jax every test here is skipped, with the reason."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rooftop.core import registry, tpu
from rooftop.core.backends import pallas
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.npu import figures
from rooftop.lab.npu import tpu as compiler

pytestmark = [pytest.mark.npu, pytest.mark.skipif(tpu.absent() is not None, reason=str(tpu.absent()))]
BUGS = Path(__file__).parent / "bugs"
KERNELS = {s.name: s for s in figures.subjects()}


def planted(name: str) -> checker.Result:
    found = registry.user_file(BUGS / f"softmax__{name}__pallas_tpu.py")
    op = registry.op(found.op)
    return checker.check(Subject(found.name, op, found), op.case("tile 4x1024 f32"), backend="pallas", seed=3)


@pytest.mark.parametrize("name", list(KERNELS))
def test_every_kernel_is_right_on_a_small_case(name: str, pytestconfig: pytest.Config) -> None:
    """`rooftop npu` runs all of them, and `--all`: results/npu/tpu.json says of which version of the kernel."""
    subject = KERNELS[name]
    cases = sorted(figures.checked_cases(subject), key=lambda c: sum(checker.count(v) for _, v in c.tensors()))
    chosen = cases if pytestconfig.getoption("--all") else cases[len(cases) // 2 :][:1]
    found = [checker.check(subject, c, backend="pallas", seed=5) for c in chosen]
    assert [(r.case, r.message) for r in found if r.status != "ok"] == []


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [("missing_wait", "error", "RACE"), ("out_of_range", "error", "IndexError: Out-of-bounds read"), ("uninitialised", "wrong", "y:")],
)
def test_a_planted_bug_is_found(name: str, status: str, says: str) -> None:
    result = planted(name)
    assert result.status == status and says in result.message, result.message
    op = registry.op("softmax")
    assert checker.check(KERNELS["softmax__pallas_tpu"], op.case("odd 3x7 f32"), backend="pallas").status == "ok", "the process is well afterwards"


def test_a_signal_that_never_comes_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planted("uninitialised").status == "wrong"  # jax is imported, so that the limit is the kernel's
    monkeypatch.setattr(pallas, "LIMIT", 20.0)
    result = planted("lost_signal")
    assert result.status == "error" and "PallasTimeout: no answer in 20 s" in result.message, result.message


def test_two_compilers_at_once_do_not_hold_each_other_up() -> None:
    op, found = registry.op("softmax"), []

    def one() -> None:
        found.append(compiler.facts_of(KERNELS["softmax__pallas_tpu"], op.case("tile 4x1024 f32"), "v5e"))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 2 and found[0] == found[1] and found[0]["cycles"] > 0


def test_the_compiler_refuses_what_vmem_does_not_hold_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    op, subject = registry.op("softmax"), KERNELS["softmax__pallas_tpu"]
    case = op.case("small 512x1024 bf16")
    small = tpu.Tpu(**{**tpu.TPUS["v5e"].__dict__, "shared_per_block": 1 << 19})
    monkeypatch.setattr(type(subject.implementation), "rejects", lambda self, p: None)
    monkeypatch.setattr(compiler, "TPUS", {"v5e": small})
    with pytest.raises(pallas.PallasError, match=r"RESOURCE_EXHAUSTED|vmem"):
        compiler.facts_of(subject, case, "v5e", limit=120)


def test_what_libtpu_says_is_what_is_committed() -> None:
    """Of one kernel: the compiler is the one whose figures are committed."""
    subject = KERNELS["int_matmul__pallas_tpu"]
    case = figures.cases_of(subject)[0]
    known = figures.read()["kernels"][subject.name]["compiled"][case.id]["v5e"]
    found = compiler.facts_of(subject, case, "v5e")
    assert {n: found[n] for n in ("vmem", "bundles", "cycles")} == {n: known[n] for n in ("vmem", "bundles", "cycles")}
