"""SparseTensor: every layout to every other, products, bad input. On the CPU, where products run the references."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from rooftop.formats import two_four
from rooftop.sparse import LAYOUTS, SparseTensor, matmul, sddmm

SHAPES = ((37, 53), (64, 96), (1, 9), (5, 0), (0, 5), (130, 70))


def drawn(m: int, k: int, density: float = 0.3, seed: int = 0) -> Tensor:
    """With at most two elements in each four neighbours of a row, a NaN and an empty row."""
    generator = torch.Generator().manual_seed(seed + 1000 * m + k)
    x = torch.randn(m, k, generator=generator) * (torch.rand(m, k, generator=generator) < density)
    values, meta = two_four.compress(x, two_four.select(x.abs()))
    x = two_four.expand(values, meta, k).clone()
    x[m // 2 : m // 2 + 1] = 0
    return x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_becomes_every_other(layout: str, shape: tuple[int, int]) -> None:
    x = drawn(*shape)
    s = SparseTensor.from_dense(x, layout)
    s.verify()
    assert s.shape == shape and torch.equal(s.to_dense(), x)
    assert torch.equal(s.t().to_dense(), x.t()) and torch.equal(s.t().contiguous().to_dense(), x.t())
    s.t().contiguous().verify()
    for other in LAYOUTS:
        made = s.to(other, block=(16, 64) if other == "bsr" else None)
        made.verify()
        assert made.layout == other and torch.equal(made.to_dense(), x)
        assert all(t is None or t.dtype == torch.int32 for t in made._leaves()[1:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_those_of_the_dense_matrix(layout: str) -> None:
    dtype = torch.bfloat16 if layout == "2:4" else torch.float32
    x = drawn(40, 72).to(dtype)
    s = SparseTensor.from_dense(x, layout, block=8 if layout == "bsr" else None)
    near = {"atol": 5e-2, "rtol": 5e-2} if layout == "2:4" else {"atol": 1e-5, "rtol": 1e-5}
    right, left = torch.randn(72, 6, dtype=dtype), torch.randn(5, 40, dtype=dtype)
    pairs = [
        (s @ right, x @ right), (left @ s, left @ x), (s.t() @ left.t(), x.t() @ left.t()), (right.t() @ s.t(), right.t() @ x.t()),
        (s @ right[:, 0], x @ right[:, 0]), (left[0] @ s, left[0] @ x),
    ]
    for got, want in pairs:
        assert got.shape == want.shape
        torch.testing.assert_close(got, want, **near)
    bias = torch.randn(40, dtype=dtype)
    got = matmul(right.t(), s.t(), bias=bias, alpha=0.5, activation="relu")
    torch.testing.assert_close(got, torch.relu(0.5 * (right.t() @ x.t()) + bias), **near)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("k", [64, 53])
def test_two_four_of_eight_bits(dtype: torch.dtype, k: int) -> None:
    x = (drawn(37, k).nan_to_num() * 4).to(dtype)
    s = SparseTensor.from_dense(x, "2:4")
    s.verify()
    assert s.dtype == dtype and torch.equal(s.to_dense().float(), x.float())
    b = (torch.randn(5, k) * 4).to(dtype)
    want = torch.relu(0.5 * (b.float() @ x.float().t()))
    got = matmul(b, s.t(), alpha=0.5, activation="relu")
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close((s @ b.t()).float(), (x.float() @ b.float().t()), atol=1e-2, rtol=1e-2)
    with pytest.raises(TypeError, match="transpose of a 2:4 matrix"):
        matmul(b[:, :37], s)


@pytest.mark.parametrize("layout", ["csr", "coo", "bsr"])
def test_gradients_reach_the_values_and_the_dense_operand(layout: str) -> None:
    x = drawn(24, 32)
    weight, dense = x.clone().requires_grad_(), torch.randn(32, 5, requires_grad=True)
    (SparseTensor.from_dense(weight, layout, block=8 if layout == "bsr" else None) @ dense).square().sum().backward()
    twin, other = x.clone().requires_grad_(), dense.detach().clone().requires_grad_()
    (twin @ other).square().sum().backward()
    torch.testing.assert_close(dense.grad, other.grad)
    assert weight.grad is not None and twin.grad is not None
    torch.testing.assert_close(weight.grad, torch.where(x != 0, twin.grad, 0))  # on the pattern alone


@pytest.mark.parametrize("layout", ["csr", "bsr"])
def test_sddmm_has_the_elements_of_the_product_on_the_pattern(layout: str) -> None:
    p = SparseTensor.from_dense(drawn(40, 48), layout, block=16 if layout == "bsr" else None)
    a, b = torch.randn(40, 7), torch.randn(7, 48)
    found = sddmm(a, b, p, alpha=2.0)
    stored = replace(p, values=torch.ones_like(p.values)).to_dense()
    torch.testing.assert_close(found.to_dense(), 2 * (a @ b) * stored, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_coordinates_in_any_order_are_sorted_and_those_of_one_place_add_up(dtype: torch.dtype) -> None:
    rows, columns = torch.tensor([2, 0, 2, 0], dtype=dtype), torch.tensor([1, 3, 1, 0], dtype=dtype)
    s = SparseTensor.coo(rows, columns, torch.tensor([1.0, 2.0, 3.0, 4.0]), (3, 4))
    want = torch.zeros(3, 4).index_put((rows.long(), columns.long()), torch.tensor([1.0, 2.0, 3.0, 4.0]), accumulate=True)
    assert s.stored == 3 and torch.equal(s.to_dense(), want)
    csr = SparseTensor.csr(torch.tensor([0, 2, 2, 4], dtype=dtype), torch.tensor([3, 0, 1, 1], dtype=dtype), torch.tensor([2.0, 4.0, 1.0, 3.0]), (3, 4))
    assert torch.equal(csr.to_dense(), want)
    assert csr.columns is not None and csr.columns.tolist() == [0, 3, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_matrix_of_zeros(layout: str) -> None:
    dtype = torch.bfloat16 if layout == "2:4" else torch.float32
    s = SparseTensor.from_dense(torch.zeros(24, 40, dtype=dtype), layout)
    s.verify()
    assert s.to("coo").stored == 0 and bool((s @ torch.ones(40, 3, dtype=dtype) == 0).all())
    assert bool((matmul(torch.ones(3, 24, dtype=dtype), s, bias=torch.ones(40, dtype=dtype)) == 1).all())
    assert torch.equal(s.t().contiguous().to_dense(), torch.zeros(40, 24, dtype=dtype))


def test_nan_counts_and_minus_zero_does_not() -> None:
    x = torch.tensor([[float("nan"), -0.0, 0.0, 1.0]])
    for layout in ("csr", "2:4"):
        found = SparseTensor.from_dense(x, layout).to("coo")
        assert found.stored == 2 and found.values.isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda v: SparseTensor.coo(torch.tensor([3]), torch.tensor([0]), v, (3, 4)), ValueError, "rows hold 3; accepted are 0 to 2"),
        (lambda v: SparseTensor.coo(torch.tensor([0]), torch.tensor([-1]), v, (3, 4)), ValueError, "columns hold -1"),
        (lambda v: SparseTensor.coo(torch.tensor([0.0]), torch.tensor([1]), v, (3, 4)), TypeError, "rows is torch.float32"),
        (lambda v: SparseTensor.csr(torch.tensor([0, 1, 0, 1]), torch.tensor([0]), v, (3, 4)), ValueError, "offsets fall"),
        (lambda v: SparseTensor.csr(torch.tensor([0, 0, 0, 2]), torch.tensor([0]), v, (3, 4)), ValueError, "from 0 to 2; they must run from 0 to 1"),
        (lambda v: SparseTensor.csr(torch.tensor([0, 1]), torch.tensor([0]), v, (3, 4)), ValueError, r"takes \[4\]"),
        (lambda v: SparseTensor.from_dense(torch.ones(4, 4), "2:4"), ValueError, "has 4 elements that are not zero"),
        (lambda v: SparseTensor.from_dense(torch.ones(4, 4), "ell"), ValueError, "layout is 'ell'"),
        (lambda v: SparseTensor.from_dense(torch.ones(4, 4), "bsr", block=12), ValueError, "block is 12"),
        (lambda v: SparseTensor.from_dense(torch.ones(4), "csr"), ValueError, r"\(4,\)"),
        (lambda v: SparseTensor.from_dense(torch.eye(4)).to("crs"), ValueError, "'crs' is no layout"),
        (lambda v: torch.eye(3) @ SparseTensor.from_dense(torch.eye(4)), ValueError, "as many as b's rows"),
        (lambda v: matmul(torch.eye(3), torch.eye(3)), TypeError, "just one must be a SparseTensor"),
    ],
)
def test_bad_input_is_named(make: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make(torch.ones(1))  # type: ignore[operator]


def test_torch_tensors_and_scipys_go_in_and_out() -> None:
    x = drawn(32, 64)
    for torch_layout in ("to_sparse_coo", "to_sparse_csr", "to_sparse_csc"):
        assert torch.equal(SparseTensor.from_torch(getattr(x, torch_layout)()).to_dense(), x)
    assert torch.equal(SparseTensor.from_torch(x.to_sparse_bsr((16, 32))).to_dense(), x)
    for layout in LAYOUTS:
        assert torch.equal(SparseTensor.from_dense(x, layout).to_torch().to_dense(), x)
    csr = SparseTensor.from_dense(x, "csr")
    assert csr.columns is not None and csr.offsets is not None
    like = SimpleNamespace(format="csr", indptr=csr.offsets.numpy(), indices=csr.columns.numpy(), data=csr.values.numpy(), shape=(32, 64))
    like.tocsr = lambda: like
    assert torch.equal(SparseTensor.from_scipy(like).to_dense(), x)
    with pytest.raises(TypeError, match="scipy"):
        SparseTensor.from_scipy(x)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "lil", "dok"])
@pytest.mark.parametrize("shape", [(32, 64), (33, 70), (4, 0)])
def test_scipy_round_trip(kind: str, shape: tuple[int, int]) -> None:
    sp = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    x = drawn(*shape).nan_to_num()
    if kind == "bsr" and (shape[1] == 0 or shape[0] % 8 or shape[1] % 16):
        pytest.skip("scipy's blocks divide the shape")
    given = sp.bsr_array(x.numpy(), blocksize=(8, 16)) if kind == "bsr" else getattr(sp, f"{kind}_array")(x.numpy())
    s = SparseTensor.from_scipy(given)
    assert s.layout == ("bsr" if kind == "bsr" else "csr") and torch.equal(s.to_dense(), x)
    back = s.to_scipy()
    assert back.format == "csr" and back.shape == shape and (back.toarray() == x.numpy()).all()
    assert torch.equal(torch.from_numpy(SparseTensor.from_scipy(given).t().to_scipy().toarray()), x.t())
    for other in LAYOUTS:
        assert (SparseTensor.from_dense(x, other).to_scipy().toarray() == x.numpy()).all()
    with pytest.raises(TypeError, match="bfloat16"):
        s.to(torch.bfloat16).to_scipy()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_a_pytree_and_can_be_saved(layout: str) -> None:
    s = SparseTensor.from_dense(drawn(20, 40), layout)
    file = io.BytesIO()
    torch.save(s, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True).to_dense(), s.to_dense())
    doubled = torch.utils._pytree.tree_map(lambda t: t * 2 if t.is_floating_point() else t, s)
    assert torch.equal(doubled.to_dense(), 2 * s.to_dense())


def test_metadata_hold_what_the_page_says() -> None:
    """Word i of lane 4 g + t of block c: rows g and g + 8, the 16 columns from 256 c + 64 i + 16 t on, the first group lowest."""
    codes = torch.full((16, 64), 4)
    codes[3, 4 * (2 * 4 + 1) + 2] = 14  # row 3, word 2, t = 1, the third group
    codes[3 + 8, 4 * (1 * 4 + 3)] = 9  # row 11, word 1, t = 3, the first group
    meta = two_four.pack(codes)
    assert meta.shape == (1, 1, 32, 4)
    plain = 0x44444444
    assert meta[0, 0, 4 * 3 + 1, 2].item() == plain + ((14 - 4) << 8) and meta[0, 0, 4 * 3 + 3, 1].item() == plain + ((9 - 4) << 16)
    assert int((meta != plain).sum()) == 2 and torch.equal(two_four.unpack(meta, 16, 64), codes.to(torch.int32))


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("column", [2**31, 2**32 + 1])
def test_a_shape_beyond_int32_is_refused(column: int, check: bool) -> None:
    one, at = torch.tensor([0]), torch.tensor([column])
    with pytest.raises(ValueError, match=r"at most 2\^31 rows and columns"):
        SparseTensor.coo(one, at, torch.tensor([5.0]), (1, 2**33), check=check)
    with pytest.raises(ValueError, match=r"at most 2\^31 rows and columns"):
        SparseTensor.csr(torch.tensor([0, 1]), at, torch.tensor([5.0]), (1, 2**33), check=check)
    last = SparseTensor.coo(one, torch.tensor([2**31 - 1]), torch.tensor([5.0]), (1, 2**31), check=check)
    assert last.columns is not None and last.columns.tolist() == [2**31 - 1]
    with pytest.raises(ValueError, match="columns hold 2147483648"):
        SparseTensor.coo(one, torch.tensor([2**31]), torch.tensor([5.0]), (1, 2**31))


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3.0])
def test_elements_of_blocks_beyond_the_shape_are_ignored(value: float, check: bool) -> None:
    v = torch.zeros(1, 8, 8)
    v[0, 1, 2] = 1.0
    v[0, 0, 7] = v[0, 7, 0] = value
    s = SparseTensor.bsr(torch.tensor([0, 1]), torch.tensor([0]), v, (6, 5), check=check)
    want = torch.zeros(6, 5)
    want[1, 2] = 1.0
    csr = s.to("csr")
    assert csr.columns is not None and csr.columns.tolist() == [2] and torch.equal(csr.to_dense(), want)
    assert torch.equal(s.to_dense(), want) and torch.equal(s.t().contiguous().to("coo").to_dense(), want.t())
    if check:
        assert s.values.sum() == 1.0


def test_verify_sees_rows_out_of_order() -> None:
    at = torch.tensor([0, 0], dtype=torch.int32)
    s = SparseTensor(torch.ones(2), at, None, torch.tensor([1, 0], dtype=torch.int32), None, "coo", (2, 1))
    with pytest.raises(ValueError, match="rows are out of order"):
        s.verify()


def test_torch_takes_no_blocks_that_do_not_divide_the_shape() -> None:
    s = SparseTensor.from_dense(torch.ones(8, 5), "bsr", block=8)
    for x in (s, s.t()):
        with pytest.raises(ValueError, match="blocks of 8 x 8; torch takes blocks that divide the shape"):
            x.to_torch()
    assert torch.equal(s.to("csr").to_torch().to_dense(), torch.ones(8, 5))


@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_whose_zero_has_other_bits_are_refused(name: str, layout: str) -> None:
    x = torch.zeros(4, 8, dtype=torch.uint8).view(getattr(torch, name))
    with pytest.raises(TypeError, match=f"x is torch.{name}; of 8 bits, accepted are torch.float8_e4m3fn"):
        SparseTensor.from_dense(x, layout)
