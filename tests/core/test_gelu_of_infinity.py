"""GELU of infinity behind a product with a sparse matrix, called on a CPU: as float64 has it, where torch's own function makes NaN of it."""

from __future__ import annotations

import pytest
import torch

import rooftop


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_call_on_a_cpu_gives_what_float64_gives(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, float("inf"), -2.0], dtype=dtype)
    columns, offsets = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    b = torch.tensor([[1.0] * 16, [1.0] * 8 + [-1.0] * 8, [0.5] * 16], dtype=dtype)
    exact = torch.nn.functional.gelu(torch.tensor([1.0] * 16 + [float("inf")] * 8 + [-float("inf")] * 8 + [-1.0] * 16, dtype=torch.float64).view(3, 16))
    got = rooftop.spmm_csr(values, columns, offsets, b, activation="gelu")
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0, equal_nan=True)
    blocks = values.view(3, 1, 1).expand(3, 8, 8).contiguous() / torch.tensor([8.0]).to(dtype)
    got = rooftop.spmm_bsr(blocks, columns, offsets, b.repeat_interleave(8, 0), activation="gelu")
    torch.testing.assert_close(got[::8].double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=0, equal_nan=True)
