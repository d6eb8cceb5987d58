"""The place of the maximum in CUDA C++, in the simulator: of equal ones the first, in any pack of any thread."""

from __future__ import annotations

import itertools

import pytest
import torch
from _kernels import right

import rooftop
from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.spec import TARGETS, Input, case

REDUCE = "reduce__cuda_sm80"


@pytest.mark.sampled("kernels", REDUCE)
@pytest.mark.parametrize("layout", ["contiguous", "offset"])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((70001,), "u8"), ((70001,), "bf16"), ((3, 9001), "i16"), ((2, 9001), "f32"), ((40, 24), "bf16"), ((3, 5001), "i64")]
)
def test_the_first_of_equal_maxima(shape: tuple[int, ...], dtype: str, layout: str) -> None:
    right(REDUCE, case("c", x=Input(shape, dtype, layout=layout), op="argmax", dims=str(len(shape) - 1), correction=0))


@pytest.mark.sampled("kernels", REDUCE)
@pytest.mark.parametrize("fill", ["nan", "-inf", "inf", "-0.0"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_places_of_values_that_are_not_finite(dtype: str, fill: str) -> None:
    right(REDUCE, case("c", x=Input((2, 9001), dtype, fill), op="argmax", dims="1", correction=0))


@pytest.mark.parametrize("dims", [()] + [d for n in range(1, 5) for d in itertools.combinations(range(4), n)])
def test_what_has_no_elements_is_reduced_over_any_dimensions(dims: tuple[int, ...]) -> None:
    """Strides of extents around a zero do not say what lies together: no layout of such a tensor is refused."""
    op = registry.op("reduce")
    for shape in itertools.product((0, 2), repeat=4):
        p = op.problem(case("c", x=Input(shape, "f32"), op="sum", dims=" ".join(map(str, dims)), correction=0), TARGETS["h200"])
        assert select(op, p).call is None or all(shape)
        x = torch.ones(shape)
        assert torch.equal(rooftop.reduce(x, "sum", dims), x.sum(dims) if dims else x)
