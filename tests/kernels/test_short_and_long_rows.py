"""Rows between the usual lengths: short ones staged as stretches of memory, and such as no cluster holds, cut into tiles."""

from __future__ import annotations

from typing import Any

import pytest

from rooftop.core import registry
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.spec import TARGETS, Case, Input, Meta, case
from rooftop.kernels._device import split_tiles, staged_rows
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

FORWARD = ("rms_norm", "layer_norm", "softmax")


def rows_of(op: str, rows: int, columns: int, dtype: str) -> Case:
    """The forward's case; its backward's too."""
    x, w = Input((rows, columns), dtype), Input((columns,), dtype)
    name = f"{rows}x{columns}"
    if op == "softmax":
        return case(name, x=x, dim=1)
    return case(name, x=x, residual=None, weight=w, bias=w if op == "layer_norm" else None, dims=1, eps=1e-5)


# rows, columns, dtype: rows that end within vectors, fewer rows than teams, a stretch that ends within a vector, one of whole vectors
STAGED = [(70, 66, "bf16"), (33, 83, "f32"), (3, 7, "f16"), (41, 129, "bf16"), (300, 80, "bf16"), (5, 1, "f32")]


@pytest.mark.sampled("kernels", "{name}__staged__cuda_sm80")
@pytest.mark.parametrize("name", FORWARD)
def test_staged_rows_of_any_length_are_right(name: str) -> None:
    op = registry.op(name)
    subject = Subject("staged", op, registry.implementation(f"{name}__staged__cuda_sm80"))
    for size in STAGED:
        found = checker.check(subject, rows_of(name, *size), backend="simt")
        assert found.status == "ok", f"{size}: {found.message}"


def test_staged_rows_leave_lanes_little_to_do_and_fill_whole_vectors() -> None:
    implementation = registry.implementation("layer_norm__staged__cuda_sm80")
    op = registry.op("layer_norm")
    for columns in (1, 16, 64, 66, 100, 128, 250, 384):
        for dtype in ("bf16", "f32"):
            problem = op.problem(rows_of("layer_norm", 1 << 20, columns, dtype), TARGETS["h200"])
            config = implementation.choose(problem)
            assert config["lanes"] * (config["each"] - 1) < columns <= config["lanes"] * config["each"]
            assert config["each"] <= staged_rows.most(problem)
            size = config["rows"] * columns * problem["x"].itemsize
            assert size % 16 == 0
            assert size <= 40 * 1024  # four blocks on a multiprocessor of an A100
    assert implementation.supports(op.problem(rows_of("layer_norm", 4, 385, "bf16"))) == "takes rows of up to 384 elements; given 385"


class Fixed(TritonImplementation):
    """An implementation that always takes one config."""

    def __init__(self, name: str, **config: Any) -> None:
        found = registry.implementation(name)
        super().__init__(found.path, found.op, found.name)
        self._fixed = split_tiles.Config(**config)

    def choose(self, problem: Any) -> Any:
        return self._fixed


@pytest.mark.sampled("kernels", "{name}{part}__split__triton")
@pytest.mark.parametrize("part", ["", "_bwd"])
@pytest.mark.parametrize("name", FORWARD)
def test_rows_in_tiles_are_right(name: str, part: str) -> None:
    op = registry.op(name + part)
    for rows, columns, dtype in ((3, 1001, "bf16"), (2, 640, "f32"), (5, 131, "f32"), (4, 7, "f16")):
        kernel = Fixed(f"{name}{part}__split__triton", columns=128, warps=4, singles=columns * Meta((1,), dtype).itemsize % 16 != 0)
        found = checker.check(Subject("tiles", op, kernel), rows_of(name, rows, columns, dtype), backend="interpreter")
        assert found.status == "ok", f"{rows}x{columns} {dtype}: {found.message}"


def test_singles_are_there_where_a_row_starts_or_ends_within_a_vector() -> None:
    op = registry.op("softmax")
    for rows, columns, dtype, singles in ((4, 1 << 20, "bf16", False), (4, (1 << 20) + 4, "bf16", True), (1, 1001, "f32", True), (1, 1004, "f32", False)):
        problem = op.problem(rows_of("softmax", rows, columns, dtype))
        config = split_tiles.choose(problem, "x")
        assert config.singles == singles
        whole = -(-columns // config.columns)
        assert split_tiles.tiles(problem, "x", config) - singles in (whole, whole + 1)
