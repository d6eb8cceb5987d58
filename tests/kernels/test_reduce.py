"""The place of the maximum in CUDA C++, in the simulator: of equal ones the first, in any pack of any thread."""

from __future__ import annotations

import pytest

from rooftop.core import registry
from rooftop.core.spec import Input, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

REDUCE = "reduce__cuda_sm80"


@pytest.mark.sampled("kernels", REDUCE)
@pytest.mark.parametrize("layout", ["contiguous", "offset"])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((70001,), "u8"), ((70001,), "bf16"), ((3, 9001), "i16"), ((2, 9001), "f32"), ((40, 24), "bf16"), ((3, 5001), "i64")]
)
def test_the_first_of_equal_maxima(shape: tuple[int, ...], dtype: str, layout: str) -> None:
    subject = Subject("rows", registry.op("reduce"), registry.implementation(REDUCE))
    c = case("c", x=Input(shape, dtype, layout=layout), op="argmax", dims=str(len(shape) - 1), correction=0)
    found = checker.check(subject, c, backend="simt", seed=1)
    assert found.status == "ok", found.message


@pytest.mark.sampled("kernels", REDUCE)
@pytest.mark.parametrize("fill", ["nan", "-inf", "inf", "-0.0"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_places_of_values_that_are_not_finite(dtype: str, fill: str) -> None:
    subject = Subject("rows", registry.op("reduce"), registry.implementation(REDUCE))
    c = case("c", x=Input((2, 9001), dtype, fill), op="argmax", dims="1", correction=0)
    found = checker.check(subject, c, backend="simt", seed=1)
    assert found.status == "ok", found.message
