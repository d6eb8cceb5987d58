"""Calls on tensors of the CPU: torch's own function where a contract names one, the reference else, and what nothing but the reference
judges."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import rooftop
from rooftop.core.op import Calls, Op
from rooftop.core.spec import Input, Work, case
from rooftop.lab.check import checker, judgement
from rooftop.ops import _ordering
from rooftop.ops._rotary import rotated


def op(name: str, **changes: Any) -> Op:
    """y = 3 x, whose function on the CPU is far off: 5 x."""

    def reference(x: Tensor) -> Tensor:
        return 3 * x

    calls = Calls(changes.pop("cpu", lambda x: 5 * x))
    given = {"outputs": lambda x: {"y": x}, "work": lambda p: Work(p["x"].nbytes, p["y"].nbytes, {}), **changes}
    return Op(reference, name=name, cases=[case("odd", x=Input((5, 7), "f32"))], calls=calls, **given)


def test_a_call_runs_torchs_function_and_the_checker_the_reference() -> None:
    made, x = op("made_up_far_off"), torch.ones(2, 3)
    assert torch.equal(made(x), 5 * x)
    assert torch.equal(made(x.requires_grad_()), 5 * x) and torch.equal(torch.autograd.grad(made(x).sum(), x)[0], torch.full((2, 3), 5.0))
    expected = judgement.expect(made, made.cases[0], "cpu", 0)
    assert (
        torch.equal(expected.same["y"], 3 * expected.tensors["x"]) and torch.equal(expected.exact["y"], 3 * expected.tensors["x"].double())
    )
    assert checker.check_callable(made, made.cases[0], made.reference, name="reference").status == "ok"
    assert checker.check_callable(made, made.cases[0], made.cpu, name="cpu").status == "wrong"  # type: ignore[arg-type]


def test_the_reference_runs_where_torchs_function_computes_something_else_or_is_not_wanted() -> None:
    made, x = op("made_up_refusing", cpu=lambda x: NotImplemented), torch.ones(2, 3)
    assert torch.equal(made(x), 3 * x)
    assert torch.equal(op("made_up_unwanted")(x, implementation=""), 3 * x)
    assert torch.equal(torch.compile(lambda t: op_of_trace(t), backend="eager")(x), 3 * x)


op_of_trace = op("made_up_traced")


def test_inference_mode_and_other_threads_run_it_too() -> None:
    made = op("made_up_elsewhere")
    found: list[Tensor] = []
    with torch.inference_mode():
        x = torch.ones(4)
        found.append(made(x))
    thread = threading.Thread(target=lambda: found.append(made(torch.ones(4))))
    thread.start()
    thread.join(60)
    assert all(torch.equal(t, torch.full((4,), 5.0)) for t in found) and len(found) == 2


def test_autocast_lowers_no_precision_of_it() -> None:
    a = torch.randn(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert rooftop.matmul(a, a).dtype == torch.float32
    assert torch.equal(rooftop.matmul(a, a), a @ a)


def test_what_is_negated_sparse_or_of_a_subclass_is_no_plain_tensor() -> None:
    class Own(torch.Tensor):
        pass

    made, x = op("made_up_kinds"), torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert x.is_neg() and torch.equal(made(x), torch.full((3,), -3.0))
    with pytest.raises(TypeError, match="sparse_coo"):
        made(torch.ones(3).to_sparse())
    assert torch.equal(made(torch.ones(3).as_subclass(Own)).as_subclass(torch.Tensor), torch.full((3,), 3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_where_torchs_function_leaves_out_what_the_backward_needs(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, n, 2, 16).to(dtype).requires_grad_() for n in (3, 5, 5))
    flow = torch.randn(1, 3, 2, 16).to(dtype)
    found = torch.autograd.grad(rooftop.attention(q, k, v), (q, k, v), flow)
    want = torch.autograd.grad(rooftop.attention(q, k, v, return_lse=True)[0], (q, k, v), flow)
    torch.testing.assert_close(found, want, rtol=1e-2, atol=1e-2)
    x, w = torch.randn(4, 8).to(dtype).requires_grad_(), torch.randn(16, 8).to(dtype).requires_grad_()
    loss, lse = rooftop.linear_cross_entropy(x, w, torch.tensor([1, 2, 3, 15]), return_lse=True)
    assert lse.shape == (4,) and all(bool(g.any()) for g in torch.autograd.grad(loss, (x, w)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_of_one_key_one_column_and_one_class_are_zeros(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, n, h, 64).to(dtype).requires_grad_() for n, h in ((9, 4), (1, 2), (1, 2)))
    found = torch.autograd.grad(rooftop.attention(q, k, v), (q, k, v), torch.randn(2, 9, 4, 64).to(dtype))
    assert not found[0].any() and not found[1].any() and found[2].any()
    x, y = torch.randn(50, 1).to(dtype).requires_grad_(), torch.randn(50, 1).to(dtype)
    for out in (rooftop.softmax(x), rooftop.layer_norm(x, 1)):
        assert not torch.autograd.grad(out, x, y)[0].any()
    assert not torch.autograd.grad(rooftop.cross_entropy(x, torch.zeros(50, dtype=torch.int64)), x)[0].any()
    h, w = torch.randn(50, 16).to(dtype).requires_grad_(), torch.randn(1, 16).to(dtype).requires_grad_()
    assert not any(g.any() for g in torch.autograd.grad(rooftop.linear_cross_entropy(h, w, torch.zeros(50, dtype=torch.int64)), (h, w)))


def test_a_sparse_product_warns_of_nothing() -> None:
    program = (
        "import rooftop, torch; x = torch.ones(4, 2); assert torch.equal(rooftop.sparse.SparseTensor.from_dense(torch.eye(4), 'csr') @ x, "
        "x)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]


@pytest.mark.parametrize("far", [2**-4, 2**4])
def test_gradients_of_a_loss_by_products_of_bfloat16(far: float) -> None:
    """Whole tiles, an ignored token, NaN and infinity in a token of their own; a target out of range raises with gradients too."""
    x, w, b = torch.randint(-2, 3, (64, 32)).float(), torch.randint(-2, 3, (96, 32)) * far, torch.randn(96)  # products fit bfloat16
    target = torch.randint(96, (64,))
    target[5] = -100
    leaves = [t.bfloat16().requires_grad_() for t in (x, w)] + [b.requires_grad_()]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    loss = rooftop.linear_cross_entropy(*leaves[:2], target, bias=leaves[2])
    exact = torch.nn.functional.cross_entropy(wide[0] @ wide[1].T + wide[2], target)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0.0)
    for got, want in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(exact, wide), strict=True):
        assert (got.double() - want).abs().max() <= 0.02 * want.abs().max()
    for value in (float("nan"), float("inf")):
        with torch.no_grad():
            leaves[0][7, 3] = value
        assert rooftop.linear_cross_entropy(*leaves[:2], target).isnan()
    target[9] = 96
    with pytest.raises(IndexError, match="96"):
        rooftop.linear_cross_entropy(*leaves[:2], target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_indices_of_a_sparse_pattern_out_of_range_are_clamped(dtype: torch.dtype) -> None:
    values, b, a = torch.ones(4, dtype=dtype), torch.randn(4, 8).to(dtype), torch.randn(3, 8).to(dtype)
    offsets = torch.tensor([0, 2, 2, 4], dtype=torch.int32)
    wild, tame = (torch.tensor(c, dtype=torch.int32) for c in ([0, -(10**8), 10**8, 3], [0, 0, 3, 3]))
    assert torch.equal(rooftop.spmm_csr(values, wild, offsets, b), rooftop.spmm_csr(values, tame, offsets, b))
    assert torch.equal(rooftop.sddmm_csr(a, b, wild, offsets), rooftop.sddmm_csr(a, b, tame, offsets))
    for ends in ([0, 3, 1, 4], [0, 2, 2, 10**8], [-9, -(10**8), 2, 4]):
        falling = torch.tensor(ends, dtype=torch.int32)
        assert rooftop.spmm_csr(values, tame, falling, b).shape == (3, 8) and rooftop.sddmm_csr(a, b, tame, falling).shape == (4,)


# -- derivatives ---------------------------------------------------------------------------------------------------


def test_second_derivatives_are_torchs() -> None:
    x = torch.randn(5, dtype=torch.float32).requires_grad_()
    (first,) = torch.autograd.grad(rooftop.silu(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    (want,) = torch.autograd.grad(torch.autograd.grad(torch.nn.functional.silu(x).sum(), x, create_graph=True)[0].sum(), x)
    torch.testing.assert_close(second, want)


def test_second_derivatives_of_a_rotation_are_those_of_the_reference() -> None:
    q, cos, sin = torch.randn(1, 5, 2, 8), torch.randn(1, 5, 3), torch.randn(1, 5, 3)
    found = []
    for run in (lambda t: rooftop.rope(t, None, cos, sin, rotary_dim=6), lambda t: rotated(t, cos[:, :, None], sin[:, :, None], "half", 6)):
        x = q.clone().requires_grad_()
        (first,) = torch.autograd.grad(run(x).pow(3).sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.sum(), x)))
    torch.testing.assert_close(found[0], found[1])


def test_second_derivatives_of_what_has_none_are_refused_in_a_line() -> None:
    x, w = torch.randn(4, 8).requires_grad_(), torch.randn(16, 8).requires_grad_()
    loss = rooftop.linear_cross_entropy(x, w, torch.tensor([1, 2, 3, 4]))
    with pytest.raises(NotImplementedError, match=r"^linear_cross_entropy can be differentiated once[^\n]*$"):
        torch.autograd.grad(torch.autograd.grad(loss, x, create_graph=True)[0].sum(), w)
    h = torch.randn(4, 8).bfloat16().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"^layer_norm can be differentiated once[^\n]*$"):
        torch.autograd.grad(torch.autograd.grad(rooftop.layer_norm(h, 8).square().sum(), h, create_graph=True)[0].sum(), h)


def test_functional_transforms_differentiate_the_reference() -> None:
    x, y = torch.randn(6), torch.randn(6)
    torch.testing.assert_close(
        torch.func.grad(lambda t: rooftop.gelu(t).sum())(x), torch.func.grad(lambda t: torch.nn.functional.gelu(t).sum())(x)
    )
    torch.testing.assert_close(torch.func.jvp(rooftop.silu, (x,), (y,))[1], torch.func.jvp(torch.nn.functional.silu, (x,), (y,))[1])
    rows = torch.randn(3, 6)
    torch.testing.assert_close(torch.func.vmap(rooftop.softmax)(rows), rows.softmax(-1))
    torch.testing.assert_close(
        torch.func.hessian(lambda t: rooftop.softmax(t).square().sum())(x), torch.func.hessian(lambda t: t.softmax(0).square().sum())(x)
    )
    torch.testing.assert_close(torch.func.vmap(lambda t: rooftop.topk(t, 2)[0])(rows), rows.topk(2).values)


def test_functional_transforms_keep_the_dtype() -> None:
    rows = torch.randn(3, 6).bfloat16()
    assert torch.func.vmap(rooftop.softmax)(rows).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("filled", ["normal", "few values", "NaN", "zeros of both signs"])
def test_first_of_equal_elements_of_16_bits(dtype: torch.dtype, filled: str) -> None:
    """The order of values, then of indices, whatever torch.topk takes of equal ones; of any strides and lengths."""
    made = torch.randn(60, 333)
    made = {
        "normal": made, "few values": made.round(), "NaN": made.where(made > -0.5, float("nan")), "zeros of both signs": made.sign() * 0.0,
    }[filled].to(dtype)
    for x in (made, made.t(), made[:, ::2], made[:4, :7], made[0], made.view(3, 20, 333)):
        for k in {1, min(9, x.shape[-1]), x.shape[-1]}:
            for largest in (True, False):
                assert torch.equal(_ordering.first_by_torch(x, k, largest), _ordering.ordered(x, None, largest, "largest")[..., :k])
    long = made.reshape(-1).repeat(4)[None]
    assert long.shape[1] > 2**16 and torch.equal(_ordering.first_by_torch(long, 9, True), _ordering.ordered(long, None, True, "largest")[..., :9])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_matrix_of_16_bits_times_a_vector_adds_up_in_float32(dtype: torch.dtype) -> None:
    for a in (torch.randn(70, 5000).to(dtype), torch.randn(5000, 70).to(dtype).t()):
        x = torch.randn(5000).to(dtype)
        torch.testing.assert_close(rooftop.gemv(a, x).double(), a.double() @ x.double(), rtol=2**-8, atol=0.05)
        ones = torch.ones(a.shape[1], dtype=dtype)
        assert rooftop.gemv(torch.ones_like(a), ones).float().allclose(torch.full((70,), 5000.0).to(dtype).float())
