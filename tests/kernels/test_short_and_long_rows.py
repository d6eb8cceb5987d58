"""Rows between the usual lengths: short ones staged as stretches of memory, and such as no cluster holds, cut into tiles."""

from __future__ import annotations

import dataclasses
from unittest import mock

import pytest
from _kernels import right

from rooftop.core import registry
from rooftop.core.choice import Chosen
from rooftop.core.spec import TARGETS, Case, Input, Meta, Problem, case
from rooftop.kernels._device import contiguous_rows
from rooftop.kernels.norm import _split_tiles, norms__staged__cuda_sm80, norms_bwd__staged__cuda_sm80

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


def test_odd_rows_of_layer_norm_from_4_kib_on_go_through_a_ring() -> None:
    op = registry.op("layer_norm")
    for columns, through in ((1021, False), (1159, True), (2001, True)):
        assert _taken("layer_norm", op.problem(rows_of("layer_norm", 50000, columns, "f32"), TARGETS["h200"])) == (
            "layer_norm__cuda_sm90" if through else "layer_norm__staged__cuda_sm80"
        )


def _taken(op: str, problem: Problem) -> str:
    found = registry.choose(op, problem)
    assert isinstance(found, Chosen)
    return found.kernel


@pytest.mark.sampled("kernels", "{name}__staged__cuda_sm80")
@pytest.mark.parametrize("name", FORWARD)
def test_staged_rows_of_any_length_are_right(name: str) -> None:
    for size in STAGED:
        right(f"{name}__staged__cuda_sm80", rows_of(name, *size), seed=0)


