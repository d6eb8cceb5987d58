"""Calls of softmax, add, matmul and the gated functions that are theirs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contracts.calls import calls

import rooftop
from rooftop.core import registry
from rooftop.core.spec import TARGETS, Input


def test_ops_hold_under_opcheck_and_compile_on_the_cpu() -> None:
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    a, b, c = torch.randn(4, 6), torch.randn(6, 3), torch.randn(4, 3)
    rooftop.softmax(x), rooftop.add(x, y), rooftop.matmul(a, b)  # registers them
    torch.library.opcheck(torch.ops.rooftop.softmax.default, (x.requires_grad_(), 1, ""))
    torch.library.opcheck(torch.ops.rooftop.add.default, (x, y.requires_grad_(), ""))
    product = (a.requires_grad_(), b.requires_grad_(), c.requires_grad_(), None, None, None, 0.5, 2.0, "none", "", "ieee", "")
    torch.library.opcheck(torch.ops.rooftop.matmul.default, product)

    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return rooftop.softmax(rooftop.add(rooftop.matmul(a, b), rooftop.matmul(a, b)), dim=0)

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b), model(a, b))
    compiled(a, b).square().sum().backward()
    got = a.grad
    a.grad = None
    model(a, b).square().sum().backward()
    torch.testing.assert_close(got, a.grad)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: rooftop.softmax(torch.ones(3, dtype=torch.int32)), TypeError, "int32"),
        (lambda: rooftop.softmax(torch.ones(3), dim=1), IndexError, "dim is 1"),
        (lambda: rooftop.softmax(torch.tensor(1.0)), ValueError, "no dimensions"),
        (lambda: rooftop.softmax([1.0]), TypeError, "list"),
        (lambda: rooftop.add(torch.ones(3), torch.ones(4)), ValueError, r"\(3,\).*\(4,\)"),
        (lambda: rooftop.add(torch.ones(3), torch.ones(3).half()), TypeError, "float16"),
        (lambda: rooftop.matmul(torch.ones(3, 4), torch.ones(3, 4)), ValueError, "a's columns"),
        (lambda: rooftop.matmul(torch.ones(3, 4).double(), torch.ones(4, 4)), TypeError, "float64"),
        (lambda: rooftop.matmul(torch.ones(3, 4), torch.ones(4, 5), c=torch.ones(3, 4)), ValueError, r"\(3, 5\)"),
        (lambda: rooftop.add(torch.ones(3), torch.ones(3, device="meta")), ValueError, "meta"),
        (lambda: rooftop.softmax(torch.ones(3, 3), implementation="triton"), ValueError, "CUDA tensors"),
    ],
)
def test_a_wrong_call_says_what_was_given_and_what_is_accepted(call: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()  # type: ignore[operator]


def test_a_packed_dimension_that_is_odd() -> None:
    for function in (rooftop.swiglu, rooftop.geglu):
        with pytest.raises(ValueError, match="7"):
            function(torch.ones(3, 7))


EMPTY = {
    "softmax": lambda e: (rooftop.softmax(e(0, 5)), rooftop.softmax(e(5, 0)), rooftop.softmax(e(2, 0, 3), dim=0)),
    "add": lambda e: (rooftop.add(e(0), e(0)), rooftop.add(e(3, 0, 2), e(3, 0, 2))),
    "matmul": lambda e: (rooftop.matmul(e(0, 4), e(4, 5)), rooftop.matmul(e(3, 4), e(4, 0))),
    "rms_norm": lambda e: (rooftop.rms_norm(e(0, 6), 6, e(6)), rooftop.rms_norm(e(3, 0), 0)),
    "layer_norm": lambda e: (rooftop.layer_norm(e(0, 6), 6, e(6), e(6)), rooftop.layer_norm(e(3, 0), 0)),
    "gelu": lambda e: (rooftop.gelu(e(0)), rooftop.gelu(e(0, 3))),
    "silu": lambda e: (rooftop.silu(e(0)), rooftop.silu(e(0, 3))),
    "square": lambda e: (rooftop.square(e(0)), rooftop.square(e(0, 3))),
    "swiglu": lambda e: (rooftop.swiglu(e(0, 4)), rooftop.swiglu(e(0, 3), e(0, 3))),
    "geglu": lambda e: (rooftop.geglu(e(0, 4)), rooftop.geglu(e(0, 3), e(0, 3))),
    "bias_mask_scale_add": lambda e: (rooftop.bias_mask_scale_add(e(0, 3), e(3), p=0.5), rooftop.bias_mask_scale_add(e(3, 0), e(0))),
    "cross_entropy": lambda e: (rooftop.cross_entropy(e(0, 4), torch.zeros(0, dtype=torch.int64), reduction="none"),),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors_give_empty_results_and_gradients_of_their_shape(name: str) -> None:
    made: list[torch.Tensor] = []

    def empty(*shape: int) -> torch.Tensor:
        made.append(torch.ones(shape, requires_grad=True))
        return made[-1]

    found = EMPTY[name](empty)
    assert all(r.numel() == 0 for r in found)
    sum(r.sum() for r in found).backward()
    assert [t.grad is not None and t.grad.shape == t.shape and not t.grad.any() for t in made] == [True] * len(made)


ROWS_APART = {"softmax": "x", "rms_norm": "x", "layer_norm": "x", "gelu": "x", "silu": "x", "square": "x", "swiglu": "a", "geglu": "b",
              "bias_mask_scale_add": "residual", "cross_entropy": "input"}


@pytest.mark.parametrize("name", ROWS_APART)
def test_rows_that_lie_apart_are_taken_where_they_are(name: str) -> None:
    """Without a copy into contiguous memory: contracts/test_far.py runs them with rows far apart."""
    op = registry.op(name)
    case = next(c.case for c in calls(name) if max(len(v.shape) for _, v in c.case.tensors()) == 2)
    laid = {n: replace(v, layout="padded") if n == ROWS_APART[name] and isinstance(v, Input) else v for n, v in case.inputs.items()}
    assert op.kernel_problem(op.problem(replace(case, inputs=laid), TARGETS[90])) is not None
