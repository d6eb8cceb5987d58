"""What peers keep from their forward for their backward."""

from __future__ import annotations

import gc

import pytest
import torch

from rooftop.ops._peers import Kept, one_dtype


def test_a_value_is_worked_out_once_for_each_tensor_and_goes_with_it() -> None:
    calls = []

    def work(t: torch.Tensor, factor: int) -> torch.Tensor:
        calls.append(factor)
        return t * factor

    kept = Kept(work)
    a, b = torch.ones(3), torch.zeros(3)
    assert kept(a, 2) is kept(a, 2)
    assert kept(b, 2) is not kept(a, 2)
    assert calls == [2, 2]
    del a
    gc.collect()
    kept(torch.ones(4), 2)
    assert len(kept._found) <= 2


def test_compiled_peers_take_one_dtype() -> None:
    one_dtype(torch.ones(1, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="float32"):
        one_dtype(torch.ones(1))
