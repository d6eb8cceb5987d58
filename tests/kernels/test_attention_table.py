"""The tables of docs/attention.md are what the kernels say, and the kernels do what the tables say."""

from __future__ import annotations

import pytest
import torch
from _kernels import by_the_portable_kernel

import rooftop
from rooftop.core import settings
from rooftop.lab.report import attention_page as page
from rooftop.lab.report import code_tables
from rooftop.ops.attention import OP

ORDER = (page.ALONE, *page.FEATURES)
PAIRS = [(i, j) for i in range(len(ORDER)) for j in range(i + 1)]


def test_the_page_is_what_the_kernels_say() -> None:
    file = "docs/attention.md"
    committed = (settings.CHECKOUT / file).read_text(encoding="utf-8")
    assert code_tables.page(file, committed) == committed, "python -m rooftop.lab.report.code_tables writes it anew"
    assert code_tables.page(file, committed.replace("| G |", "| T |", 1)) == committed


@pytest.mark.sampled("cells", "attention__triton", "attention_bwd__triton")
@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{ORDER[p[0]].name}, {ORDER[p[1]].name}")
def test_a_cell_is_true(pair: tuple[int, int]) -> None:
    features = tuple(ORDER[i] for i in pair)
    generator = torch.Generator().manual_seed(sum(pair))
    found = page.cell(features[0], features[1], False)
    if found.refused:
        with pytest.raises(ValueError, match="attention"):
            rooftop.attention(**page.arguments(features, "cpu", generator))
        return
    tensors, options = page.handed(features, "cpu", generator)
    ran = by_the_portable_kernel(OP, tensors, options, page.CARD)
    assert ran is not None, "every call that is accepted has a kernel forward"
    exact = ran[1]
    assert OP.bwd is not None and OP.grad is not None
    out = exact["out"].to(torch.bfloat16)
    known = {**tensors, "out": out, "lse": exact["lse"].float()}
    saved = dict(zip(OP.grad.saved_names, OP.grad.saved(known), strict=True))
    dout = torch.randn(out.shape, generator=generator).to(out.dtype)
    back = by_the_portable_kernel(OP.bwd, {"dout": dout, "dlse": None, **saved}, options, page.CARD)
    assert (back is not None) == (page.cell(features[0], features[1], True).kernel is not None)
