"""Rows held in registers: the kernels of softmax, rms_norm and layer_norm that take several rows a warp or a row a block, in the simulator, and how rows
of any number of columns are shared out among threads."""

from __future__ import annotations

import pytest
from _kernels import right

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case, Input, case
from rooftop.kernels.norm import _register_rows
from rooftop.lab.candidates import Subject

OPS = ("softmax", "rms_norm", "layer_norm")
SHAPES: list[tuple[int, int, str]] = [
    (5, 1, "f32"),
    (3, 14, "bf16"),  # a row that may have singles alone
    (67, 15, "f16"),
    (70, 64, "bf16"),  # several rows a warp, and a last warp that lacks some
    (9, 100, "bf16"),  # every second row off 16 bytes
    (70, 129, "f32"),
    (40, 640, "bf16"),  # the last vector of a lane is there in half of them
    (7, 771, "f16"),
    (3, 2041, "bf16"),
    (3, 2304, "bf16"),
    (2, 2560, "f16"),
    (2, 4097, "f32"),
    (2, 12289, "bf16"),
    (2, 20480, "f16"),
    (2, 16384, "f32"),  # the longest that registers hold
]


def given(op: str, rows: int, columns: int, dtype: str, residual: bool = False, fill: str = "normal") -> Case:
    x, weight = Input((rows, columns), dtype, fill), Input((columns,), dtype)
    if op == "softmax":
        return case("c", x=x, dim=1)
    return case("c", x=x, residual=Input((rows, columns), dtype) if residual else None, weight=weight, bias=weight if residual else None, dims=1, eps=1e-5)


@pytest.mark.sampled("kernels", "{op}__cuda_sm80")
@pytest.mark.parametrize("residual", [False, True], ids=["alone", "with residual and bias"])
@pytest.mark.parametrize(("rows", "columns", "dtype"), SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_every_length_is_right(op: str, rows: int, columns: int, dtype: str, residual: bool) -> None:
    if op == "softmax" and residual:
        pytest.skip("softmax adds nothing")
    right(f"{op}__cuda_sm80", given(op, rows, columns, dtype, residual))


@pytest.mark.sampled("kernels", "{op}__cuda_sm80")
@pytest.mark.parametrize(("columns", "dtype"), [(96, "bf16"), (101, "f16"), (1000, "bf16"), (1001, "f32"), (2304, "bf16")])
@pytest.mark.parametrize("op", OPS)
def test_every_config_is_right(op: str, columns: int, dtype: str) -> None:
    """Also with many rows, where a warp takes several: a smaller card makes few rows many."""
    few = given(op, 11 if columns < 1000 else 3, columns, dtype)
    kernel = registry.implementation(f"{op}__cuda_sm80")
    configs = kernel.configs(Subject("rows", registry.op(op), kernel).kernel_problem(few, TARGETS[90])[1])
    assert len(configs) > 3
    for config in configs:
        right(kernel.name, few, config)


@pytest.mark.sampled("kernels", "layer_norm__cuda_sm80")
@pytest.mark.parametrize("fill", ["first 3e38", "first 1e4", "all 0.3"])
@pytest.mark.parametrize("columns", [512, 517, 4100])
def test_layer_norm_stands_outliers_and_equal_rows(columns: int, fill: str) -> None:
    c = case("c", x=Input((3, columns), "bf16", fill), residual=None, weight=None, bias=None, dims=1, eps=1e-5)
    found = right("layer_norm__cuda_sm80", c)
    assert found.outputs["y"].max == 0 or not fill.startswith("all")


@pytest.mark.parametrize("tensors", [1, 2])
@pytest.mark.parametrize("least", [1, 16])
def test_a_choice_holds_the_row_and_there_are_few_binaries(tensors: int, least: int) -> None:
    binaries = set()
    for vectors in range(1, 4096 + 1):
        for rows in (1, 300, 4000, 1 << 20):
            r = _register_rows.Rows(rows, vectors, tensors, least, TARGETS[90])
            config = _register_rows.choose(r)
            team, each = config["team"], config["vectors"]
            assert team * each >= vectors > team * (each - 1), (r, config)
            assert team <= 1024 and (team % 32 == 0 or 32 % team == 0) and team >= min(least, 32), (r, config)
            assert each * tensors <= 8 and config["rows"] * each * tensors <= 8, (r, config)
            if rows == 1 << 20 and vectors > 600:
                assert team * each / vectors <= 1.1, (r, config)  # threads come in warps
            binaries.add((team if team <= 32 else "block", each, config["rows"], config["registers"]))
    assert len(binaries) <= 40
