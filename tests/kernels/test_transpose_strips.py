"""Transposes by strips and by shifted tiles: right wherever rows start, and no two lanes of a warp meet in a bank of shared memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest

from rooftop.core import registry
from rooftop.core.call import problem_for_kernels
from rooftop.core.spec import TARGETS, Input, Meta, case
from rooftop.kernels.movement import transpose__strips__cuda_sm80 as strips
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

STRIPS, SHIFTED = "transpose__strips__cuda_sm80", "transpose__shifted__cuda_sm80"
WORDS = {"u8": 1, "bf16": 2, "f32": 4, "i64": 8}


@pytest.mark.sampled("kernels", STRIPS)
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("shape", [(70, 131), (261, 64), (2, 67, 130), (40, 33), (129, 36), (63, 40)], ids=str)
@pytest.mark.parametrize("kernel", [STRIPS, SHIFTED])
def test_strips(kernel: str, shape: tuple[int, ...], dtype: str) -> None:
    subject = Subject("transposed", registry.op("transpose"), registry.implementation(kernel))
    found = checker.check(subject, case("c", x=Input(shape, dtype), dim0=len(shape) - 2, dim1=len(shape) - 1), backend="simt", seed=1)
    assert found.status == "ok", found.message


@pytest.mark.parametrize("dtype", WORDS)
def test_lanes_meet_in_no_bank(dtype: str) -> None:
    """Where elements have 8 bytes and both extents are odd, two columns do: no order of the elements of a pack, two, parts them."""
    size, op = WORDS[dtype], registry.op("transpose")
    per, line = 16 // size, 128 // size
    for more, across in product(range(32 // size), range(32 // size)):
        rows, columns = 320 + across, 320 + more
        called = op.problem_of({"x": Meta((rows, columns), dtype)}, {"dim0": 0, "dim1": 1}, TARGETS[90])
        of = strips._layout(problem_for_kernels(op, called)[0])
        pitch = 256 + of.left + (32 if of.left < 16 else 0)
        for element in range(per):
            for half in range(2 if size == 8 else 1):
                banks: dict[int, set[int]] = defaultdict(set)
                for lane in range(32)[16 * half : 16 * half + 16] if size == 8 else range(32):
                    pack, number = lane % of.lanes, lane // of.lanes
                    column = number * of.apart
                    taken = (element + number % 4 * (per // 4)) % per if of.turned else element
                    row = line - column * rows % line + pack * per + taken
                    word = (row // per * (per * pitch + of.gap) + row % per * pitch + column * size) // 4
                    banks[word % 32].add(word)
                most = 2 if size == 8 and rows % 2 and columns % 2 else 1
                assert max(map(len, banks.values())) <= most, (rows, columns, of, element)
