"""linear_jsd: its public function and its plan of chunks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from _kernels import right

import rooftop
from rooftop.core import registry
from rooftop.core.call import Call
from rooftop.core.spec import TARGETS, TorchCall


def given(n: int = 6, h: int = 8, v: int = 20, k: int = 5) -> dict[str, Any]:
    g = torch.Generator().manual_seed(3)
    x, w, tx, tw = (torch.randn(shape, generator=g) for shape in ((n, h), (v, h), (n, k), (v, k)))
    return {"x": x.requires_grad_(), "weight": w.requires_grad_(), "teacher_x": tx, "teacher_weight": tw}


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * (p.log() - q.log())).sum(-1)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_loss_and_gradients_are_those_of_the_formula(beta: float) -> None:
    t = given()
    p, q = ((a @ b.t() / 2).softmax(-1) for a, b in ((t["x"], t["weight"]), (t["teacher_x"], t["teacher_weight"])))
    mixture = beta * q + (1 - beta) * p
    mixed = beta * divergence(q, mixture) + (1 - beta) * divergence(p, mixture)
    each = divergence(q, p) if beta == 0 else divergence(p, q) if beta == 1 else mixed
    mask = torch.tensor([True, True, False, True, True, True])
    want = each[mask].mean()
    got = rooftop.linear_jsd(**t, beta=beta, temperature=2.0, mask=mask)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(3 * got, [t["x"], t["weight"]]), torch.autograd.grad(3 * want, [t["x"], t["weight"]]), strict=True):
        torch.testing.assert_close(a, b)


def test_a_student_that_is_its_teacher_has_no_loss() -> None:
    t = given()
    loss = rooftop.linear_jsd(t["x"], t["weight"], t["x"], t["weight"])
    assert loss.detach().abs() < 1e-6
    assert all(g.abs().max() < 1e-6 for g in torch.autograd.grad(loss, [t["x"], t["weight"]]))


def test_a_frozen_student_has_no_gradient_and_no_token_no_loss() -> None:
    t = given()
    loss = rooftop.linear_jsd(t["x"], t["weight"].detach(), t["teacher_x"], t["teacher_weight"])
    loss.backward()
    assert t["x"].grad is not None
    assert not rooftop.linear_jsd(**{n: v.detach() for n, v in t.items()}).requires_grad
    assert rooftop.linear_jsd(**t, mask=torch.zeros(6, dtype=torch.bool), reduction="sum") == 0


def test_a_second_derivative_is_refused() -> None:
    """Its gradient is made in the forward: what it depends on is not recorded, and a gradient of zeros would be silently wrong."""
    t = given()
    loss = rooftop.linear_jsd(**t)
    with pytest.raises(NotImplementedError, match="linear_jsd can be differentiated once"):
        torch.autograd.grad(loss, t["x"], create_graph=True)
    assert torch.autograd.grad(rooftop.linear_jsd(**t), t["x"])[0].abs().max() > 0


def test_opcheck() -> None:
    t = given()
    rooftop.linear_jsd(**t)
    args = (*t.values(), torch.ones(6, dtype=torch.bool), 0.5, 2.0, "mean", True, True, True, "")
    torch.library.opcheck(torch.ops.rooftop.linear_jsd.default, args)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"x": [1.0]}, TypeError, "x is a list"),
        ({"teacher_weight": torch.zeros(20, 5).half()}, TypeError, "teacher_weight is torch.float16 and x torch.float32"),
        ({"teacher_weight": torch.zeros(21, 5)}, ValueError, "20 classes and teacher_weight 21"),
        ({"teacher_x": torch.zeros(5, 5)}, ValueError, r"teacher_x has shape \(5, 5\)"),
        ({"mask": torch.zeros(6)}, TypeError, "mask is torch.float32"),
        ({"mask": torch.zeros(5, dtype=torch.bool)}, ValueError, r"mask has shape \(5,\)"),
        ({"weight": torch.zeros(20, 9)}, ValueError, r"\(20, 9\)"),
        ({"beta": 1.5}, ValueError, "beta is 1.5"),
        ({"temperature": 0.0}, ValueError, "temperature is 0.0"),
        ({"reduction": "none"}, ValueError, "'none'"),
    ],
)
def test_bad_input_is_refused_with_what_is_accepted(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        rooftop.linear_jsd(**{**given(), **change})


def test_four_products_within_the_memory_that_is_stated() -> None:
    op = registry.op("linear_jsd")
    call = Call.of(op, registry.implementation("linear_jsd__triton"), op.problem(op.case("llama-3 head 8192x4096x128256, beta 0.5 bf16"), TARGETS["h200"]))
    n, h, v = 8192, 4096, 128256
    products = [s for s in call.steps if isinstance(s, TorchCall) and "a" in s.args]
    assert sum(s.args["a"].shape[0] * s.args["a"].shape[1] * s.args["b"].shape[1] for s in products) == 4 * n * h * v
    own = sum(m.nbytes for _, m in call.outputs if m is not None) + sum(m.nbytes for m in call.scratch.values())
    assert own <= 2 * n * h + 4 * 2 * v * h + 8 * n


@pytest.mark.sampled("kernels", "linear_jsd__triton")
@pytest.mark.parametrize("inside", [False, True])
def test_gradients_are_summed_over_chunks_of_tokens(inside: bool) -> None:
    op, found = registry.op("linear_jsd"), registry.implementation("linear_jsd__triton")
    case = op.case("mixed bf16")
    right(found.name, case, dataclasses.replace(found.choose(op.problem(case, TARGETS[90])), rows=3, inside=inside), seed=0)
