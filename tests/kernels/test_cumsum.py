"""Running sums in CUDA C++, in the simulator: every division of rows and columns among packs, threads and tiles."""

from __future__ import annotations

from typing import Any

import pytest
from _kernels import right

from rooftop.core import registry
from rooftop.core.choice import Chosen
from rooftop.core.spec import TARGETS, Case, Input, Problem, case
from rooftop.lab.candidates import Subject

ROWS, COLUMNS, CHAIN = "cumsum__rows__cuda_sm80", "cumsum__columns__cuda_sm80", "cumsum__look_back__cuda_sm90"


def given(rows: int, columns: int, dtype: str, reverse: bool = False, fill: str = "normal", dim: int = 1) -> Case:
    return case("c", x=Input((rows, columns), dtype, fill), dim=dim, reverse=reverse)


def subject() -> Subject:
    return Subject(ROWS, registry.op("cumsum"), registry.implementation(ROWS))


def problem(c: Case) -> Problem:
    return subject().kernel_problem(c, TARGETS[90])[1]


@pytest.mark.sampled("kernels", ROWS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (70, 3, "f32"), (9, 5, "bf16"), (37, 33, "bf16"), (5, 67, "f32"), (9, 263, "f32"), (5, 1025, "f16"), (3, 2047, "f32"), (2, 8199, "f32"),
        (2, 12289, "bf16"),
    ],
)
def test_every_length_is_right(rows: int, columns: int, dtype: str, reverse: bool) -> None:
    right(ROWS, given(rows, columns, dtype, reverse))


@pytest.mark.sampled("kernels", ROWS)
@pytest.mark.parametrize(("columns", "dtype"), [(1000, "f32"), (1001, "bf16"), (9000, "f32")])
def test_every_config_is_right(columns: int, dtype: str) -> None:
    c = given(3, columns, dtype)
    configs = registry.implementation(ROWS).configs(problem(c))
    assert len(configs) > 2
    for config in configs:
        right(ROWS, c, config)


@pytest.mark.sampled("kernels", ROWS)
@pytest.mark.parametrize(("rows", "columns", "reverse"), [(1, 300001, False), (1, 300000, True), (2, 140001, False)])
def test_tiles_of_several_groups(rows: int, columns: int, reverse: bool) -> None:
    right(ROWS, given(rows, columns, "f32", reverse), {"packs": 1, "team": 256, "whole": 0})


@pytest.mark.sampled("kernels", ROWS)
@pytest.mark.parametrize("fill", ["nan", "inf", "-inf", "-0.0", "tiny"])
def test_values_that_are_not_finite_pass_from_tile_to_tile(fill: str) -> None:
    right(ROWS, given(2, 9001, "f32", fill=fill), {"packs": 1, "team": 256, "whole": 0})


@pytest.mark.sampled("kernels", CHAIN)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "reverse", "config"),
    [
        (1, 300001, "f32", False, {"slots": 6, "lead": 3, "group": 8}),
        (1, 300001, "f32", True, {"slots": 4, "lead": 2, "group": 4}),
        (1, 400000, "bf16", False, {"slots": 7, "lead": 4, "group": 16}),
        (3, 70003, "f16", True, {"slots": 6, "lead": 4, "group": 2}),
        (2, 5, "f32", False, {"slots": 6, "lead": 3, "group": 512}),
    ],
)
def test_few_long_rows_of_several_groups(rows: int, columns: int, dtype: str, reverse: bool, config: Any) -> None:
    right(CHAIN, given(rows, columns, dtype, reverse), config)


@pytest.mark.sampled("kernels", CHAIN)
@pytest.mark.parametrize("fill", ["nan", "inf", "-inf"])
def test_values_that_are_not_finite_pass_along_a_long_row(fill: str) -> None:
    right(CHAIN, given(2, 40001, "f32", fill=fill), {"slots": 4, "lead": 2, "group": 2})


@pytest.mark.parametrize(
    ("rows", "columns", "chain"),
    [(1, 1 << 22, True), (1, (1 << 27) - 1, True), (16, 1 << 20, True), (1, 1 << 20, False), (2048, 131072, False), (64, 8192, False), (1000, 1 << 20, False)],
)
def test_only_few_long_rows_are_divided_among_persistent_blocks(rows: int, columns: int, chain: bool) -> None:
    p = problem(given(rows, columns, "f32"))
    found = registry.choose("cumsum", p)
    assert isinstance(found, Chosen) and found.kernel == (CHAIN if chain else ROWS)


@pytest.mark.sampled("kernels", COLUMNS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "config"),
    [
        (1300, 64, "f32", {"vector": 4, "tx": 8, "rows": 2, "group": 8}),  # eight parts wait for the words of a group
        (1300, 200, "bf16", {"vector": 8, "tx": 8, "rows": 1, "group": 16}),  # four
        (3000, 3, "f32", {"vector": 1, "tx": 3, "rows": 1, "group": 16}),  # threads that belong to no part
        (60, 300, "f16", {"vector": 1, "tx": 256, "rows": 2, "group": 8}),  # one
    ],
)
def test_tiles_of_columns_of_several_groups(rows: int, columns: int, dtype: str, config: Any, reverse: bool) -> None:
    right(COLUMNS, given(rows, columns, dtype, reverse, dim=0), config)
