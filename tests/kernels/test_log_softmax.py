"""log_softmax and logsumexp as torch has them: values, gradients, infinities, dimensions, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from _kernels import as_torch, fixed

import rooftop
from rooftop.core import registry
from rooftop.core.spec import TARGETS, Input, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

DIMS: list[Any] = [-1, 0, 1, (0, 2), (1, 2), (2, 0, 1), [-1]]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_over_any_dimensions_with_gradients(dim: Any, keepdim: bool) -> None:
    as_torch(lambda x: rooftop.logsumexp(x, dim, keepdim=keepdim), lambda x: torch.logsumexp(x, dim, keepdim=keepdim), torch.randn(3, 4, 5))


@pytest.mark.parametrize("function", [rooftop.logsumexp, lambda x, dim, keepdim: rooftop.reduce(x, "sum", dim, keepdim=keepdim)])
def test_compiled_for_dimensions_that_change(function: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(3, 4, 5)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    for dim in ((0, 1), (2, 1), (-1, 0)):
        torch.testing.assert_close(compiled(x, dim, True), function(x, dim, True))


@pytest.mark.parametrize("compiled", [False, True])
def test_log_softmax_is_a_drop_in(compiled: bool) -> None:
    as_torch(lambda x: rooftop.log_softmax(x, 1), lambda x: torch.log_softmax(x, 1), torch.randn(3, 4, 5), compiled=compiled)


@pytest.mark.sampled("kernels", "{name}__triton")
@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("name", ["logsumexp", "log_softmax"])
def test_infinities_in_a_kernel_are_torchs(name: str, loop: bool) -> None:
    """Of one tile, and of columns in rounds, in the first of which a row may be -inf or +inf throughout."""
    inf, nan = float("inf"), float("nan")
    x = torch.randn(7, 5000)
    x[0], x[1, 3], x[2, 4999], x[3, :4096] = -inf, inf, nan, -inf
    x[4, :4096], x[5, 7], x[5, 4500], x[6, 4098:] = inf, inf, nan, 3.4028234663852886e38
    config = registry.implementation(f"{name}__triton").module.Config  # type: ignore[attr-defined]
    kernel = fixed(f"{name}__triton", config(2048, 1, 4, True) if loop else config(8192, 1, 4, False))
    call = Subject("fixed", registry.op(name), kernel).call(case("given", x=Input((7, 5000)), dim=1), TARGETS[90])
    found, _ = checker.Trial(call, "cpu", checker.RUNNERS["interpreter"], 64).run({"x": x}, {"dim": 1}, 0xFF)
    want = getattr(torch, name)(x.double(), 1).float()
    torch.testing.assert_close(found["y"], want, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_no_elements() -> None:
    assert torch.equal(rooftop.logsumexp(torch.empty(3, 0)), torch.full((3,), -float("inf")))
    assert rooftop.log_softmax(torch.empty(3, 0)).shape == (3, 0)


X = torch.zeros(3, 4)
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: rooftop.logsumexp(X, 2), IndexError, "logsumexp: dim is 2; x has 2 dimensions, so it must be -2 to 1"),
    (lambda: rooftop.logsumexp(X, (0, -2)), ValueError, "none twice"),
    (lambda: rooftop.logsumexp(X, ()), ValueError, "at least one dimension"),
    (lambda: rooftop.logsumexp(X.long()), TypeError, "logsumexp: x is torch.int64; accepted are"),
    (lambda: rooftop.logsumexp(torch.tensor(1.0)), ValueError, "no dimensions"),
    (lambda: rooftop.log_softmax([1.0]), TypeError, "log_softmax: x is a list; it must be a tensor"),  # type: ignore[arg-type]
    (lambda: rooftop.log_softmax(X, -3), IndexError, "log_softmax: dim is -3"),
    (lambda: rooftop.log_softmax(X, None), TypeError, "log_softmax: dim is None, a NoneType; it must be a whole number"),  # type: ignore[arg-type]
    (lambda: rooftop.softmax(X, 1.0), TypeError, "softmax: dim is 1.0, a float; it must be a whole number"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "says"), BAD)
def test_bad_input_is_refused_in_a_line(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says.replace("(", r"\(")) as raised:
        call()
    assert "\n" not in str(raised.value)
