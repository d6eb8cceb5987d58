"""Arguments that are not tensors, and ways of calling: other threads, as the first call of a process, under transforms and differentiated twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as forward

import rooftop

X, TARGET = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: rooftop.rms_norm(X, 6.0), TypeError, "normalized_shape is 6.0, a float"),
        (lambda: rooftop.rms_norm(X, None), TypeError, "normalized_shape is None"),
        (lambda: rooftop.layer_norm(X, "8"), TypeError, "normalized_shape is '8', a str"),
        (lambda: rooftop.layer_norm(X, [8.0]), TypeError, r"normalized_shape is \[8.0\]"),
        (lambda: rooftop.rms_norm(X, 8, eps="a"), TypeError, "eps is 'a', a str; it must be a number of at least 0"),
        (lambda: rooftop.layer_norm(X, 8, eps=float("nan")), ValueError, "eps is nan"),
        (lambda: rooftop.cross_entropy(X, TARGET, softcap=float("inf")), ValueError, "softcap is inf; it must be a finite number above 0, or None"),
        (lambda: rooftop.cross_entropy(X, TARGET, ignore_index=2.5), TypeError, "ignore_index is 2.5, a float; it must be a whole number"),
        (lambda: rooftop.cross_entropy(X, TARGET, ignore_index=2**70), ValueError, "ignore_index is 11805"),
        (lambda: rooftop.cross_entropy(X, TARGET, label_smoothing=None), TypeError, "label_smoothing is None"),
        (lambda: rooftop.cross_entropy(X, TARGET, lse_square_scale=float("nan")), ValueError, "lse_square_scale is nan"),
        (lambda: rooftop.bias_mask_scale_add(X, mask=torch.ones(4, 8)), TypeError, "mask is torch.float32; it must be torch.bool"),
        (lambda: rooftop.bias_mask_scale_add(X, p="a"), TypeError, "p is 'a'"),
        (lambda: rooftop.bias_mask_scale_add(X, p=0.5, seed=1.5), TypeError, "seed is 1.5"),
        (lambda: rooftop.bias_mask_scale_add(X, scale="a"), TypeError, "scale is 'a'"),
    ],
)
def test_an_error_says_what_was_given_and_what_is_accepted(call: Callable[[], object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


FIRST = """
import rooftop
f = rooftop.{name}
import torch
x = torch.randn(4, 64, requires_grad=True)
y = torch.compile(f, fullgraph=True, backend="aot_eager")(x{more})
y.sum().backward()
assert x.grad.shape == x.shape
"""
THREADS = """
import threading, torch, rooftop
x, wrong, gate = torch.randn(4, 6), [], threading.Barrier(8)
def call():
    gate.wait()
    try:
        rooftop.gelu(x)
    except Exception as error:
        wrong.append(error)
threads = [threading.Thread(target=call) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert not wrong, wrong
"""


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    "program", [FIRST.format(name="gelu", more=""), FIRST.format(name="rms_norm", more=", 64"), THREADS], ids=["compiled", "compiled norm", "threads"]
)
def test_the_first_call_of_a_process(program: str) -> None:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


def test_a_second_derivative_is_refused_where_it_would_be_zero() -> None:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(rooftop.square(x).sum(), x, create_graph=True)
    assert torch.equal(first, 2 * x)
    with pytest.raises(NotImplementedError, match="square can be differentiated once"):
        torch.autograd.grad(first.square().sum(), x)


@pytest.mark.parametrize("way", [torch.func.grad, torch.func.jacrev, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))], ids=["grad", "jacrev", "jvp"])
def test_transforms_that_do_not_reach_ops_are_refused(way: Callable[..., Callable[[torch.Tensor], object]]) -> None:
    with pytest.raises(NotImplementedError, match=r"torch\.func's grad, vjp and jvp do not reach"):
        way(lambda x: rooftop.gelu(x).sum())(X)


def test_forward_mode_is_refused() -> None:
    with forward.dual_level():
        assert torch.equal(rooftop.square(X), X * X)
        with pytest.raises(NotImplementedError, match="square: forward-mode differentiation"):
            rooftop.square(forward.make_dual(X, X))


def test_vmap_goes_through_the_registered_op() -> None:
    torch.testing.assert_close(torch.func.vmap(rooftop.square)(X), X * X)
