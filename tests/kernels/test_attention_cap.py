"""The soft cap of the Hopper kernel, which only a GPU runs: its PTX, evaluated here instruction by instruction for a warp."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

pytest.importorskip("triton")

from rooftop.core import registry
from rooftop.core.spec import TARGETS
from rooftop.kernels.attention import attention__gluon_sm90 as kernel

LANES = 32
F32 = np.float32


def _run(asm: str, count: int, scores: np.ndarray, by: float) -> np.ndarray:
    """What lanes get for `scores` [count, LANES]. An exponential or reciprocal is rounded once, which the GPU's are not; subnormals become 0."""
    held = {f"${count + i}": row.astype(F32) for i, row in enumerate(scores)} | {f"${2 * count + i}": np.full(LANES, by, F32) for i in range(count)}
    text = re.sub(r"\.reg [^;]*;", "", asm.strip(" {}"))
    steps = [t.strip() for t in re.sub(r"(\w+):", r"\1:;", text).split(";") if t.strip()]
    labels = {t[:-1]: i for i, t in enumerate(steps) if t.endswith(":")}
    at = 0

    def value(name: str) -> np.ndarray:
        if name.startswith("0f"):
            return np.full(LANES, np.uint32(int(name[2:], 16)).view(F32))
        return np.full(LANES, np.uint32(int(name, 16) & 0xFFFFFFFF)) if re.match(r"-?\d|0x", name) else held[name]

    def bits(name: str) -> np.ndarray:
        return value(name).view(np.uint32) if value(name).dtype == F32 else value(name)

    def wide(name: str) -> np.ndarray:
        return value(name).astype(np.float64)

    def flushed(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < 2.0**-126, 0.0, x)

    while at < len(steps):
        word, _, rest = steps[at].partition(" ")
        at += 1
        if word.endswith(":"):
            continue
        where = np.ones(LANES, bool)
        if word.startswith("@"):
            where = held[word[1:]]
            word, _, rest = rest.partition(" ")
        if word == "bra.uni":
            assert where.all() or not where.any(), "the lanes of a warp part"
            at = labels[rest] if where.all() else at
            continue
        to, *names = (n.strip() for n in rest.split(","))
        with np.errstate(all="ignore"):
            match word.split(".")[0]:
                case "mul":
                    made = (wide(names[0]) * wide(names[1])).astype(F32)
                case "fma":
                    made = (wide(names[0]) * wide(names[1]) + wide(names[2])).astype(F32)
                case "add":
                    made = (wide(names[0]) + wide(names[1])).astype(F32)
                case "ex2":
                    made = flushed(np.exp2(wide(names[0]))).astype(F32)
                case "rcp":
                    made = flushed(1 / wide(names[0])).astype(F32)
                case "abs":
                    made = np.abs(value(names[0]))
                case "mov":
                    made = np.where(where, value(names[0]), held.get(to, F32(0)))
                case "or" | "lop3":
                    assert names[3:] in ([], ["0xFE"])
                    made = np.bitwise_or.reduce([bits(n) for n in names[:3]])
                case "and":
                    made = bits(names[0]) & bits(names[1])
                case "setp":
                    made = bits(names[0]) != bits(names[1]) if word.startswith("setp.ne") else wide(names[0]) >= wide(names[1])
                case "vote":
                    made = np.full(LANES, held[names[0]].any())
                case _:
                    raise AssertionError(word)
        held[to] = made
    return np.stack([held[f"${i}"] for i in range(count)])


@pytest.mark.parametrize("count", kernel.COUNTS)
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 0.1, 1.0, 30.0])
def test_the_tanh_of_scores_of_any_size(count: int, scale: float) -> None:
    x = scale * np.random.default_rng(count).standard_normal((count, LANES))
    got = _run(kernel.TANH_OF.value[count], count, x * (2 / kernel.SMALL.value), 1.0).astype(np.float64)
    want = np.tanh((x * (2 / kernel.SMALL.value)).astype(F32).astype(np.float64) * (kernel.SMALL.value / 2))
    assert float((np.abs(got - want) / np.abs(want)).max()) < 5e-7


@pytest.mark.parametrize("by", [50.0, 1e-3])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0])
def test_weights_are_powers_of_the_capped_scores(scale: float, by: float) -> None:
    by = float(F32(by * 1.4426950408889634))
    x = (scale * np.random.default_rng(3).standard_normal((64, LANES)) * (2 / kernel.SMALL.value)).astype(F32)
    got = np.log2(_run(kernel.WEIGHTS_OF.value[64], 64, x, by).astype(np.float64))
    want = by * np.tanh(x.astype(np.float64) * (kernel.SMALL.value / 2))
    assert float((np.abs(got - want) / (np.abs(want) + 1)).max()) < 5e-7


@pytest.mark.parametrize("seed", range(4))
def test_one_score_that_is_not_small_or_no_number_turns_its_warp(seed: int) -> None:
    r = np.random.default_rng(seed)
    x = r.uniform(-1.9, 1.9, (32, LANES)).astype(F32)
    i, j = int(r.integers(32)), int(r.integers(LANES))
    x[i, j] = (np.nan, np.inf, -np.inf, -2.0)[seed]
    got = _run(kernel.TANH_OF.value[32], 32, x, 1.0)
    want = np.tanh(x.astype(np.float64) * (kernel.SMALL.value / 2))
    np.testing.assert_allclose(got, want, rtol=5e-7)


@pytest.mark.parametrize(
    ("like", "cap", "maxima", "how"),
    [("soft cap bf16", 50.0, False, "BOUNDED"), ("soft cap bf16", 50.0, True, "CAPPED"), ("soft cap bf16", 51.0, False, "CAPPED"),
     ("soft cap f16", 20.0, False, "CAPPED"), ("bias bf16", 20.0, False, "CAPPED"), ("causal 2x37 bf16", 0.0, False, None)],
)  # fmt: skip
def test_maxima_are_left_out_where_float32_holds_all_weights(like: str, cap: float, maxima: bool, how: str | None) -> None:
    op = registry.op("attention")
    c = op.case(like)
    problem = op.problem(dataclasses.replace(c, inputs={**c.inputs, "softcap": cap}), TARGETS[90])
    launch = kernel.launches(problem, kernel.Config(MAXIMA=maxima))[-1]
    assert launch.args["CAP"] == (0 if how is None else getattr(kernel, how).value)
