"""Transposes in CUDA C++, in the simulator: planes and pixels of every number of planes and size of element, both ways, in batches; and shifted tiles, right
wherever rows start, in x and in the output."""

from __future__ import annotations

import pytest
from _kernels import right

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Input, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

PLANES, SHIFTED = "transpose__planes__cuda_sm80", "transpose__shifted__cuda_sm80"


@pytest.mark.sampled("kernels", PLANES)
@pytest.mark.parametrize("split", [False, True], ids=["to pixels", "to planes"])
@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32", "i64"])
@pytest.mark.parametrize("few", range(2, 9))
def test_planes(few: int, dtype: str, split: bool) -> None:
    for batch, many in (((), 4 * 1040), ((3,), 160), ((2, 3), 112)):
        shape = (*batch, many, few) if split else (*batch, few, many)
        right(PLANES, case(str(shape), x=Input(shape, dtype), dim0=len(batch), dim1=len(batch) + 1))


@pytest.mark.sampled("kernels", PLANES)
@pytest.mark.parametrize(("shape", "dtype"), [((2077, 3), "u8"), ((2077, 2), "bf16"), ((1001, 5), "f32"), ((77, 7), "i64")])
def test_planes_that_start_anywhere_are_refused(shape: tuple[int, ...], dtype: str) -> None:
    subject = Subject("planes", registry.op("transpose"), registry.implementation(PLANES))
    found = checker.check(subject, case("c", x=Input(shape, dtype), dim0=0, dim1=1), backend="simt", seed=1)
    assert found.status == "skipped" and "planes" in found.message


@pytest.mark.sampled("kernels", PLANES)
def test_planes_that_end_amid_a_pack() -> None:
    right(PLANES, case("c", x=Input((3, 1003), "u8", layout="padded"), dim0=0, dim1=1))


@pytest.mark.sampled("kernels", SHIFTED)
@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32", "i64"])
@pytest.mark.parametrize("shape", [(70, 131), (261, 64), (2, 67, 130), (40, 33), (129, 36), (63, 40), (37, 200)], ids=str)
def test_shifted(shape: tuple[int, ...], dtype: str) -> None:
    """Strides of every remainder of 16 bytes, with and without a gap between packs of rows in shared memory; tiles that are not whole."""
    right(SHIFTED, case("c", x=Input(shape, dtype), dim0=len(shape) - 2, dim1=len(shape) - 1))


@pytest.mark.sampled("kernels", SHIFTED)
@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32", "i64"])
@pytest.mark.parametrize("shape", [(16, 77), (147, 133), (261, 64)], ids=str)
def test_shifted_in_every_height(shape: tuple[int, ...], dtype: str) -> None:
    """Tiles of all rows, whose eights read packs far apart, and taller tiles."""
    c = case("c", x=Input(shape, dtype), dim0=0, dim1=1)
    kernel = registry.implementation(SHIFTED)
    listed = kernel.configs(Subject(SHIFTED, registry.op("transpose"), kernel).kernel_problem(c, TARGETS["h200"])[1])
    tried = {(g["tall"], g["flat"], g["threads"]): g for g in listed}
    for config in tried.values():
        right(SHIFTED, c, config)