@pytest.mark.sampled("kernels", "{name}__staged__cuda_sm80")
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_blocks_of_a_staged_norm_take_several_stretches(name: str) -> None:
    """Two blocks: stretches that alternate between both places in shared memory, one of which is fetched while the other is processed."""
    with mock.patch.object(norms__staged__cuda_sm80, "grid", lambda p, c: min(2, -(-p["x"].shape[0] // c["rows"]))):
        for size in ((700, 66, "bf16"), (90, 383, "f32"), (67, 1385, "f16"), (99, 600, "bf16"), (700, 80, "bf16"), (40, 1021, "f32")):
            right(f"{name}__staged__cuda_sm80", rows_of(name, *size), seed=1)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_staged_norms_leave_lanes_little_to_do_and_fill_whole_vectors(name: str) -> None:
    implementation, op = registry.implementation(f"{name}__staged__cuda_sm80"), registry.op(name)
    for columns in (1, 16, 64, 66, 100, 128, 250, 384, 700, 1001, 2039):
        for dtype in ("bf16", "f32"):
            problem = op.problem(rows_of(name, 1 << 20, columns if dtype == "bf16" else (columns + 1) // 2, dtype), TARGETS["h200"])
            columns = problem["x"].shape[1]
            assert implementation.supports(problem) is None
            config, size = implementation.choose(problem), columns * problem["x"].itemsize
            assert config["lanes"] * (config["pieces"] - 1) < contiguous_rows.vectors(size) <= config["lanes"] * config["pieces"]
            assert config["pieces"] <= norms__staged__cuda_sm80.PIECES
            assert config["rows"] * size % 16 == 0
            assert implementation.launches(problem, config)[0].shared <= 112 * 1024  # two blocks on a multiprocessor
    assert implementation.supports(op.problem(rows_of(name, 4, 2042, "bf16"))) == "takes rows of up to 2041 elements; given 2042"


@pytest.mark.sampled("kernels", "{name}__staged__cuda_sm80")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("fill", ["normal", "wide", "nan", "inf"])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_neighbouring_rows_of_a_staged_norm_stay_apart(name: str, fill: str, dtype: str) -> None:
    """Rows that share vectors, one of which may have NaN or infinity where the other's elements are masked."""
    for rows, columns in ((131, 1), (77, 9), (67, 90), (33, 138), (35, 179), (9, 511), (9, 1537 if dtype != "f32" else 769)):
        w = Input((columns,), dtype)
        c = case(f"{rows}x{columns}", x=Input((rows, columns), dtype, fill), residual=None, weight=w, bias=w, dims=1, eps=1e-5)
        right(f"{name}__staged__cuda_sm80", c, seed=columns)


@pytest.mark.sampled("kernels", "{name}")
@pytest.mark.parametrize("fill", ["all 1000", "mean 10000", "first of 3000"])
@pytest.mark.parametrize("name", ["layer_norm__staged__cuda_sm80", "layer_norm__cuda_sm80"])
def test_one_pass_about_a_pivot_keeps_equal_rows_large_means_and_outliers_exact(name: str, fill: str) -> None:
    sizes = [(9, 257), (9, 264), (5, 1001), (5, 2040)] + ([(3, 4104), (2, 20000)] if "staged" not in name else [])
    for dtype in ("f32", "f16", "bf16"):
        for rows, columns in sizes:
            if columns * (4 if dtype == "f32" else 2) > (4096 if "staged" in name else 65536):
                continue
            x, w = Input((rows, columns), dtype, fill), Input((columns,), dtype)
            right(name, case(f"{rows}x{columns}", x=x, residual=None, weight=w, bias=w, dims=1, eps=1e-5))


@pytest.mark.sampled("kernels", "{name}__staged__cuda_sm80")
@pytest.mark.parametrize("name", [*FORWARD, "rms_norm_bwd", "layer_norm_bwd"])
def test_every_config_of_a_staged_kernel_is_right(name: str) -> None:
    op, kernel = registry.op(name), registry.implementation(f"{name}__staged__cuda_sm80")
    for rows, columns, dtype in ((600 if "bwd" in name else 300, 45, "bf16"), (150, 80, "f16"), (100, 61, "f32"), (40, 258, "bf16"))[: 3 + ("norm" in name)]:
        c = rows_of(name.removesuffix("_bwd"), rows, columns, dtype)
        problem = op.kernel_problem(op.problem(c, dataclasses.replace(TARGETS["h200"], sms=1)))
        assert problem is not None
        for config in kernel.configs(problem):
            right(kernel.name, c, config, seed=0)


@pytest.mark.sampled("kernels", "{name}__staged__cuda_sm80")
@pytest.mark.parametrize("name", ["rms_norm_bwd", "layer_norm_bwd"])
def test_staged_backward_rows_of_any_length_are_right(name: str) -> None:
    """On two multiprocessors, so that a block has several tiles, the last of which ends within a vector."""
    op, kernel = registry.op(name), registry.implementation(f"{name}__staged__cuda_sm80")
    small = dataclasses.replace(TARGETS["h200"], sms=2)
    for rows, columns, dtype in [(2100, 9, "bf16"), (700, 83, "f32"), (3, 7, "f16"), (141, 129, "bf16"), (300, 80, "bf16"), (5, 1, "f32"), (61, 701, "f16")]:
        c = rows_of(name.removesuffix("_bwd"), rows, columns, dtype)
        config = kernel.choose(op.problem(c, small))
        with mock.patch.object(norms_bwd__staged__cuda_sm80, "blocks", lambda p, c: min(2, -(-p["s"].shape[0] // c["rows"]))):
            right(kernel.name, c, config, seed=0)


@pytest.mark.sampled("kernels", "{name}__staged__cuda_sm80")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("fill", ["wide", "nan", "inf", "mean 10000"])
@pytest.mark.parametrize("name", ["rms_norm_bwd", "layer_norm_bwd"])
def test_neighbouring_rows_of_a_staged_backward_stay_apart(name: str, fill: str, dtype: str) -> None:
    """Rows that share vectors, one of which may have NaN or infinity where the other's elements are masked; and rows far from zero."""
    for rows, columns in ((131, 1), (77, 9), (67, 90), (33, 138), (9, 511), (9, 891)):
        if columns == 1 and fill == "mean 10000":
            continue  # the gradient is 0 but for eps: beyond float32
        w = Input((columns,), dtype)
        bias = w if name == "layer_norm_bwd" else None
        c = case(f"{rows}x{columns}", x=Input((rows, columns), dtype, fill), residual=None, weight=w, bias=bias, dims=1, eps=1e-5)
        right(f"{name}__staged__cuda_sm80", c, seed=columns)


@pytest.mark.parametrize("name", ["rms_norm_bwd", "layer_norm_bwd"])
def test_staged_backward_has_enough_bytes_in_flight_and_takes_many_odd_rows(name: str) -> None:
    op = registry.op(name)
    staged = registry.implementation(f"{name}__staged__cuda_sm80")
    for columns, dtype in ((9, "bf16"), (77, "bf16"), (255, "f16"), (605, "f16"), (1001, "bf16"), (1783, "bf16"), (33, "f32"), (515, "f32"), (891, "f32")):
        problem = op.problem(rows_of(name.removesuffix("_bwd"), 1 << 20, columns, dtype), TARGETS["h200"])
        config, size = staged.choose(problem), columns * problem["s"].itemsize
        teams, launch = 256 // config["lanes"], staged.launches(problem, config)[0]
        assert config["lanes"] * (config["pieces"] - 1) < contiguous_rows.vectors(size) <= config["lanes"] * config["pieces"]
        assert config["rows"] % teams == 0 and teams % 8 == 0
        resident = norms_bwd__staged__cuda_sm80.resident(problem, config["pieces"])
        assert resident * (launch.shared + 1024) <= 228 * 1024
        assert resident * (config["stages"] - 1) * 2 * config["rows"] * size >= 50 * 1024, (columns, dtype, config)
        clusters = name == "rms_norm_bwd" and columns == 1783  # eight elements a thread, no mean to exchange
        assert _taken(name, problem) == (f"{name}__cuda_sm90" if clusters else staged.name), (columns, dtype)
    for rows, columns in ((1 << 20, 80), (1024, 77)):
        problem = op.problem(rows_of(name.removesuffix("_bwd"), rows, columns, "bf16"), TARGETS["h200"])
        assert _taken(name, problem) != staged.name


@pytest.mark.sampled("kernels", "softmax__staged__cuda_sm80")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("fill", ["normal", "wide", "nan", "inf", "-inf", "-inf rows"])
def test_neighbouring_rows_of_a_stretch_stay_apart(fill: str, dtype: str) -> None:
    """Rows that share vectors, one of which may have NaN or infinity where the other's elements are masked."""
    for rows, columns in ((131, 1), (77, 9), (67, 90), (33, 138), (35, 179), (19, 206), (9, 511)):
        right("softmax__staged__cuda_sm80", case(f"{rows}x{columns}", x=Input((rows, columns), dtype, fill), dim=1), seed=columns)


def test_staged_softmax_takes_many_rows_that_start_within_vectors_or_are_short() -> None:
    op = registry.op("softmax")
    many = 1 << 20
    staged_or_not = (
        (many, 138, "bf16", True), (many, 206, "f32", True), (many, 144, "bf16", True), (many, 128, "bf16", False), (many, 304, "f32", False),
        (64, 138, "bf16", False),
    )
    for rows, columns, dtype, staged in staged_or_not:
        problem = op.kernel_problem(op.problem(rows_of("softmax", rows, columns, dtype), TARGETS["h200"]))
        assert problem is not None
        assert (_taken("softmax", problem) == "softmax__staged__cuda_sm80") == staged, (rows, columns)


@pytest.mark.sampled("kernels", "{name}{part}__split__triton")
@pytest.mark.parametrize("part", ["", "_bwd"])
@pytest.mark.parametrize("name", FORWARD)
def test_rows_in_tiles_are_right(name: str, part: str) -> None:
    for rows, columns, dtype in ((3, 1001, "bf16"), (2, 640, "f32"), (5, 131, "f32"), (4, 7, "f16")):
        config = _split_tiles.Config(columns=128, warps=4, singles=columns * Meta((1,), dtype).itemsize % 16 != 0)
        right(f"{name}{part}__split__triton", rows_of(name, rows, columns, dtype), config, seed=0)


def test_singles_are_there_where_a_row_starts_or_ends_within_a_vector() -> None:
    op = registry.op("softmax")
    for rows, columns, dtype, singles in ((4, 1 << 20, "bf16", False), (4, (1 << 20) + 4, "bf16", True), (1, 1001, "f32", True), (1, 1004, "f32", False)):
        problem = op.problem(rows_of("softmax", rows, columns, dtype))
        config = _split_tiles.choose(problem, "x")
        assert config.singles == singles
        whole = -(-columns // config.columns)
        assert _split_tiles.tiles(problem, "x", config) - singles in (whole, whole + 1)
