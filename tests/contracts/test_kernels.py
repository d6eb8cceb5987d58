"""What every kernel keeps: it is right where it can run without a GPU, and it compiles for every target."""

from __future__ import annotations

import pytest

from rooftop.core import registry
from rooftop.lab import candidates
from rooftop.lab.check import checker
from rooftop.lab.inspect import inspector

OPS = [n for name in registry.op_names() for n in (name, *([f"{name}_bwd"] if registry.op(name).bwd else []))]
TRITON = [f.name for f in registry.kernel_files() if f.backend == "triton"]


@pytest.mark.parametrize("name", TRITON)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_every_triton_kernel_is_right_in_the_interpreter(name: str, dtype: str) -> None:
    subject = candidates.find([name])[0]
    found = [checker.check(subject, c, backend="interpreter", seed=7) for c in checker.select_cases(subject, tags=("edge",), dtype=dtype)]
    assert [(r.case, r.message) for r in found if r.status in ("wrong", "error")] == []
    assert sum(r.status == "ok" for r in found) >= 10


RUNGS = [s for n in registry.ladder_names() for s in candidates.rungs(registry.ladder(n))]


@pytest.mark.parametrize("subject", RUNGS + candidates.find(OPS), ids=lambda s: s.name)
@pytest.mark.parametrize("arch", [80, 89, 90])
def test_every_kernel_compiles_and_meets_its_demands(subject: candidates.Subject, arch: int) -> None:
    facts = inspector.facts_of(subject, inspector.inspect_case(subject, None, arch), arch)
    assert facts.get("kernels") or arch < 90, facts
    assert [u for k in facts.get("kernels", []) for u in k["unmet"]] == []
