"""Products of fp8 with scales: the layouts of DeepGEMM's users, groups, and what is refused."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import rooftop
from rooftop.core import registry


def eight_bits(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.float8_e4m3fn)


def test_scales_of_blocks_lie_as_those_of_deepgemm_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """sa [M, K / 128] column by column, from a padded buffer; sb [N / 128, K / 128]. Neither is a reason to copy an operand."""
    m, n, k = 33, 256, 300
    a, b, sa, sb = eight_bits(m, k), eight_bits(n, k), torch.rand(3, 36).t()[:m] + 0.5, torch.rand(2, 3) + 0.5
    given = (a, b.t(), sa, sb.t())
    want = (a.float() * sa.repeat_interleave(128, 1)[:, :k]) @ (b.float() * sb.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :k]).t()
    torch.testing.assert_close(rooftop.scaled_matmul(*given), want.bfloat16())
    seen: list[Any] = []
    op = registry.op("scaled_matmul")

    def calls(*args: Any, **_: Any) -> Any:
        seen.extend(args)
        return op(*args)

    monkeypatch.setattr(importlib.import_module("rooftop.ops.scaled_matmul"), "OP", calls)
    rooftop.scaled_matmul(*given)
    assert all(t.is_contiguous() for t in seen[2:4]) and seen[1].data_ptr() == b.data_ptr()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_grouped_products_of_fp8(masked: bool, blocks: bool) -> None:
    g, m, n, k = 3, 20, 140, 300
    lead = (g, m) if masked else (m,)
    a, b, offsets = eight_bits(*lead, k), eight_bits(g, n, k), torch.tensor([7, 7, 15], dtype=torch.int32)
    sa, sb = (torch.rand(*lead, 3) + 0.5, torch.rand(g, 2, 3) + 0.5) if blocks else (torch.rand(lead) + 0.5, torch.rand(g, n) + 0.5)
    x = a.float() * (sa.repeat_interleave(128, -1)[..., :k] if blocks else sa[..., None])
    y = b.float() * (sb.repeat_interleave(128, 1)[:, :n].repeat_interleave(128, 2)[..., :k] if blocks else sb[..., None])
    found = rooftop.grouped_matmul(a, b.transpose(1, 2), offsets, scale_a=sa, scale_b=sb.transpose(1, 2) if blocks else sb, out_dtype=torch.float16)
    torch.testing.assert_close(found, rooftop.grouped_matmul(x, y.transpose(1, 2), offsets).half())


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({}, TypeError, "^grouped_matmul: scale_a is NoneType; with fp8 it must be a tensor of torch.float32$"),
        ({"scale_a": torch.ones(8), "scale_b": torch.ones(2, 5)}, ValueError,
         r"scale_a is \(8,\) and scale_b \(2, 5\); accepted is \(8,\) and \(2, 6\), or \(8, 2\) and \(2, 2, 1\)$"),
        ({"scale_a": torch.ones(8), "scale_b": torch.ones(2, 6), "out_dtype": torch.int8}, TypeError, "out_dtype is torch.int8"),
        ({"a": torch.randn(8, 130), "b": torch.randn(2, 130, 6), "scale_a": torch.ones(8)}, ValueError, "are of fp8 alone$"),
        ({"b": eight_bits(130, 6), "scale_a": torch.ones(8), "scale_b": torch.ones(2, 6)}, ValueError, "groups along K are not of fp8"),
    ],
)
def test_wrong_scales_of_a_grouped_product_are_one_line(more: dict[str, object], error: type[Exception], says: str) -> None:
    given = {"a": eight_bits(8, 130), "b": eight_bits(2, 130, 6), "offsets": torch.tensor([3, 8], dtype=torch.int32)} | more
    with pytest.raises(error, match=says) as found:
        rooftop.grouped_matmul(**given)
    assert "\n" not in str(found.value)
