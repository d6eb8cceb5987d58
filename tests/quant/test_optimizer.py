"""The 8-bit optimizer as users and frameworks drive it: states that come back, DTensors, the length of a step, the bits on a CPU."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rooftop
from rooftop.ops.adamw_8bit import numbers
from rooftop.quant import AdamW8bit, adamw_8bit_states, adamw_cpu


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- states that come back ----------------------------------------------------------------------------------------------


def stepped(optimizer: torch.optim.Optimizer, first: int, last: int) -> Tensor:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for i in range(first, last):
        for p in params:
            p.grad = some(*p.shape, seed=i)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in params])


def loaded(state: dict[str, Any], at: Tensor) -> AdamW8bit:
    p = nn.Parameter(at.clone())
    optimizer = AdamW8bit([p], lr=0.5)
    optimizer.load_state_dict(state)
    return optimizer


def filed(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


WAYS: dict[str, Callable[[dict[str, Any], Tensor], AdamW8bit]] = {
    "loaded twice": lambda state, at: loaded(loaded(state, at).state_dict(), at),
    "copied": lambda state, at: loaded(copy.deepcopy(loaded(state, at)).state_dict(), at),
    "pickled": lambda state, at: loaded(pickle.loads(pickle.dumps(loaded(state, at))).state_dict(), at),
    "copied whole": lambda state, at: copy.deepcopy(loaded(state, at)),
    "pickled whole": lambda state, at: pickle.loads(pickle.dumps(loaded(state, at))),
    "in a file, twice": lambda state, at: loaded(filed(loaded(filed(state), at).state_dict()), at),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_optimizer_goes_on_as_if_nothing_had_been(way: str) -> None:
    optimizer = AdamW8bit([nn.Parameter(some(300))], lr=0.01)
    at = stepped(optimizer, 0, 3)
    again = WAYS[way](optimizer.state_dict(), at)
    assert torch.equal(stepped(again, 3, 6), stepped(optimizer, 3, 6))


def test_what_is_loaded_is_a_copy() -> None:
    optimizer = AdamW8bit([nn.Parameter(some(300))], lr=0.01)
    at = stepped(optimizer, 0, 3)
    other = loaded(optimizer.state_dict(), at)
    want = optimizer.state[optimizer.param_groups[0]["params"][0]]["first"].dequantize()
    stepped(other, 3, 5)
    assert torch.equal(optimizer.state[optimizer.param_groups[0]["params"][0]]["first"].dequantize(), want)


def test_a_state_of_other_parameters_changes_nothing() -> None:
    small, large = (AdamW8bit([nn.Parameter(some(n))], lr=0.01) for n in (300, 400))
    stepped(small, 0, 2), stepped(large, 0, 2)
    with pytest.raises(ValueError, match=r"first is e4m3 of \(400,\).*it must be e4m3 of \(300,\)"):
        small.load_state_dict(large.state_dict())
    assert next(iter(small.state.values()))["first"].shape == (300,)
    assert small.param_groups[0]["params"][0].numel() == 300


# -- the length of a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("seed", range(3))
def test_no_step_is_longer_than_the_longest_of_adamw(rounding: str, seed: int) -> None:
    """Gradients of sizes from 1e-8 to 1 side by side, most of them zero at each step: a root that rounds to zero beside a moment that does not made steps of
    hundreds of learning rates."""
    g, n = torch.Generator().manual_seed(seed), 2048
    size = 10 ** (torch.rand(n, generator=g) * 8 - 8)
    p, q = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))
    mine, theirs = AdamW8bit([p], lr=1.0, weight_decay=0.0, rounding=rounding, seed=seed), torch.optim.AdamW([q], lr=1.0, weight_decay=0.0)
    longest, longest_of_theirs = 0.0, 0.0
    for t in range(1, 61):
        p.grad = torch.randn(n, generator=g) * size * (torch.rand(n, generator=g) < 0.15)
        q.grad = p.grad.clone()
        before = p.detach().clone(), q.detach().clone()
        mine.step(), theirs.step()
        length = float((p.detach() - before[0]).abs().max())
        bound = numbers(t, 1.0, (0.9, 0.999), 0.0, 0.0)[-1]
        assert length <= bound * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * (1 + 1e-6)
        longest, longest_of_theirs = max(longest, length), max(longest_of_theirs, float((q.detach() - before[1]).abs().max()))
    assert longest < 2.5 * longest_of_theirs
    assert float((p - q).detach().abs().mean()) < 0.6 * float(q.detach().abs().mean())


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.99), (0.99, 0.9), (0.9, 0.81), (0.5, 0.0), (0.0, 0.0), (0.95, 0.95)])
def test_the_bound_is_the_largest_ratio_that_exact_states_reach(betas: tuple[float, float]) -> None:
    b1, b2 = betas
    for t in (1, 2, 5, 40):
        bound = numbers(t, 1.0, betas, 0.0, 0.0)[-1]
        if b2 == 0 and b1 > 0 and t > 1:
            assert bound > 1e38
            continue
        m = v = 0.0
        for i in range(t):  # the gradients for which the inequality is an equality: (beta1 / beta2)^age
            gradient = (b1 / b2) ** (t - 1 - i) if b2 else float(i == t - 1)
            m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        assert bound == pytest.approx(m / v**0.5, rel=1e-5)


# -- the bits on a CPU --------------------------------------------------------------------------------------------------


def same(a: Tensor, b: Tensor) -> bool:
    if a.element_size() == 1:
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(0).view(torch.uint8), b.nan_to_num(0).view(torch.uint8))


def gradients(kind: str, n: int, t: int) -> Tensor:
    g = some(n, seed=t)
    if kind == "wide":
        return g * 10 ** (torch.rand(n, generator=torch.Generator().manual_seed(t)) * 12 - 10) * (some(n, seed=t + 9) > -0.5)
    if kind == "tiny":
        return g * 1e-22
    if kind == "subnormal":
        return g * 1e-38
    if kind == "not finite" and t in (2, 3):
        g[::37], g[5::41], g[3::43] = float("nan"), float("inf"), -float("inf")
    return g


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("kind", ["normal", "wide", "tiny", "subnormal", "not finite"])
def test_steps_of_many_parameters_have_the_bits_of_the_op(kind: str, rounding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw_cpu, "PIECE", 1024)
    for dtype in (torch.float32, torch.bfloat16):
        want = [some(n).to(dtype) for n in (1, 7, 256, 300, 1024, 2500, 0)]
        got, of_op, mine = [p.clone() for p in want], [adamw_8bit_states(p) for p in want], [adamw_8bit_states(p) for p in want]
        for t in range(1, 5):
            how: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 0.0 if t == 4 else 1e-8, "weight_decay": 0.1}
            given = [gradients(kind, p.numel(), t).to(dtype) for p in want]
            seeds = [(12345 * t + i - 3) << 20 for i in range(len(want))]
            for p, g, s, seed in zip(want, given, of_op, seeds, strict=True):
                rooftop.adamw_8bit(p, g, *s, t, rounding=rounding, seed=seed, **how)
            updates = [adamw_cpu.Update(p, g, *s, seed) for p, g, s, seed in zip(got, given, mine, seeds, strict=True)]
            adamw_cpu.step(updates, numbers(t, **how), rounding)
            for p, q, a, b in zip(want, got, of_op, mine, strict=True):
                assert same(p, q) and all(same(x.codes, y.codes) and same(x.scale, y.scale) for x, y in zip(a, b, strict=True))


def test_the_optimizer_steps_as_the_op_does() -> None:
    p, q = nn.Parameter(some(5, 70)), some(5, 70)
    optimizer, states = AdamW8bit([p], lr=0.01, seed=5), adamw_8bit_states(q)
    for t in range(1, 4):
        p.grad = some(70, 5, seed=t).t()  # other strides
        optimizer.step()
        rooftop.adamw_8bit(q, p.grad, *states, t, lr=0.01, seed=5 + t * 1000003 + 1)
    assert torch.equal(p, q) and torch.equal(optimizer.state[p]["second"].scale, states[1].scale)
    for wrong, text in ((p.detach().t(), "must be contiguous"), (p.detach().double(), "float64")):
        bad = nn.Parameter(wrong)
        bad.grad = torch.zeros_like(bad)
        with pytest.raises((TypeError, ValueError), match=text):
            AdamW8bit([bad]).step()
