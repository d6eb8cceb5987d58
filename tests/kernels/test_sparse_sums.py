"""Sums of long rows of sparse matrices: what a chain of float32 would lose. In the simulator."""

from __future__ import annotations

import pytest
import torch

from rooftop.core import registry
from rooftop.core.call import Call
from rooftop.core.spec import Input, case
from rooftop.lab import candidates
from rooftop.lab.check import checker
from rooftop.lab.simt import unavailable

LENGTHS = (20000, 0, 3, 1, 700, 0, 5000)  # of the rows


def run(name: str, columns: int, each: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the kernel makes of rows of LENGTHS, the sums in float64, and the roots of the sums of squares."""
    if reason := unavailable():
        pytest.skip(reason)
    op, found = registry.op("spmm_csr"), registry.implementation(name)
    generator = torch.Generator().manual_seed(7)
    m, k, nnz = len(LENGTHS), 300, sum(LENGTHS)
    given = case(
        "long rows", tags="edge", values=Input((nnz,), "f32"), columns=Input((nnz,), "i32"), offsets=Input((m + 1,), "i32"), b=Input((k, columns), "f32"),
        bias=None, alpha=1.0, activation="none",
    )
    tensors = {
        "values": torch.randn(nnz, generator=generator), "columns": torch.randint(0, k, (nnz,), generator=generator, dtype=torch.int32),
        "offsets": torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32), "b": torch.randn(k, columns, generator=generator), "bias": None,
    }
    subject = candidates.Subject(found.name, op, found)
    call: Call = subject.call(given, found.stand_in(90))
    if each is not None:
        call = call.with_config({**found.config_dict(call.config), "each": each})
    got, _ = checker.Trial(call, "cpu", checker.RUNNERS["simt"], 64).run(tensors, {"alpha": 1.0, "activation": "none"}, 0xFF)
    rows = torch.repeat_interleave(torch.arange(m), torch.tensor(LENGTHS))
    products = tensors["values"].double()[:, None] * tensors["b"].double()[tensors["columns"].long()]
    exact, squares = (torch.zeros(m, columns, dtype=torch.float64).index_add_(0, rows, t) for t in (products, products.square()))
    return got["out"], exact, squares.sqrt()


@pytest.mark.sampled("kernels", "spmm_csr__merge__cuda_sm80")
@pytest.mark.parametrize("each", [None, 700, 9000])  # items of a block: a row over many blocks, and many steps of one block
def test_merge_path_rounds_once(each: int | None) -> None:
    got, exact, _ = run("spmm_csr__merge__cuda_sm80", 1, each)
    assert torch.equal(got, exact.float())


@pytest.mark.sampled("kernels", "spmm_csr__cuda_sm80")
@pytest.mark.parametrize("columns", [1, 3, 8])
def test_few_columns_of_row_split_err_as_eight_elements_do(columns: int) -> None:
    got, exact, size = run("spmm_csr__cuda_sm80", columns)
    assert bool(((got - exact).abs() <= 2 * 2.0**-23 * size).all())
