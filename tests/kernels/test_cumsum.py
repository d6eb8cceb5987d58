"""Rows of a running sum in CUDA C++, in the simulator: every division of a row among packs, threads and tiles."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case, Input, Problem, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

ROWS = "cumsum__rows__cuda_sm80"


def given(rows: int, columns: int, dtype: str, reverse: bool = False, fill: str = "normal") -> Case:
    return case("c", x=Input((rows, columns), dtype, fill), dim=1, reverse=reverse)


def subject() -> Subject:
    return Subject("rows", registry.op("cumsum"), registry.implementation(ROWS))


def problem(c: Case) -> Problem:
    return subject().kernel_problem(c, TARGETS[90])[1]


def check_with(c: Case, config: Any) -> None:
    implementation = subject().implementation
    assert implementation is not None
    with mock.patch.object(type(implementation), "choose", lambda self, p: config):
        found = checker.check(subject(), c, backend="simt", seed=1)
    assert found.status == "ok", (config, found.message)


@pytest.mark.sampled("kernels", ROWS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (70, 3, "f32"), (9, 5, "bf16"), (37, 33, "bf16"), (5, 67, "f32"), (9, 263, "f32"), (5, 1025, "f16"), (3, 2047, "f32"), (2, 8199, "f32"),
        (2, 12289, "bf16"),
    ],
)  # fmt: skip
def test_every_length_is_right(rows: int, columns: int, dtype: str, reverse: bool) -> None:
    found = checker.check(subject(), given(rows, columns, dtype, reverse), backend="simt", seed=1)
    assert found.status == "ok", found.message


@pytest.mark.sampled("kernels", ROWS)
@pytest.mark.parametrize(("columns", "dtype"), [(1000, "f32"), (1001, "bf16"), (9000, "f32")])
def test_every_config_is_right(columns: int, dtype: str) -> None:
    c = given(3, columns, dtype)
    implementation = subject().implementation
    assert implementation is not None
    configs = implementation.configs(problem(c))
    assert len(configs) > 2
    for config in configs:
        check_with(c, config)


@pytest.mark.sampled("kernels", ROWS)
@pytest.mark.parametrize(("rows", "columns", "reverse"), [(1, 300001, False), (1, 300000, True), (2, 140001, False)])
def test_tiles_of_several_groups(rows: int, columns: int, reverse: bool) -> None:
    check_with(given(rows, columns, "f32", reverse), {"packs": 1, "team": 256, "whole": 0})


@pytest.mark.sampled("kernels", ROWS)
@pytest.mark.parametrize("fill", ["nan", "inf", "-inf", "-0.0", "tiny"])
def test_values_that_are_not_finite_pass_from_tile_to_tile(fill: str) -> None:
    check_with(given(2, 9001, "f32", fill=fill), {"packs": 1, "team": 256, "whole": 0})
