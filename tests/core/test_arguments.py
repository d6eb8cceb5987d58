"""Arguments that are not tensors, and ways of calling: other threads, as the first call of a process, under transforms and differentiated twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as forward

import rooftop
from rooftop.core import registry
from rooftop.core.implementation import UnsupportedError
from rooftop.core.names import RegistryError

Q = torch.zeros(1, 2, 1, 8)
X, TARGET = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: rooftop.rms_norm(X, 6.0), TypeError, "normalized_shape is 6.0, a float"),
        (lambda: rooftop.rms_norm(X, None), TypeError, "normalized_shape is None"),
        (lambda: rooftop.rms_norm(X, X[0]), TypeError, r"normalized_shape is a tensor of shape \(8,\); it must be a whole number or"),
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
        (lambda: rooftop.matmul(None, X), TypeError, "a is a NoneType; it must be a tensor"),
        (lambda: rooftop.matmul(X, None), TypeError, "b is a NoneType; it must be a tensor"),
        (lambda: rooftop.matmul(X, X.t(), alpha=10**400), ValueError, "alpha is a whole number of 1329 bits, beyond float64; it must be a number"),
        (lambda: rooftop.matmul(X, X.t(), beta=-(10**5000)), ValueError, "beta is a whole number of 16610 bits, beyond float64"),
        (lambda: rooftop.attention(Q, Q, Q, scale=10**400), ValueError, "scale is a whole number of 1329 bits, .* above 0, or None"),
        (lambda: rooftop.attention(Q, Q, Q, softcap=10**400), ValueError, "softcap is a whole number of 1329 bits"),
        (lambda: rooftop.rms_norm(X, 8, eps=10**400), ValueError, "eps is a whole number of 1329 bits"),
        (lambda: rooftop.matmul(X, X.t(), implementation="zzz"), RegistryError, "no implementation of matmul 'zzz'; there are .*matmul__triton"),
        (lambda: rooftop.gelu(X, implementation="tritn"), RegistryError, "no implementation of gelu 'tritn'; there are gelu__"),
        (lambda: rooftop.matmul(X, X.t(), implementation="triton"), UnsupportedError, "implementation='triton' runs on CUDA tensors"),
        (lambda: rooftop.transpose(X, "0", 1), TypeError, "dim0 is '0', a str; it must be a whole number"),
        (lambda: rooftop.transpose(X, 0, 1.0), TypeError, "dim1 is 1.0, a float"),
        (lambda: rooftop.transpose(X, 0, None), TypeError, "dim1 is None"),
        (lambda: rooftop.cumsum(X, None), TypeError, "cumsum: dim is None"),
        (lambda: rooftop.cumsum(X, torch.tensor(1)), TypeError, r"cumsum: dim is tensor\(1\), a Tensor"),
        (lambda: rooftop.cumsum(X, reverse="no"), TypeError, "reverse is 'no', a str; it must be True or False"),
        (lambda: rooftop.reduce(X, "sum", keepdim="no"), TypeError, "keepdim is 'no'"),
        (lambda: rooftop.reduce(X, "sum", 10**5000), ValueError, "dim is a whole number of 16610 bits"),
        (lambda: rooftop.reduce(X, "sum", (0, -(10**5000))), ValueError, "dim is a whole number of 16610 bits"),
        (lambda: rooftop.rope(Q, rotary_dim=10**5000, order="bhsd"), ValueError, "rotary_dim is a whole number of 16610 bits"),
        (lambda: rooftop.rope(Q, rotary_dim=True, order="bhsd"), TypeError, "rotary_dim is True, a bool"),
        (lambda: rooftop.attention_mask(2, 2, window=(-(10**5000), 0)), ValueError, "window is a whole number of 16610 bits"),
        (lambda: rooftop.linear_cross_entropy(X, X, TARGET, return_lse="no"), TypeError, "return_lse is 'no'"),
        (lambda: rooftop.reduce(torch.tensor(1.0), "sum", 0), IndexError, r"dim is 0; x has 0 dimensions, so it must be None or \(\)"),
        (lambda: rooftop.attention_mask(2, 2, dtype="float32"), TypeError, "dtype is 'float32'; accepted"),
        (lambda: rooftop.linear_cross_entropy(X, X, TARGET, weight_grad_dtype="float32"), TypeError, "is 'float32'; accepted are None, torch.float32$"),
        (lambda: rooftop.linear_cross_entropy(X, X, TARGET, softcap=10**400), ValueError, "softcap is a whole number of 1329 bits"),
        (lambda: rooftop.linear_jsd(X, X, X, X, temperature=-(10**400)), ValueError, "temperature is a whole number of 1329 bits"),
        (lambda: rooftop.linear_cross_entropy(X, X, TARGET, softcap=1e39), ValueError, r"softcap is 1e\+39; .* that a float32 holds"),
        (lambda: rooftop.cross_entropy(X, TARGET, softcap=1e300), ValueError, r"softcap is 1e\+300; .* that a float32 holds"),
        (lambda: rooftop.sample(X, 10**400), ValueError, "temperature is a whole number of 1329 bits"),
        (lambda: rooftop.sample(X, float("nan")), ValueError, "temperature is nan"),
        (lambda: rooftop.sample(X, seed=1.5), TypeError, "seed is 1.5, a float; it must be a whole number"),
        (lambda: rooftop.attention_mask(2, 2, fill=10**400), ValueError, "fill is a whole number of 1329 bits"),
        (lambda: rooftop.attention_mask(2, 2, device=[1]), TypeError, r"device is \[1\], a list"),
        (lambda: rooftop.topk(X, 2**70), ValueError, "of at most 64 bits"),
        (lambda: rooftop.gelu(X, implementation=7), TypeError, "implementation is 7, a int; it must be the name of a kernel, or None"),
        (lambda: rooftop.gelu(X, implementation=X), TypeError, "gelu: implementation is tensor"),
        (lambda: rooftop.gelu(X, implementation=[]), TypeError, r"implementation is \[\], a list"),
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


def test_a_second_derivative_is_torchs_or_is_refused_where_it_would_be_zero() -> None:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(rooftop.square(x).sum(), x, create_graph=True)
    assert torch.equal(first, 2 * x) and torch.equal(torch.autograd.grad(first.square().sum(), x)[0], 8 * x)
    (first,) = torch.autograd.grad(registry.op("square")(x, implementation="").sum(), x, create_graph=True)  # recorded as a kernel's call is
    assert torch.equal(first, 2 * x)
    with pytest.raises(NotImplementedError, match="square can be differentiated once"):
        torch.autograd.grad(first.square().sum(), x)


@pytest.mark.parametrize("way", [torch.func.grad, torch.func.jacrev, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))], ids=["grad", "jacrev", "jvp"])
def test_transforms_reach_calls_on_the_cpu_and_no_kernels(way: Callable[..., Callable[[torch.Tensor], object]]) -> None:
    torch.testing.assert_close(way(lambda x: rooftop.gelu(x).sum())(X), way(lambda x: torch.nn.functional.gelu(x).sum())(X))
    with pytest.raises(NotImplementedError, match=r"torch\.func's grad, vjp and jvp do not reach"):
        way(lambda x: rooftop.gelu(x, implementation="triton").sum())(X)


def test_forward_mode_is_torchs_or_is_refused() -> None:
    with forward.dual_level():
        assert torch.equal(rooftop.square(X), X * X)
        assert torch.equal(forward.unpack_dual(rooftop.square(forward.make_dual(X, X))).tangent, 2 * X * X)
        with pytest.raises(NotImplementedError, match="square: forward-mode differentiation"):
            registry.op("square")(forward.make_dual(X, X), implementation="")


def test_vmap_goes_through_the_registered_op() -> None:
    torch.testing.assert_close(torch.func.vmap(rooftop.square)(X), X * X)


def test_a_loss_under_vmap_has_its_gradient() -> None:
    weight, xs = X[:3].clone().requires_grad_(), torch.stack((X, X.flip(0))).requires_grad_()

    def cross_entropy(x: torch.Tensor) -> torch.Tensor:
        return rooftop.linear_cross_entropy(x, weight, TARGET % 3)

    def divergence(x: torch.Tensor) -> torch.Tensor:
        return rooftop.linear_jsd(x, weight, X, X[:3])

    for loss in (cross_entropy, divergence):
        got = torch.autograd.grad(torch.func.vmap(loss)(xs).sum(), (xs, weight))
        want = torch.autograd.grad(loss(xs[0]) + loss(xs[1]), (xs, weight))
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (lambda x, v: rooftop.sample(x, v, top_k=3, seed=5), (0.5, 0.7, 1.5)),
        (lambda x, v: rooftop.rope(x.view(1, 1, 4, 8), theta=v, order="bhsd"), (1e4, 5e4, 3.0)),
        (lambda x, v: rooftop.linear_cross_entropy(x, x, TARGET, softcap=v), (1.0, 5.0, 7.0)),
        (lambda x, v: rooftop.linear_jsd(x, x, x * 2, x, temperature=v), (1.0, 2.0, 3.0)),
        (lambda x, v: rooftop.cross_entropy(x, TARGET, softcap=v), (1.0, 2.0, 3.0)),
    ],
    ids=["sample", "rope", "linear_cross_entropy", "linear_jsd", "cross_entropy"],
)
def test_a_number_that_changes_between_calls_compiles(call: Callable[[torch.Tensor, float], torch.Tensor], values: tuple[float, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for value in values:
        torch.testing.assert_close(compiled(X, value), call(X, value))


def _whole(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int32)


E, F = torch.ones(6, 256).to(torch.float8_e4m3fn), torch.ones(256, 140).to(torch.float8_e4m3fn)
K, CACHE, HEADS = torch.zeros(2, 5, 4, 8), torch.zeros(6, 4, 2, 8), torch.zeros(2, 4, 5, 8)
SIZED: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...], int]] = {
    "rows of a scaled product": (rooftop.scaled_matmul, (E, F, torch.ones(6), torch.ones(140)), 0),
    "a teacher's tokens": (rooftop.linear_jsd, (X, X[:3], X, X[:3]), 0),
    "a mask of tokens": (lambda x, mask: rooftop.linear_jsd(x, X[:3], x, X[:3], mask=mask), (X, TARGET >= 0), 0),
    "pages": (lambda q, k, t, n: rooftop.attention(q, k, k, page_table=t, cache_lengths=n), (K, CACHE, _whole(2, 2), _whole(2)), 0),
    "packed": (lambda c, k, d: rooftop.attention(k[0], k[0], k[0], cu_seqlens_q=c, cu_seqlens_k=d), (_whole(3), K, _whole(3)), 0),
    "sinks of heads": (lambda q, k, s: rooftop.attention(q, k, k, sinks=s), (K, K, torch.zeros(4)), 2),
    "a bias for all heads": (lambda q, k, b: rooftop.attention(q, k, k, bias=b), (K, K, torch.zeros(2, 1, 5, 5)), 1),
    "a mask of torch's attention": (lambda q, k, b: rooftop.drop_in.scaled_dot_product_attention(q, k, k, b), (HEADS, HEADS, torch.zeros(5, 5)), 2),
    "lengths of a mask": (lambda x, n: rooftop.attention_mask(4, 4, n, batch=x.shape[0]), (X, _whole(4)), 0),
}


@pytest.mark.parametrize("name", SIZED)
def test_a_size_that_is_dynamic_in_one_tensor_alone_compiles(name: str) -> None:
    """torch.compile then compares a symbol with a number."""
    torch._dynamo.reset()
    function, tensors, dimension = SIZED[name]
    tensors = (tensors[0].clone(), *tensors[1:])
    torch._dynamo.maybe_mark_dynamic(tensors[0], dimension)
    torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="aot_eager")(*tensors), function(*tensors))


def test_a_seed_may_be_any_integer() -> None:
    for seed in (2**64 - 1, -(2**63) - 5, 10**5000):
        assert torch.equal(rooftop.sample(X, seed=seed), rooftop.sample(X, seed=seed & 0xFFFFFFFF))
        assert torch.equal(rooftop.bias_mask_scale_add(X, p=0.5, seed=seed), rooftop.bias_mask_scale_add(X, p=0.5, seed=seed & 0xFFFFFFFF))


@pytest.mark.parametrize("lead", [(), (2, 3), (0, 2)])
@pytest.mark.parametrize(("m", "k"), [(5, 0), (0, 7), (0, 0)])
def test_gemv_of_no_elements(lead: tuple[int, ...], m: int, k: int) -> None:
    a = torch.randn(*lead, m, k, requires_grad=True)
    for x in (torch.randn(*lead, k), torch.randn(*lead, 3, k), torch.randn(*lead, 0, k)):
        y = rooftop.gemv(a, x)
        assert y.shape == (*x.shape[:-1], m) and not y.any()
        y.sum().backward()


def test_an_empty_batch_is_rotated_by_its_positions() -> None:
    q, cos, sin = torch.randn(0, 2, 3, 8), torch.randn(9, 4), torch.randn(9, 4)
    for tables in ((cos, sin), (cos[None], sin[None]), (cos[None][:0], sin[None][:0])):
        for positions in (None, torch.zeros(0, 3, dtype=torch.int64), torch.arange(3)):
            assert rooftop.rope(q, None, *tables, positions=positions, order="bhsd").shape == q.shape
            assert rooftop.rope_(q, None, *tables, positions=positions, order="bhsd") is q


def test_a_tensor_that_is_negated_when_it_is_read() -> None:
    turned = torch.randn(6, 8, dtype=torch.complex64).conj().imag
    want = rooftop.rope(turned.resolve_neg()[None], order="bhsd")
    assert turned.is_neg() and torch.equal(rooftop.rope(turned[None], order="bhsd"), want)
    rooftop.rope_(turned[None], order="bhsd")
    assert torch.equal(turned, want[0])


def test_rope_in_place_refuses_one_tensor_twice() -> None:
    q = torch.randn(1, 2, 3, 8)
    before = q.clone()
    with pytest.raises(ValueError, match="q and k are the same tensor"):
        rooftop.rope_(q, q, order="bhsd")
    assert torch.equal(q, before)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", ["max", "argmax"])
def test_a_maximum_compiles(op: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: rooftop.reduce(x, op, 0), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for x in (X, X[:, :0]):
        assert torch.equal(compiled(x), rooftop.reduce(x, op, 0))


def test_on_meta_tensors_no_element_is_looked_at() -> None:
    assert rooftop.topk(X.to("meta"), 2, nan="error")[0].shape == (4, 2)


@pytest.mark.parametrize("fill", [1e300, -1e39, float("inf"), float("nan")])
def test_a_mask_of_numbers_beyond_float32_is_infinite(fill: float) -> None:
    for dtype in (torch.float32, torch.float16):
        got = rooftop.attention_mask(1, 2, q_lengths=torch.tensor([0]), fill=fill, dtype=dtype)
        torch.testing.assert_close(got, torch.tensor(fill, dtype=torch.float64).to(dtype).expand(1, 1, 1, 2), equal_nan=True)


def test_under_debug_a_fault_is_told_once_and_of_keys_alone_too() -> None:
    with rooftop.debug():
        with pytest.raises(IndexError, match=r"^topk: lengths go from 0 to 9; each must be 0 to the row's 8 elements"):
            rooftop.topk(X, 2, lengths=torch.tensor([0, 1, 9, 3]))
        k, table = torch.randn(1, 2, 3, 8), torch.randn(2, 4)
        before = k.clone()
        for rotate in (rooftop.rope, rooftop.rope_):
            with pytest.raises(IndexError, match="a position is 2; the tables have 2 rows"):
                rotate(k[:, :0], k, table, table, order="bhsd")
        assert torch.equal(k, before)
