"""Transposes by shifted tiles: right wherever rows start, in x and in the output."""

from __future__ import annotations

import pytest

from rooftop.core import registry
from rooftop.core.spec import Input, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

SHIFTED = "transpose__shifted__cuda_sm80"


@pytest.mark.sampled("kernels", SHIFTED)
@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32", "i64"])
@pytest.mark.parametrize("shape", [(70, 131), (261, 64), (2, 67, 130), (40, 33), (129, 36), (63, 40), (37, 200)], ids=str)
def test_shifted(shape: tuple[int, ...], dtype: str) -> None:
    """Strides of every remainder of 16 bytes, with and without a gap between packs of rows in shared memory; tiles that are not whole."""
    subject = Subject("shifted", registry.op("transpose"), registry.implementation(SHIFTED))
    found = checker.check(subject, case("c", x=Input(shape, dtype), dim0=len(shape) - 2, dim1=len(shape) - 1), backend="simt", seed=1)
    assert found.status == "ok", found.message
