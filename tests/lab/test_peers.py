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


def test_what_is_timed_beside_the_kernels_takes_the_arguments_of_the_reference() -> None:
    from rooftop.core import registry
    from rooftop.lab.inputs import make

    fit = 0
    for name in registry.op_names():
        op = registry.op(name)
        small = [c for c in op.cases if op.work(op.problem(c)).bytes < 1 << 22]
        for part in op.lower_bounds.values():
            for case in small:
                tensors, options = make(op, case, "cpu", 0)
                try:
                    assert part()(*op.arguments(tensors, options)) is not None
                except ValueError as error:
                    assert str(error)
                else:
                    fit += 1
    assert fit


def test_three_products_are_those_of_the_loss_and_its_gradients() -> None:
    from rooftop.ops._linear_peers import three_products

    x, weight = torch.rand(3, 5), torch.rand(7, 5)
    options = (-100, "mean", 0.0, 0.0, 0.0, 0, 0, "x", "fast", True, True, False, False)
    dx, dw = three_products()(x, weight, None, torch.zeros(3, dtype=torch.int64), *options)
    torch.testing.assert_close(dx, x @ weight.T @ weight)
    torch.testing.assert_close(dw, (x @ weight.T).T @ x)
    with pytest.raises(ValueError, match="both gradients"):
        three_products()(x, weight, None, None, *options[:8], "small", *options[9:])
