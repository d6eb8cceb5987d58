"""Products of 16 bits whose K is divided in a cluster: every tile, every layout, any stride and address, in the simulator."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case, Input
from rooftop.lab import candidates, simt
from rooftop.lab.check import checker
from rooftop.lab.tune.tuner import pinned

NAME = "matmul__cluster__cuda_sm90"
CARD = TARGETS["h200"]


def module() -> Any:
    kernel: Any = registry.implementation(NAME)
    return kernel._module


def case_of(text: str, m: int, n: int, k: int, dtype: str = "bf16", layout: str = "contiguous", **more: Any) -> Case:
    """Two letters: N, rows are neighbours; T, columns are."""
    inputs: dict[str, Any] = {
        name: Input(shape, dtype, "normal", layout if x == "N" else "transposed") for name, x, shape in zip(("a", "b"), text, ((m, k), (k, n)), strict=True)
    }
    return Case(f"{text} {m}x{n}x{k} {layout}", {**inputs, "c": None, "alpha": 1.0, "beta": 0.0, **more})


def checked(case: Case, shape: tuple[int, int, int, int], split: int, seed: int) -> None:
    subject = candidates.find([NAME])[0]
    config = {**subject.head.config, **module()._config(module().Tile(*shape, 3), split)}
    found = checker.check(pinned(subject, config), case, backend="cpu", seed=seed)
    assert found.status == "ok", f"{case.id} {shape} {split}: {found.message}"


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.skipif(simt.unavailable() is not None, reason="the simulator cannot be built here")
@pytest.mark.parametrize("number", range(13))
def test_every_tile(number: int) -> None:
    """Cut off at its edges, whole and odd rows, K in parts of which the last may be empty, with what follows."""
    shapes = module().SHAPES
    assert len(shapes) == 13, "a tile without a test"
    bm, bn = shapes[number][:2]
    text = ("NN", "NT", "TN", "TT")[number % 4]
    odd, dtype = number // 2 % 2, ("bf16", "f16")[number % 2]
    m, n, k = bm + 8 - odd * 3, bn + 16 - odd, (200, 137)[odd]
    more = {"c": Input((m, n), "f32"), "beta": 0.5, "to": "f32"} if number % 3 == 0 else {"bias": Input((n,), dtype), "activation": "silu"}
    checked(case_of(text, m, n, k, dtype, **(more if number % 3 < 2 else {})), shapes[number], (1, 2, 4, 8)[number % 4 ^ number // 4 % 4], number)


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.skipif(simt.unavailable() is not None, reason="the simulator cannot be built here")
@pytest.mark.parametrize("text", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("layout", ["offset", "padded"])
def test_any_address(text: str, layout: str) -> None:
    """A matrix that begins two bytes after a boundary of 16: nothing before it is read."""
    for n, k, split in ((72, 130, 2), (39, 67, 1)):
        checked(case_of(text, 33, n, k, layout=layout), (32, 64, 16, 32), split, n)
