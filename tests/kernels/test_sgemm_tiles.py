"""Products of float32 in CUDA C++: every tile, in every layout of the operands, in the simulator; and which tile is chosen."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case, Input, Problem
from rooftop.lab import candidates, simt
from rooftop.lab.check import checker
from rooftop.lab.tune.tuner import pinned

NAME = "matmul__simt__cuda_sm80"
CARD = TARGETS["h200"]


def module() -> Any:
    kernel: Any = registry.implementation(NAME)
    return kernel._module


def layout_of(text: str, m: int, n: int, k: int) -> dict[str, Input]:
    """Two letters: N, rows are neighbours; T, columns are."""
    return {
        name: Input(shape, "f32", "normal", "contiguous" if x == "N" else "transposed")
        for name, x, shape in zip(("a", "b"), text, ((m, k), (k, n)), strict=True)
    }  # fmt: skip


def case_of(text: str, m: int, n: int, k: int, **more: Any) -> Case:
    inputs: dict[str, Any] = {**layout_of(text, m, n, k), "c": None, "alpha": 1.0, "beta": 0.0, **more}
    return Case(f"{text} {m}x{n}x{k}", inputs)


def problem_of(m: int, n: int, k: int) -> Problem:
    op = registry.op("matmul")
    return op.problem(case_of("NN", m, n, k), CARD)


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.skipif(simt.unavailable() is not None, reason="the simulator cannot be built here")
@pytest.mark.parametrize("text", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("number", range(11))
def test_every_tile_in_every_layout(number: int, text: str) -> None:
    tiles = module().TILES
    assert len(tiles) == 11, "a tile without a test"
    tile, even = tiles[number], number % 2 == 0
    m, n = (tile.BM // 2 + 5, min(tile.BN, 64) + 12) if even else (min(tile.BM, 64) + 8, tile.BN // 2 + 3)  # one tile cut off, or two
    case = case_of(text, m, n, 45, **({"c": Input((m, n), "f32"), "beta": 0.5} if text in ("NN", "TT") else {"bias": Input((n,), "f32"), "activation": "silu"}))
    subject = candidates.find([NAME])[0]
    problem = subject.kernel_problem(case, CARD)[1]
    config = {**subject.head.config, **module()._config(problem, tile, 2 if text in ("NN", "NT") else 1)}
    found = checker.check(pinned(subject, config), case, backend="cpu", seed=number)
    assert found.status == "ok", found.message
