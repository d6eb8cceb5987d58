"""SparseTensor on a GPU: layouts, products, gradients, bad input and torch.compile, beside the dense matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rooftop.formats import two_four
from rooftop.sparse import LAYOUTS, SparseLinear, SparseTensor, advise, matmul, sddmm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch.cuda.is_available() is False")]
NEAR = {torch.float32: {"atol": 2e-4, "rtol": 2e-4}, torch.float16: {"atol": 2e-2, "rtol": 2e-2}, torch.bfloat16: {"atol": 0.15, "rtol": 5e-2}}
DTYPES = {
    "csr": (torch.float32, torch.float16, torch.bfloat16),
    "coo": (torch.float32,),
    "bsr": (torch.float32, torch.bfloat16),
    "2:4": (torch.float16, torch.bfloat16),
}
PRODUCTS = [(layout, dtype) for layout in LAYOUTS for dtype in DTYPES[layout]]


def drawn(m: int, k: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """With at most two elements in each four neighbours of a row, and an empty row."""
    generator = torch.Generator("cuda").manual_seed(1000 * m + k)
    x = torch.randn(m, k, generator=generator, device="cuda") * (torch.rand(m, k, generator=generator, device="cuda") < 0.3)
    values, meta = two_four.compress(x, two_four.select(x.abs()))
    x = two_four.expand(values, meta, k).clone()
    x[m // 2] = 0
    return x.to(dtype)


@pytest.mark.parametrize("shape", [(37, 53), (256, 192), (1, 9)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_becomes_every_other(layout: str, shape: tuple[int, int]) -> None:
    x = drawn(*shape)
    s = SparseTensor.from_dense(x, layout)
    assert s.device.type == "cuda" and torch.equal(s.t().contiguous().to_dense(), x.t())
    for other in LAYOUTS:
        made = s.to(other, block=(16, 64) if other == "bsr" else None)
        made.verify()
        assert made.device.type == "cuda" and torch.equal(made.to_dense(), x)


@pytest.mark.parametrize(("layout", "dtype"), PRODUCTS)
def test_products_are_those_of_the_dense_matrix(layout: str, dtype: torch.dtype) -> None:
    x = drawn(160, 256, dtype)
    s = SparseTensor.from_dense(x, layout)
    right, left = torch.randn(256, 48, device="cuda").to(dtype), torch.randn(24, 160, device="cuda").to(dtype)
    pairs = [
        (s @ right, x @ right),
        (left @ s, left @ x),
        (s.t() @ left.t(), x.t() @ left.t()),
        (right.t() @ s.t(), right.t() @ x.t()),
        (s @ right[:, 0], x @ right[:, 0]),
    ]
    for got, want in pairs:
        torch.testing.assert_close(got, want, **NEAR[dtype])
    bias = torch.randn(160, device="cuda").to(dtype)
    got = matmul(right.t(), s.t(), bias=bias, alpha=0.5, activation="gelu")
    torch.testing.assert_close(got, torch.nn.functional.gelu(0.5 * (right.t() @ x.t()) + bias), **NEAR[dtype])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_two_four_of_eight_bits(dtype: torch.dtype) -> None:
    x, b = (drawn(192, 256) * 4).to(dtype), (torch.randn(32, 256, device="cuda") * 4).to(dtype)
    s = SparseTensor.from_dense(x, "2:4")
    got = matmul(b, s.t(), alpha=0.5)
    torch.testing.assert_close(got.float(), 0.5 * (b.float() @ x.float().t()), atol=0.5, rtol=1e-2)


@pytest.mark.parametrize("layout", ["csr", "bsr"])
def test_gradients_reach_the_values_and_the_dense_operand(layout: str) -> None:
    x = drawn(96, 128)
    weight, dense = x.clone().requires_grad_(), torch.randn(128, 40, device="cuda", requires_grad=True)
    (SparseTensor.from_dense(weight, layout) @ dense).square().sum().backward()
    twin, other = x.clone().requires_grad_(), dense.detach().clone().requires_grad_()
    (twin @ other).square().sum().backward()
    assert weight.grad is not None and twin.grad is not None
    torch.testing.assert_close(dense.grad, other.grad, atol=1e-2, rtol=1e-3)
    torch.testing.assert_close(weight.grad, torch.where(x != 0, twin.grad, 0), atol=1e-2, rtol=1e-3)
    p = SparseTensor.from_dense(x, layout)
    a, b = torch.randn(96, 33, device="cuda"), torch.randn(33, 128, device="cuda")
    stored = SparseTensor(torch.ones_like(p.values), p.columns, p.offsets, None, None, p.layout, p.size, p.block).to_dense()
    torch.testing.assert_close(sddmm(a, b, p).to_dense(), (a @ b) * stored, atol=1e-3, rtol=1e-3)


def test_coordinates_are_sorted_added_up_and_refused() -> None:
    rows, columns, values = (torch.tensor(t, device="cuda") for t in ([2, 0, 2, 0], [1, 3, 1, 0], [1.0, 2.0, 3.0, 4.0]))
    s = SparseTensor.coo(rows, columns, values, (3, 4))
    want = torch.zeros(3, 4, device="cuda").index_put((rows, columns), values, accumulate=True)
    assert s.stored == 3 and torch.equal(s.to_dense(), want)
    torch.testing.assert_close(s @ torch.eye(4, device="cuda"), want)
    for bad in (3, -1):
        with pytest.raises(ValueError, match=f"rows hold {bad}"):
            SparseTensor.coo(rows.new_tensor([bad]), columns[:1], values[:1], (3, 4))
    none = SparseTensor.coo(rows[:0], columns[:0], values[:0], (64, 64))
    for layout in ("csr", "coo", "bsr"):
        assert bool((none.to(layout) @ torch.ones(64, 8, device="cuda") == 0).all())


def test_a_trained_layer_and_its_compiled_form() -> None:
    torch.manual_seed(0)
    layer = SparseLinear(torch.randn(256, 256, device="cuda", dtype=torch.bfloat16), train24=True)
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = layer.sparse.to_dense()
    y = layer(x)
    torch.testing.assert_close(y, x @ w.t(), atol=0.5, rtol=0.05)
    y.sum().backward()
    assert x.grad is not None and layer.weight is not None and layer.weight.grad is not None
    torch.testing.assert_close(torch.compile(layer)(x.detach()), y.detach(), atol=0.5, rtol=0.05)


def test_advice_knows_the_card() -> None:
    x = torch.zeros(2048, 2048, device="cuda", dtype=torch.bfloat16)
    x[:128, :128] = 1.0
    assert advise(x, 4096).best.layout == "bsr" and advise(torch.randn_like(x), 4096).best.layout == "dense"
