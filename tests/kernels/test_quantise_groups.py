"""Groups that a warp takes some at once: each config bit for bit the reference's, where warps differ in what they hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from rooftop.core import registry
from rooftop.core.call import Call
from rooftop.core.contract import metas_of
from rooftop.core.spec import TARGETS, Input
from rooftop.lab import simt
from rooftop.lab.check import checker, judgement

pytestmark = [
    pytest.mark.sampled("kernels", "quantize__groups__cuda_sm80"),
    pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable())),
]
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-38, 3e38, 1.0)


def numbers(groups: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Groups of many sizes. The first 64 are ordinary, so are their warps; of the others every fifth is special in one element or in all."""
    generator = torch.Generator().manual_seed(3)
    size = 2.0 ** torch.randint(-6, 7, (groups, 1), generator=generator)
    x = torch.randn(groups, length, generator=generator) * size
    x[40] = 0.0
    for i, g in enumerate(range(64, groups, 5)):
        x[g, (slice(None) if i % 2 else slice(0, 1))] = SPECIAL[i % len(SPECIAL)]
    x[64::7] = x[64::7].sign() * 3  # borders of codes are met exactly
    return x.to(dtype)


@pytest.mark.parametrize("units", [1, 2, 4])
@pytest.mark.parametrize(
    ("like", "length", "dtype", "more"),
    [
        ("nvfp4 group bf16", 16, torch.bfloat16, {}),
        ("mxfp4 group bf16", 32, torch.bfloat16, {}),
        ("mxfp8_e4m3 group bf16", 32, torch.bfloat16, {}),
        ("int8 group bf16", 128, torch.bfloat16, {}),
        ("int8 asymmetric group bf16", 64, torch.bfloat16, {"rounding": "stochastic"}),
        ("e4m3 group f32", 16, torch.float32, {"rounding": "stochastic"}),
        ("e2m1 group bf16", 256, torch.float16, {}),
        ("uint4 group bf16", 32, torch.float16, {"scales": "f16"}),
    ],
)
def test_every_config_is_right(like: str, length: int, dtype: torch.dtype, more: dict[str, str], units: int) -> None:
    op = registry.op("quantize")
    case = op.case(like)
    spec = case.inputs["x"]
    assert isinstance(spec, Input)
    x = numbers(64 + 70 * 16 // length * 8, length, dtype).unsqueeze(0)
    name = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
    case = dataclasses.replace(case, inputs={**case.inputs, "x": Input((1, *x.shape[1:]), name), "columns": length, **more})
    options: dict[str, Any] = {n: v for n, v in case.inputs.items() if not isinstance(v, Input) and n not in ("x", "over")}
    tensors = {"x": x, "over": torch.tensor([2.0**-9 * 1.1]) if case.inputs["over"] is not None else None}
    problem = op.problem_of(metas_of(tensors), options, TARGETS[90])
    call = Call.of(op, registry.implementation("quantize__groups__cuda_sm80"), problem)
    call = call.with_config({**call.config, "units": units})
    expected = judgement.expect_given(op, problem, tensors, options)
    got, _ = checker.Trial(call, "cpu", checker.RUNNERS["simt"], 64).run(tensors, options, 0xFF)
    verdicts = judgement.judge_given(op, problem, expected, {**dict.fromkeys(op.output_names), **got})
    assert {n: v.message for n, v in verdicts.items() if not v.ok} == {}
