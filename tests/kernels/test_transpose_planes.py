"""Planes and pixels in CUDA C++, in the simulator: every number of planes and size of element, both ways, in batches."""

from __future__ import annotations

import pytest

from rooftop.core import registry
from rooftop.core.spec import Input, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

PLANES = "transpose__planes__cuda_sm80"


@pytest.mark.sampled("kernels", PLANES)
@pytest.mark.parametrize("split", [False, True], ids=["to pixels", "to planes"])
@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32", "i64"])
@pytest.mark.parametrize("few", range(2, 9))
def test_planes(few: int, dtype: str, split: bool) -> None:
    subject = Subject("planes", registry.op("transpose"), registry.implementation(PLANES))
    for batch, many in (((), 4 * 1040), ((3,), 160), ((2, 3), 112)):
        shape = (*batch, many, few) if split else (*batch, few, many)
        found = checker.check(subject, case("c", x=Input(shape, dtype), dim0=len(batch), dim1=len(batch) + 1), backend="simt", seed=1)
        assert found.status == "ok", (shape, found.message)


@pytest.mark.sampled("kernels", PLANES)
@pytest.mark.parametrize(("shape", "dtype"), [((2077, 3), "u8"), ((2077, 2), "bf16"), ((1001, 5), "f32"), ((77, 7), "i64")])
def test_planes_that_start_anywhere_are_refused(shape: tuple[int, ...], dtype: str) -> None:
    subject = Subject("planes", registry.op("transpose"), registry.implementation(PLANES))
    found = checker.check(subject, case("c", x=Input(shape, dtype), dim0=0, dim1=1), backend="simt", seed=1)
    assert found.status == "skipped" and "planes" in found.message


@pytest.mark.sampled("kernels", PLANES)
def test_planes_that_end_amid_a_pack() -> None:
    subject = Subject("planes", registry.op("transpose"), registry.implementation(PLANES))
    found = checker.check(subject, case("c", x=Input((3, 1003), "u8", layout="padded"), dim0=0, dim1=1), backend="simt", seed=1)
    assert found.status == "ok", found.message
