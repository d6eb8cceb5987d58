"""Attention of 8-bit queries, keys and values: the order of the keys in which weights meet values, what is rounded, what runs it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import rooftop
from rooftop.core.registry import choose, op
from rooftop.core.spec import TARGETS
from rooftop.lab.interpret import interpreter
from rooftop.ops.attention import reference, same

E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize(("keys", "columns"), [(150, 80), (64, 64), (7, 8)])
@pytest.mark.sampled("kernels", "attention__eight__gluon_sm90")
def test_turned_values_are_in_the_order_of_the_weights(keys: int, columns: int) -> None:
    """Weights keep their threads: keys 2t, 2t + 1, 8 + 2t and 9 + 2t of 16 are those of thread t of a quad, which reads 4t to 4t + 3."""
    from rooftop.kernels.attention.attention__eight__gluon_sm90 import turn_values

    heads, padded = 2, -(-keys // 16) * 16
    v = torch.randn(1, keys, heads, columns).to(E4M3)
    turned = torch.full((1, heads, columns, padded), float("nan")).to(E4M3)
    strides = dict(zip(("vb", "vs", "vh"), v.stride()[:3], strict=True))
    sizes = {"S": keys, "PADDED": padded, "H": heads, "DV": columns, "ROWS": 64, "SIZE": max(16, 1 << (columns - 1).bit_length())}
    interpreter.run(turn_values, (-(-padded // 64), heads, 1), {"v": v, "out": turned, **strides, **sizes}, readonly={"v"})
    weights = torch.rand(3, padded)
    weights[:, keys:] = 0
    ordered = weights.reshape(3, padded // 16, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(3, padded)
    for head in range(heads):
        torch.testing.assert_close(ordered @ turned[0, head].float().T, weights[:, :keys] @ v[0, :, head].float())


def _called(size: int = 64, rows: int = 40) -> tuple[list[torch.Tensor], list[Any]]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, rows, 2, size).to(E4M3) for _ in range(3))
    return [q, k, v], [None] * 7 + [torch.ones(1)] * 3 + [None, -1, 0, size**-0.5, 0.0, 0.0, 7]


def test_weights_of_8_bit_queries_are_rounded_to_8_bits_and_those_of_16_are_not() -> None:
    tensors, rest = _called()
    exact = reference(*(x.double() for x in tensors), *rest)[0]
    eight = (same(*tensors, *rest)[0].double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    sixteen = (same(tensors[0].bfloat16(), *tensors[1:], *rest[:7], None, *rest[8:])[0].double() - exact).square().mean().sqrt()
    assert 1e-3 < eight < 3e-2
    assert sixteen / exact.square().mean().sqrt() < 2e-3


@pytest.mark.parametrize(("change", "kernel"), [
    ({}, "attention__eight__gluon_sm90"), ({"arch": 89}, "attention__triton"), ({"dropout_p": 0.5}, "attention__triton"),
])
def test_which_kernel_runs_it(change: dict[str, Any], kernel: str) -> None:
    contract = op("attention")
    case = next(c for c in contract.cases if c.name == "8 bits, causal d128 2048")
    device = dataclasses.replace(TARGETS[90], arch=change.pop("arch", 90))
    case = dataclasses.replace(case, inputs={**case.inputs, **change})
    problem = contract.kernel_problem(contract.problem(case, device))
    assert problem is not None
    assert getattr(choose("attention", problem), "kernel", None) == kernel


@pytest.mark.parametrize(("change", "error", "said"), [
    ({"q": torch.float8_e5m2}, TypeError, "q is torch.float8_e5m2; accepted are"), ({"q_scale": torch.ones(3)}, ValueError, "q_scale has shape"),
    ({"v_scale": torch.ones(1, 1)}, ValueError, "v_scale has shape"),
])
def test_what_it_refuses(change: dict[str, Any], error: type[Exception], said: str) -> None:
    given = {n: torch.randn(1, 8, 2, 16).to(change.get(n, E4M3)) for n in "qkv"}
    scales = {n: x for n, x in change.items() if "scale" in n}
    with pytest.raises(error, match=said):
        rooftop.attention(*given.values(), **scales)
