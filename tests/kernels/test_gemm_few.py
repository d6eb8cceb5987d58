"""Products of few tiles, whose K is divided in a cluster: what the Python beside the kernel decides, for every layout and address."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case, Input, Problem
from rooftop.lab import candidates

NAME = "matmul__few__cuda_sm90"
CARD = TARGETS["h200"]
SHAPES = [(36, 250, 5066), (109, 5755, 1445), (61, 986, 860), (200, 3000, 1000), (1024, 1024, 1024), (1, 1, 1), (16, 4096, 4096), (300, 64, 72)]


def module() -> Any:
    kernel: Any = registry.implementation(NAME)
    return kernel._module


def problem_of(m: int, k: int, n: int, text: str) -> Problem:
    """text: N, rows are neighbours; T, columns are."""
    inputs: dict[str, Any] = {
        name: Input(shape, "bf16", "normal", "contiguous" if x == "N" else "transposed")
        for name, x, shape in zip(("a", "b"), text, ((m, k), (k, n)), strict=True)
    }
    case = Case(f"{text} {m}x{k}x{n}", {**inputs, "c": None, "alpha": 1.0, "beta": 0.0})
    subject = candidates.find([NAME])[0]
    assert subject.supports(case, CARD) is None
    return subject.kernel_problem(case, CARD)[1]


@pytest.mark.parametrize("text", ["NN", "NT", "TN", "TT"])
def test_every_config_fits(text: str) -> None:
    kernel: Any = registry.implementation(NAME)
    for m, k, n in SHAPES:
        p = problem_of(m, k, n, text)
        for _, c in module().ranked(p):
            (launch,) = module().launches(p, c.fields, kernel._head)
            assert launch.shared <= 225 * 1024
            assert launch.grid[0] % c.SPLIT == 0
            assert (c.WIDE if c.SWAP else 64 * c.GROUPS) % c.SPLIT == 0, "the blocks of a cluster add whole rows"
            threads = launch.block[0]
            assert threads * (c.WIDE // 2 + 24) <= 65536, "the sums fit in registers"


def test_rows_on_16_bytes_come_by_tma() -> None:
    assert module().facts_of(problem_of(64, 1024, 1024, "NN")).modes == (0, 2)
    assert module().facts_of(problem_of(64, 1024, 1024, "TT")).modes == (2, 0)
    assert module().facts_of(problem_of(61, 986, 860, "NN")).modes == (1, 3)
    assert module().facts_of(problem_of(61, 986, 864, "NN")).modes == (1, 2)
