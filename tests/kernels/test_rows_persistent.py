"""Persistent kernels over rows in the simulator: the backward of the norms, and rows that a group of blocks takes. On a card of few multiprocessors, so that
few rows are many to a block."""

from __future__ import annotations

from math import prod

import pytest
from _kernels import right

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case, Input, case
from rooftop.kernels.norm import _row_groups
from rooftop.kernels.norm import norms_bwd__cuda_sm80 as bwd_rows
from rooftop.lab.candidates import Subject

NORMS = ("rms_norm", "layer_norm")
SHORT: list[tuple[int, int, str]] = [
    (70, 64, "f32"),  # several rows a warp, and more than a span of float32 rows
    (300, 100, "bf16"),  # every second row off 16 bytes: blocks take rows of one phase
    (50, 257, "bf16"),  # eight phases
    (45, 1026, "f16"),
    (40, 1160, "bf16"),  # a row a block
    (21, 2049, "f32"),
    (3, 4096, "bf16"),
]
LONG: list[tuple[int, int, str]] = [(9, 2000, "bf16"), (11, 2049, "bf16"), (5, 4100, "f32"), (1, 3000, "f16")]


def given(op: str, rows: int, columns: int, dtype: str, full: bool, fill: str = "normal") -> Case:
    """`full`: with a residual, a weight and a bias."""
    x, weight = Input((rows, columns), dtype, fill), Input((columns,), dtype)
    if op.startswith("softmax"):
        return case("c", x=x, dim=1)
    more = Input((rows, columns), dtype) if full else None
    return case("c", x=x, residual=more, weight=weight if full else None, bias=weight if full else None, dims=1, eps=1e-5)


@pytest.mark.sampled("kernels", "{op}_bwd__cuda_sm80")
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize(("rows", "columns", "dtype"), SHORT)
@pytest.mark.parametrize("op", NORMS)
def test_blocks_that_walk_over_many_rows_are_right(op: str, rows: int, columns: int, dtype: str, full: bool) -> None:
    right(f"{op}_bwd__cuda_sm80", given(op, rows, columns, dtype, full), sms=2)


@pytest.mark.sampled("kernels", "{op}__long__cuda_sm80")
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize(("rows", "columns", "dtype"), LONG)
@pytest.mark.parametrize("op", [op + way for op in (*NORMS, "softmax") for way in ("", "_bwd")])
def test_groups_of_blocks_are_right(op: str, rows: int, columns: int, dtype: str, full: bool) -> None:
    if op.startswith("softmax") and full:
        pytest.skip("softmax adds nothing")
    right(f"{op}__long__cuda_sm80", given(op, rows, columns, dtype, full), sms=16)


@pytest.mark.sampled("kernels", "{name}")
@pytest.mark.parametrize("fill", ["row 0 is NaN", "all 1000", "middle of 3000"])
@pytest.mark.parametrize("name", [f"layer_norm{way}__cuda_sm80" for way in ("_bwd", "_bwd__long", "__long")])
def test_a_row_of_nan_spoils_no_other_and_outliers_and_equal_rows_are_exact(name: str, fill: str) -> None:
    right(name, given("layer_norm", 20, 257, "f16", False, fill), sms=2 if name.endswith("_bwd__cuda_sm80") else 16)


@pytest.mark.parametrize("op", NORMS)
def test_every_length_has_a_config_that_fits(op: str) -> None:
    """From one column to what all blocks hold, on every card: threads, shared memory, blocks that must run at once, threads that hold a row."""
    short, long = (registry.implementation(f"{op}_bwd{way}__cuda_sm80") for way in ("", "__long"))
    taken = {"short": 0, "long": 0}
    for arch in (80, 89, 90):
        device = TARGETS[arch]
        for power in range(3, 21):
            for columns in ((1 << power) - 1, 1 << power, (1 << power) * 3 // 2 + 8):
                for rows, dtype in ((1, "bf16"), (40, "f32"), (100000, "bf16")):
                    problem = Subject("s", registry.op(f"{op}_bwd"), short).kernel_problem(given(op, rows, columns, dtype, True), device)[1]
                    kind = "short" if short.supports(problem) is None else "long"
                    implementation = short if kind == "short" else long
                    if implementation.supports(problem) is not None:
                        if op == "layer_norm" and columns < 15:  # odd rows so short are Triton's
                            continue
                        assert columns * problem["s"].itemsize > device.sms // bwd_rows.of(problem).period * 4096, (arch, columns, dtype)
                        continue
                    config = implementation.choose(problem)
                    first = implementation.launches(problem, config)[0]
                    blocks, threads = first.grid[0], prod(first.block)
                    static = _row_groups.STATIC if kind == "long" else 1024
                    assert threads <= 512 and first.shared + static <= device.shared_per_block, (arch, columns, dtype, config)
                    team = config["team"] if kind == "short" else config["blocks"] * threads
                    vectors = columns * problem["s"].itemsize // 16
                    assert team * config["vectors"] >= vectors and blocks <= max(device.sms, bwd_rows.of(problem).period)
                    assert bwd_rows.of(problem).aligned or team >= 32 // problem["s"].itemsize
                    taken[kind] += 1
    assert min(taken.values()) > 50, taken


def test_messages_are_overwritten_only_when_all_have_read_them() -> None:
    """A block that sends row k has heard of row k - 1 - lag from all, and they had then heard of row k - 2 - 2 lag."""
    r = _row_groups.LongRows(100, 5000, True, 1, 2, 1, 4, 132, 227 * 1024)
    found = _row_groups.configs(r)
    assert len(found) > 3
    for config in found:
        assert 2 * config["lag"] + 2 <= _row_groups.MAIL_ROWS
        assert config["stages"] >= config["lag"] + 2 and config["threads"] >= r.words * config["blocks"]
