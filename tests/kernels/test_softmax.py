"""Softmax: what its cases reach in the Triton kernels, and that a mask left out there is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooftop.core import registry
from rooftop.core.spec import TARGETS
from rooftop.lab import candidates
from rooftop.lab.check import checker

RAGGED = "middle, long 2x1030x5"  # several lanes a program, of which the last three lie outside
NAMES = ("softmax", "softmax_bwd")


@pytest.mark.sampled("kernels", "{name}__triton")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_a_loop_over_columns_with_lanes_outside_is_judged_without_a_gpu(name: str, dtype: str) -> None:
    op, found = registry.op(name), registry.implementation(f"{name}__triton")
    case = op.case(f"{RAGGED} {dtype}")
    for device in TARGETS.values():
        problem = op.kernel_problem(op.problem(case, device))
        assert problem is not None
        config, _ = found.resolve(problem)
        assert config.loop
        assert config.lanes > 1
        assert problem.tensors[0][1].shape[2] % config.lanes
        assert problem.tensors[0][1].shape[1] % config.columns
    assert checker.check(candidates.Subject(found.name, op, found), case, backend="interpreter").status == "ok"


@pytest.mark.parametrize("which", [0, 1], ids=["first pass", "second pass"])
@pytest.mark.parametrize("name", NAMES)
def test_a_pass_of_the_loop_that_forgets_its_lanes_is_rejected(name: str, which: int, tmp_path: Path) -> None:
    house = registry.House(registry.HOUSE.ops, tmp_path / "kernels", tmp_path / "ladders")
    path = registry.implementation(f"{name}__triton").path
    start = "def _loop_bwd(" if name.endswith("_bwd") else "def _loop("
    head, loop = path.read_text(encoding="utf-8").split(start)
    loop, others = loop.split("\n\n\n", 1)
    parts = loop.split(" & (lane < L)")
    assert len(parts) == 3
    loop = parts[0] + (" & (lane < L)" if which else "") + parts[1] + ("" if which else " & (lane < L)") + parts[2]
    (house.kernels / "norm").mkdir(parents=True)
    (house.kernels / "norm" / path.name).write_text(f"{head}{start}{loop}\n\n\n{others}", encoding="utf-8")
    (found,) = registry.implementations(name, house)
    op = registry.op(name)
    result = checker.check(candidates.Subject(found.name, op, found), op.case(f"{RAGGED} f32"), backend="interpreter")
    assert result.status in ("wrong", "error")
    assert "OutOfBounds" in str(result)
