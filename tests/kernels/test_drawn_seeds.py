"""Random bits of calls without a seed: drawn from torch's generator, as torch's own functions draw; those of a given seed are always the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import rooftop
from rooftop.ops import _randomness

X = torch.randn(40, 300)
Q = torch.randn(1, 6, 2, 8)
CALLS: dict[str, Callable[..., Tensor]] = {
    "sample": lambda **how: rooftop.sample(X, **how),
    "bias_mask_scale_add": lambda **how: rooftop.bias_mask_scale_add(X, p=0.5, **how),
    "attention": lambda **how: rooftop.attention(Q, Q, Q, dropout_p=0.5, **how),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_without_a_seed_differ_and_follow_torchs_seed(name: str) -> None:
    call = CALLS[name]
    torch.manual_seed(3)
    first = [call() for _ in range(10)]
    assert len({tuple(t.flatten().tolist()) for t in first}) == 10
    torch.manual_seed(3)
    assert all(torch.equal(t, call()) for t in first)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        assert not torch.equal(call(), first[0])


@pytest.mark.parametrize("name", CALLS)
def test_a_seed_is_reproducible_and_draws_nothing(name: str) -> None:
    call, before = CALLS[name], torch.get_rng_state()
    assert torch.equal(call(seed=7), call(seed=7)) and not torch.equal(call(seed=7), call(seed=8))
    assert torch.equal(call(seed=7), call(seed=7 + 2**32))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", CALLS)
def test_a_generator_draws_the_seed_and_torchs_own_stays(name: str) -> None:
    call, before = CALLS[name], torch.get_rng_state()
    one, other = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    assert torch.equal(call(generator=one), call(generator=other)) and not torch.equal(call(generator=one), call(seed=5))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_uses_no_random_bits_draws_none() -> None:
    before = torch.get_rng_state()
    rooftop.sample(X, 0.0), rooftop.bias_mask_scale_add(X), rooftop.attention(Q, Q, Q), rooftop.bias_mask_scale_add(X, mask=X > 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_and_steps_drop_different_elements_and_gradients_follow_them() -> None:
    x = torch.ones(50, 60, requires_grad=True)
    masks = [rooftop.bias_mask_scale_add(x, p=0.5) for _ in range(3)]
    for out in masks:
        assert 0.4 < float((out != 0).float().mean()) < 0.6
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], out.detach())
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])
    q = Q.clone().requires_grad_()
    torch.manual_seed(1)
    want = torch.autograd.grad(rooftop.attention(q, Q, Q, dropout_p=0.5).sum(), q)
    torch.manual_seed(1)
    got = torch.autograd.grad(torch.utils.checkpoint.checkpoint(lambda t: rooftop.attention(t, Q, Q, dropout_p=0.5), q, use_reentrant=False).sum(), q)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_draws_at_each_call(backend: str) -> None:
    def step(x: Tensor, q: Tensor) -> Any:
        out = rooftop.attention(q, q, q, dropout_p=0.5)
        return rooftop.sample(x), rooftop.bias_mask_scale_add(x, p=0.5), out

    torch._dynamo.reset()
    made, q = torch.compile(step, backend=backend, fullgraph=True), Q.clone().requires_grad_()
    torch.manual_seed(9)
    first, second = made(X, q), made(X, q)
    for a, b in zip(first, second, strict=True):
        assert not torch.equal(a, b)
    torch.manual_seed(9)
    for a, b in zip(first, made(X, q), strict=True):
        assert torch.equal(a, b)
    (grad,) = torch.autograd.grad(first[2].sum(), q)
    torch.manual_seed(9)
    rooftop.attention(Q, Q, Q, dropout_p=0.5)
    torch.manual_seed(9)
    want = torch.autograd.grad(step(X, q)[2].sum(), q)[0]
    torch.testing.assert_close(grad, want)


# -- the generator of a GPU, without one ---------------------------------------------------------------------------


class Philox:
    """What the host sees of a generator of a GPU."""

    def __init__(self, seed: int, offset: int = 0) -> None:
        self.seed, self.offset = seed, offset

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        assert offset % 4 == 0, "a Philox offset is a multiple of 4"
        self.offset = offset


def test_the_offset_of_a_gpus_generator_moves_on_by_a_counter() -> None:
    one, other = Philox(2**63 + 5), Philox(2**63 + 5)
    drawn = [_randomness._of_philox(one) for _ in range(1000)]  # type: ignore[arg-type]
    assert one.offset == 4000 and len(set(drawn)) > 990
    assert all(-(2**31) <= s < 2**31 for s in drawn)
    assert [_randomness._of_philox(other) for _ in range(3)] == drawn[:3]  # type: ignore[arg-type]
    neighbours = {_randomness._of_philox(Philox(s)) for s in range(1000)}  # type: ignore[arg-type]
    assert len(neighbours) > 990


def test_a_captured_graph_needs_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    like, generator = SimpleNamespace(device=torch.device("cuda", 0)), Philox(1)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"^sample: a CUDA graph is being captured, which would repeat one drawn seed[^\n]*give seed="):
        _randomness.seed("sample", None, None, like)
    assert _randomness.seed("sample", 5, None, like) == 5 and generator.offset == 0
    assert _randomness.seed("sample", None, None, like, used=False) == 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    _randomness.seed("sample", None, None, like)
    assert generator.offset == 4


@pytest.mark.parametrize("name", CALLS)
def test_bad_seeds_and_generators_are_named(name: str) -> None:
    call = CALLS[name]
    with pytest.raises(ValueError, match=rf"^{name}: seed and generator are both given[^\n]*$"):
        call(seed=1, generator=torch.Generator())
    with pytest.raises(TypeError, match=rf"^{name}: generator is 5, a int; it must be a torch.Generator, or None$"):
        call(generator=5)
    with pytest.raises(TypeError, match=rf"^{name}: seed is 1.5, a float; it must be a whole number$"):
        call(seed=1.5)


def test_a_generator_of_another_device_is_named() -> None:
    like = SimpleNamespace(device=torch.device("cuda", 1))
    with pytest.raises(ValueError, match=r"^sample: generator draws on cpu and the tensors lie on cuda:1; it must be a generator of cuda:1$"):
        _randomness.seed("sample", None, torch.Generator(), like)

    class OfGPU(torch.Generator):
        device = torch.device("cuda", 0)

    with pytest.raises(ValueError, match=r"^sample: generator draws on cuda:0 and the tensors lie on cpu; it must be a generator of cpu$"):
        rooftop.sample(torch.ones(2, 4), generator=OfGPU())
