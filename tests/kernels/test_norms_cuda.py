"""The paths of the CUDA C++ kernels of rms_norm and layer_norm in the simulator: rows on and off 16 bytes, clusters of blocks, more rows than stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

import pytest
from _kernels import about_normal, fixed, right

from rooftop.core import registry
from rooftop.core.implementation import Implementation
from rooftop.core.spec import TARGETS, Case, Input, case
from rooftop.kernels.norm import _cluster_slices
from rooftop.kernels.norm import norms__cuda_sm90 as fwd
from rooftop.kernels.norm import norms_bwd__cuda_sm90 as bwd
from rooftop.lab import inputs
from rooftop.lab.candidates import Subject

PERSISTENT = {"path": "persistent", "blocks": 1, "pieces": 1, "stages": 3}
STREAMING = {"path": "streaming", "blocks": 1}
FORWARD: list[tuple[dict[str, Any], int, int, str]] = [
    (PERSISTENT | {"cluster": 1}, 70, 64, "f32"),
    (PERSISTENT | {"cluster": 1, "pieces": 2, "stages": 4}, 50, 1000, "bf16"),
    (PERSISTENT | {"cluster": 1}, 90, 257, "bf16"),  # odd rows: eight rows to a period
    (PERSISTENT | {"cluster": 2, "pieces": 2}, 45, 1026, "f16"),  # four
    (PERSISTENT | {"cluster": 4}, 21, 2049, "f32"),
    (PERSISTENT | {"cluster": 4, "blocks": 2}, 40, 2048, "bf16"),
    (PERSISTENT | {"cluster": 16, "pieces": 2, "stages": 4}, 7, 16 * 1024, "bf16"),
    (PERSISTENT | {"cluster": 16, "pieces": 2}, 19, 16 * 512 - 3, "bf16"),
    (PERSISTENT | {"cluster": 1, "pieces": 4}, 90, 1071, "bf16"),  # the shapes of rings of long rows: more packs a thread
    (PERSISTENT | {"cluster": 2, "pieces": 4}, 17, 8200, "f32"),
    (PERSISTENT | {"cluster": 8, "pieces": 4, "blocks": 2}, 21, 8209, "f32"),
    (PERSISTENT | {"cluster": 16, "pieces": 8}, 5, 16 * 2048 + 8, "bf16"),
    (PERSISTENT | {"cluster": 2, "pieces": 2}, 61, 1027, "bf16"),  # sixteen offsets, eight clusters: several runs of rows each
    (PERSISTENT | {"cluster": 4, "pieces": 2, "stages": 4}, 13, 2050, "f32"),
    (PERSISTENT | {"cluster": 2, "pieces": 2}, 25, 1032, "bf16"),  # every second row starts amid 32 bytes
    (PERSISTENT | {"cluster": 16, "pieces": 1, "stages": 4}, 5, 4100, "f32"),
    (STREAMING | {"cluster": 1, "pieces": 2}, 9, 257, "bf16"),
    (STREAMING | {"cluster": 1, "pieces": 2, "rows": 2}, 5, 1024, "bf16"),
    (STREAMING | {"cluster": 4, "pieces": 1, "rows": 2}, 3, 2040, "f16"),
    (STREAMING | {"cluster": 2, "pieces": 1}, 3, 1027, "f32"),
    (STREAMING | {"cluster": 16, "pieces": 2}, 2, 16 * 512 - 3, "bf16"),
]
BACKWARD: list[tuple[dict[str, Any], int, int, str]] = [
    ({"pieces": 1, "cluster": 1, "blocks": 1, "stages": 3, "sums": "registers"}, 70, 64, "f32"),
    ({"pieces": 2, "cluster": 1, "blocks": 1, "stages": 4, "sums": "shared"}, 50, 1000, "bf16"),
    ({"pieces": 1, "cluster": 1, "blocks": 1, "stages": 3, "sums": "registers"}, 90, 289, "bf16"),
    ({"pieces": 2, "cluster": 2, "blocks": 1, "stages": 3, "sums": "shared"}, 45, 1026, "f16"),
    ({"pieces": 1, "cluster": 4, "blocks": 2, "stages": 3, "sums": "registers"}, 40, 2049, "f32"),
    ({"pieces": 2, "cluster": 16, "blocks": 1, "stages": 3, "sums": "registers"}, 7, 16 * 1024, "bf16"),
    ({"pieces": 2, "cluster": 16, "blocks": 1, "stages": 3, "sums": "shared"}, 19, 16 * 512 - 3, "bf16"),
    ({"pieces": 4, "cluster": 8, "blocks": 3, "stages": 3, "sums": "registers"}, 21, 8 * 1024 - 8, "bf16"),
    ({"pieces": 2, "cluster": 2, "blocks": 1, "stages": 3, "sums": "registers"}, 61, 1027, "bf16"),  # several runs of rows a cluster
    ({"pieces": 1, "cluster": 4, "blocks": 1, "stages": 4, "sums": "split"}, 53, 1535, "f32"),
    ({"pieces": 2, "cluster": 8, "blocks": 1, "stages": 3, "sums": "shared"}, 29, 4102, "f32"),
    ({"pieces": 4, "cluster": 2, "blocks": 3, "stages": 3, "sums": "registers"}, 70, 2051, "bf16"),
    ({"pieces": 3, "cluster": 8, "blocks": 1, "stages": 3, "sums": "registers"}, 21, 8 * 512, "f32"),
    ({"pieces": 1, "cluster": 1, "blocks": 1, "stages": 3, "sums": "split"}, 90, 1001, "bf16"),
    ({"pieces": 2, "cluster": 2, "blocks": 1, "stages": 3, "sums": "split"}, 40, 1024, "f32"),
    ({"pieces": 1, "cluster": 2, "blocks": 1, "stages": 3, "sums": "registers"}, 40, 2095, "bf16"),  # odd rows that fill every thread and both edges
    ({"pieces": 2, "cluster": 4, "blocks": 1, "stages": 3, "sums": "registers"}, 21, 4151, "f32"),
]
GROUPED: list[tuple[dict[str, Any], int, int, str]] = [  # blocks that leave their sums together; columns that do and do not fill them
    ({"group": 2, "pieces": 1, "blocks": 1, "stages": 3, "sums": "registers"}, 333, 64, "f32"),  # more than a span of rows to a block
    ({"group": 4, "pieces": 2, "blocks": 1, "stages": 4, "sums": "shared"}, 45, 1032, "bf16"),
    ({"group": 8, "pieces": 1, "blocks": 2, "stages": 3, "sums": "split"}, 40, 1000, "f16"),
    ({"group": 4, "pieces": 3, "blocks": 1, "stages": 3, "sums": "registers"}, 21, 1536, "f32"),
    ({"group": 8, "pieces": 1, "blocks": 1, "stages": 3, "sums": "shared"}, 3, 512, "bf16"),  # most blocks have no row
]


def of_config(name: str, config: dict[str, Any]) -> Implementation:
    """The kernel that always takes one config."""
    whole = {**registry.implementation(name).head.config, **config}  # type: ignore[attr-defined]
    kind = bwd if "sums" in whole else fwd
    return fixed(name, lambda problem: kind._complete(kind.of(problem), whole))


def given(rows: int, columns: int, dtype: str, full: bool) -> Case:
    x, weight = Input((rows, columns), dtype), Input((columns,), dtype)
    return case("c", x=x, residual=x if full else None, weight=weight if full else None, bias=weight if full else None, dims=1, eps=1e-5)


@pytest.mark.sampled("kernels", "{name}__cuda_sm90")
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize("number", range(len(FORWARD)))
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_every_path_forward_is_right(name: str, number: int, full: bool) -> None:
    run(name, *FORWARD[number], full)


@pytest.mark.sampled("kernels", "{name}__cuda_sm90")
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize("number", range(len(BACKWARD)))
@pytest.mark.parametrize("name", ["rms_norm_bwd", "layer_norm_bwd"])
def test_every_config_backward_is_right(name: str, number: int, full: bool) -> None:
    run(name, *BACKWARD[number], full)


@pytest.mark.sampled("kernels", "{name}__cuda_sm90")
@pytest.mark.parametrize("wanted", ["weight bias", "weight", "bias", ""])
@pytest.mark.parametrize("number", range(len(GROUPED)))
@pytest.mark.parametrize("name", ["rms_norm_bwd", "layer_norm_bwd"])
def test_blocks_leave_their_sums_together(name: str, number: int, wanted: str) -> None:
    config, rows, columns, dtype = GROUPED[number]
    x, of_columns = Input((rows, columns), dtype), Input((columns,), dtype)
    given = {"x": x, "residual": x if number % 2 else None, **{n: of_columns if n in wanted else None for n in ("weight", "bias")}}
    implementation, found = of_config(f"{name}__cuda_sm90", config | {"cluster": 1}), case("c", dims=1, eps=1e-5, **given)
    right(implementation, found, sms=16)
    problem = Subject("fixed", registry.op(name), implementation).kernel_problem(found, replace(TARGETS[90], sms=16, clusters=()))[1]
    launch, *_ = implementation.launches(problem, implementation.choose(problem))
    left = implementation.scratch(problem, implementation.choose(problem))["pw"].shape[0]
    assert launch.cluster == (config["group"],) and launch.grid[0] == left * config["group"]


@pytest.mark.sampled("kernels", "layer_norm_bwd__cuda_sm90")
def test_elements_far_from_the_others_are_right_wherever_they_lie() -> None:
    for at in (slice(1), slice(8), slice(256), slice(700, 701)):  # of a thread, all of it, of a warp; not where the sums are about
        for pieces, cluster, columns in ((2, 1, 1024), (1, 4, 2051)):
            config = {"pieces": pieces, "cluster": cluster, "blocks": 1, "stages": 3, "sums": "registers"}
            x, weight = Input((9, columns), "f16", "far"), Input((columns,), "f16")
            with mock.patch.dict(inputs.FILLS, {"far": about_normal(lambda x, at=at: x[..., at].add_(3000))}):
                right(of_config("layer_norm_bwd__cuda_sm90", config), case("c", x=x, residual=None, weight=weight, bias=weight, dims=1, eps=1e-5), sms=16)


ODD: list[tuple[int, str]] = [(289, "bf16"), (289, "f16"), (146, "f32")]  # rows whose first pack may lie before them


@pytest.mark.sampled("kernels", "{name}__cuda_sm90")
@pytest.mark.parametrize("fill", ["row 0 is NaN", "all 1000"])
@pytest.mark.parametrize(("columns", "dtype"), ODD)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "rms_norm_bwd", "layer_norm_bwd"])
def test_a_row_of_nan_spoils_no_other_and_equal_rows_are_exact(name: str, columns: int, dtype: str, fill: str) -> None:
    config = {"pieces": 1, "cluster": 1, "blocks": 1, "stages": 3, "sums": "registers"} if name.endswith("bwd") else PERSISTENT | {"cluster": 1}
    c = case("c", x=Input((90, columns), dtype, fill), residual=None, weight=None, bias=None, dims=1, eps=1e-5)
    right(of_config(f"{name}__cuda_sm90", config), c, sms=16)


@pytest.mark.sampled("kernels", "layer_norm__cuda_sm90")
@pytest.mark.parametrize("fill", ["first 3e38", "first 1e4", "all 0.3"])
def test_one_pass_stands_outliers_and_equal_rows(fill: str) -> None:
    c = case("c", x=Input((3, 512), "bf16", fill), residual=None, weight=None, bias=None, dims=1, eps=1e-5)
    found = right(of_config("layer_norm__cuda_sm90", STREAMING | {"cluster": 2, "pieces": 1}), c, sms=16)
    assert found.outputs["y"].max == 0 or not fill.startswith("all")


def run(name: str, config: dict[str, Any], rows: int, columns: int, dtype: str, full: bool) -> None:
    found = right(of_config(f"{name}__cuda_sm90", config), given(rows, columns, dtype, full), sms=16)
    kernel = f"norm_{config['path']}" if "path" in config else "norm_backward"
    assert found.path[0].startswith(f"{kernel}<")


@pytest.mark.sampled("kernels", "{name}__cuda_sm90")
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "rms_norm_bwd", "layer_norm_bwd"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_what_is_chosen_fits_a_multiprocessor(name: str, dtype: str) -> None:
    op, found = registry.op(name), registry.implementation(f"{name}__cuda_sm90")
    seen = 0
    for power in range(8, 20):
        for columns in ((1 << power) + d for d in (-9, -8, -1, 0, 1, 8, 1 << power - 1, 1 + (1 << power - 1))):
            for rows, full in ((40, False), (3000, True)):
                problem = Subject("fixed", op, found).kernel_problem(given(rows, columns, dtype, full), TARGETS[90])[1]
                if found.supports(problem):
                    continue
                config = found.choose(problem)
                launch = found.launches(problem, config)[0]
                threads = launch.block[0]
                assert threads <= 1024 and launch.shared + 2048 <= 232448, (columns, rows, config, launch)
                blocks = config["blocks"]
                if config.get("path", "persistent") == "persistent":  # all of them must run at once
                    assert blocks * threads <= 2048 and blocks * (launch.shared + 1024 + 1024) <= 233472, (columns, rows, config, launch)
                seen += 1
    assert seen > 100


@pytest.mark.parametrize(("columns", "dtype"), [(131073, "bf16"), (163626, "bf16"), (250001, "bf16"), (65537, "f32"), (120006, "f32"), (170001, "f32")])
def test_a_ring_of_long_odd_rows_leaves_no_cluster_idle(columns: int, dtype: str) -> None:
    """The number of clusters need not be a multiple of the eight or sixteen places within 32 bytes where a row may start."""
    op, found = registry.op("layer_norm"), registry.implementation("layer_norm__cuda_sm90")
    x, weight = Input((1500, columns), dtype), Input((columns,), dtype)
    problem = op.problem(case("c", x=x, residual=None, weight=weight, bias=weight, dims=1, eps=1e-5), TARGETS["h200"])
    config = found.choose(problem)
    assert config["path"] == "persistent"
    assert fwd._clusters(fwd.of(problem), config, 1500) == problem.device.resident(config["cluster"]) * config["blocks"]


def rows_of_every_kind(backward: bool) -> Iterator[Any]:
    """What decides between the rows of a table: sizes beside each bound, how rows lie, options."""
    table = bwd.TABLE if backward else fwd.TABLE
    edges = {b for c in table for b in (c.over, c.most) if 0 < b < 1 << 40}
    sizes = {edge + step for edge in edges for step in (-64, -16, 0, 16, 64, 1024)} | {16, 1 << 20}
    for size, itemsize, lie, centre, flags, per in product(
        sorted(s for s in sizes if s > 0), (2, 4), ("aligned", "odd", "neither"), (False, True), product((False, True), repeat=3), (0.1, 1, 3, 20)
    ):
        columns = size // itemsize + (lie != "aligned")
        shape = _cluster_slices.Slices(columns, itemsize, columns, lie == "aligned")
        if backward:
            yield bwd.Rows(int(132 * per), shape, lie != "neither", *flags, centre, 132)
        else:
            yield fwd.Rows(int(132 * per), shape, lie != "neither", *flags, centre, 132)


@pytest.mark.parametrize("backward", [False, True])
def test_each_row_of_the_table_has_a_reason_and_is_taken_by_some_rows(backward: bool) -> None:
    table = bwd.TABLE if backward else fwd.TABLE
    assert all(len(c.why) > 5 for c in table)
    used = {id(_cluster_slices.of_table(table, r)) for r in rows_of_every_kind(backward)}
    assert not [c for c in table if id(c) not in used]


@pytest.mark.parametrize(("columns", "dtype"), [(17371, "bf16"), (16800, "f32"), (19876, "f32"), (57616, "bf16"), (131488, "bf16"), (142000, "f32")])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_rows_longer_than_registers_go_through_a_ring_whose_config_is_of_their_length_alone(name: str, columns: int, dtype: str) -> None:
    op, found = registry.op(name), registry.implementation(f"{name}__cuda_sm90")
    chosen = []
    for rows in (1200, 1201, 5000, 20000):
        x, weight = Input((rows, columns), dtype), Input((columns,), dtype)
        given = case("c", x=x, residual=None, weight=weight, bias=weight if name == "layer_norm" else None, dims=1, eps=1e-5)
        chosen.append(found.choose(Subject("chosen", op, found).kernel_problem(given, TARGETS[90])[1]))
    assert all(c == chosen[0] for c in chosen)
    assert chosen[0]["path"] == "persistent"


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_no_clusters_of_odd_backward_rows_wait_for_others_to_end(name: str) -> None:
    """Rows of an odd number of 16-bit elements start in 16 places, but only 7 clusters of 16 blocks are resident with one block a multiprocessor."""
    op, found = registry.op(f"{name}_bwd"), registry.implementation(f"{name}_bwd__cuda_sm90")
    assert TARGETS["h200"].resident(16) == 7
    for columns, dtype in ((42311, "bf16"), (75079, "bf16"), (82355, "bf16"), (25845, "f32"), (65278, "f32")):
        weight = Input((columns,), dtype)
        bias = weight if name == "layer_norm" else None
        problem = op.problem(case("c", x=Input((2000, columns), dtype), residual=None, weight=weight, bias=bias, dims=1, eps=1e-5), TARGETS["h200"])
        rows, config = bwd.of(problem), found.choose(problem)
        resident = problem.device.resident(config["cluster"]) * config["blocks"]
        assert 0.8 * resident <= bwd.clusters(problem, rows, config) <= resident, (columns, dtype, config)
