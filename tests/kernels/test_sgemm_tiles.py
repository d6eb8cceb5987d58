"""Products of float32 in CUDA C++: every tile, in every layout of the operands, in the simulator; and which tile is chosen."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from rooftop.core import registry
from rooftop.core.call import select
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
    }


def case_of(text: str, m: int, n: int, k: int, **more: Any) -> Case:
    inputs: dict[str, Any] = {**layout_of(text, m, n, k), "c": None, "alpha": 1.0, "beta": 0.0, **more}
    return Case(f"{text} {m}x{n}x{k}", inputs)


def problem_of(m: int, n: int, k: int) -> Problem:
    op = registry.op("matmul")
    return op.problem(case_of("NN", m, n, k), CARD)


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.skipif(simt.unavailable() is not None, reason="the simulator cannot be built here")
@pytest.mark.parametrize("number", range(14))
def test_every_tile_in_two_layouts(number: int) -> None:
    """Cut off at its edges, more than one of them, whole or in parts of K, with what follows."""
    tiles = module().TILES
    assert len(tiles) == 14, "a tile without a test"
    tile, even = tiles[number], number % 2 == 0
    subject = candidates.find([NAME])[0]
    for text in ("NN", "TT") if even else ("NT", "TN"):
        m, n = (tile.BM // 2 + 5, min(tile.BN, 64) + 12) if text[0] == "N" else (min(tile.BM, 64) + 8, tile.BN // 2 + 3)
        more = {"c": Input((m, n), "f32"), "beta": 0.5} if text[0] == text[1] else {"bias": Input((n,), "f32"), "activation": "silu"}
        case = case_of(text, m, n, 45, **more)
        problem = subject.kernel_problem(case, CARD)[1]
        config = {**subject.head.config, **module()._config(problem, tile, 2 if text[0] == "N" else 1)}
        found = checker.check(pinned(subject, config), case, backend="cpu", seed=number)
        assert found.status == "ok", f"{text}: {found.message}"


def test_no_tile_needs_more_than_a_multiprocessor_has() -> None:
    for card in (TARGETS["h200"], TARGETS["a800"], TARGETS["rtx4090"]):
        for m, n, k in ((4096, 4096, 4096), (64, 64, 65536), (1, 1, 1), (100000, 16, 200), (16, 100000, 200), (300, 200, 0), (33, 65, 1000)):
            problem = registry.op("matmul").problem(case_of("TT", m, n, k), card)
            config = registry.implementation(NAME).choose(problem)
            for launch in registry.implementation(NAME).launches(problem, config):
                assert launch.shared <= card.shared_per_block and launch.block[0] <= 1024


@pytest.mark.parametrize("shape", [(17, 33), (4096, 4096), (64, 100000)])
def test_parts_cover_k_once(shape: tuple[int, int]) -> None:
    m, n = shape
    for k in (0, 1, 7, 8, 9, 500, 65536, 131077):
        problem = problem_of(m, n, k)
        for config in registry.implementation(NAME).configs(problem):
            parts = module()._splits(problem, config)
            assert parts == 1 or ((parts - 1) * config["PART"] < k <= parts * config["PART"] and config["PART"] % 8 == 0)
            assert next(x for x in registry.implementation(NAME).launches(problem, config) if "part" in x.args).args["part"] * parts >= k


@pytest.mark.parametrize(
    ("shape", "tall", "wide"), [((4096, 4096, 4096), 128, 256), ((200000, 16, 200), 256, 16), ((16, 200000, 200), 32, 256), ((64, 64, 65536), 64, 64)], ids=str
)
def test_tiles_follow_the_shape(shape: tuple[int, int, int], tall: int, wide: int) -> None:
    """No tile is much larger than the result; where there are few, K is cut so that every multiprocessor has work."""
    problem = problem_of(*shape)
    config = registry.implementation(NAME).choose(problem)
    assert config["BM"] <= tall and config["BN"] <= wide
    tiles = -(-shape[0] // config["BM"]) * -(-shape[1] // config["BN"])
    assert tiles * module()._splits(problem, config) >= 0.9 * min(CARD.sms, tiles * shape[2] // 64)


def test_what_a_call_takes() -> None:
    """Every layout, batch and epilogue of float32 goes to this kernel; large batches too."""
    op = registry.op("matmul")
    for text in ("NN", "NT", "TN", "TT"):
        for more in ({}, {"bias": Input((500,), "f32"), "activation": "gelu"}):
            chosen = select(op, op.problem(case_of(text, 700, 500, 900, **more), CARD))
            assert chosen.call is not None and chosen.call.implementation.name == NAME and not chosen.call.copies
    batch = Case("batch", {"a": Input((30, 256, 300)), "b": Input((30, 300, 256)), "c": None, "alpha": 1.0, "beta": 0.0})
    chosen = select(op, op.problem(batch, CARD))
    assert chosen.call is not None and chosen.call.implementation.name == NAME


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.skipif(simt.unavailable() is not None, reason="the simulator cannot be built here")
@pytest.mark.parametrize("text", ["NN", "NT", "TN", "TT"])
def test_operands_that_are_copied_first(text: str) -> None:
    """As rows of K on 16 bytes, from every layout, with edges that are no multiple of 4."""
    subject = candidates.find([NAME])[0]
    case = case_of(text, 37, 51, 45)
    problem = subject.kernel_problem(case, CARD)[1]
    ways = module()._ways(problem)
    assert [copied for copied, _, _ in ways] == [0, 3]
    for copied, _, _ in ways[1:]:
        config = {**subject.head.config, **module()._config(problem, module().TILES[8], 2, copied)}
        found = checker.check(pinned(subject, config), case, backend="cpu", seed=copied)
        assert found.status == "ok", f"{text}, {copied}: {found.message}"
