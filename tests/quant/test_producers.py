"""Ops that write quantised rows, rotations, and the optimizer with 8-bit states: what their public functions give and refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rooftop
from rooftop.quant import AdamW8bit, Quantized, adamw_8bit_states
from rooftop.quant.safetensors_file import load_file, save_file


def some(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


PRODUCERS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "rms_norm": (rooftop.rms_norm_quantize, lambda x: rooftop.rms_norm(x, x.shape[-1])),
    "swiglu": (lambda x, **how: rooftop.swiglu_quantize(x, x.flip(-1), **how), lambda x: rooftop.swiglu(x, x.flip(-1))),
    "softmax": (rooftop.softmax_quantize, lambda x: rooftop.softmax(x)),
    "hadamard": (lambda x, **how: rooftop.hadamard_quantize(x, 32, **how), lambda x: rooftop.hadamard(x, 32)),
}


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize(
    "how",
    [{"format": "int8"}, {"format": "e4m3", "group": 16}, {"format": "mxfp6"}, {"format": "nvfp4"}, {"format": "int4", "rounding": "stochastic", "seed": 5}],
)
def test_a_producer_gives_what_quantising_its_result_gives(name: str, how: dict[str, Any]) -> None:
    fused, plain = PRODUCERS[name]
    x = some(2, 5, 64)
    if how["format"] == "nvfp4":
        how = {**how, "over": torch.full((1,), 1e-3)}
    q = fused(x, **how)
    want = rooftop.quantize(plain(x), **{**how, "granularity": "group" if "group" in how else None})
    assert q.shape == want.shape and q.scale.shape == want.scale.shape and q.codes.dtype == want.codes.dtype
    same = (q.codes.view(torch.uint8) == want.codes.view(torch.uint8)).float().mean()
    assert float(same) > 0.98  # next to a border a value in float32 may round to the other side
    assert torch.allclose(q.scale.float(), want.scale.float(), rtol=1e-5)
    q.verify()
    assert torch.equal(Quantized.of(q.tensors(), q.facts()).dequantize(), q.dequantize())


def test_the_sum_of_a_residual_is_returned_in_its_dtype() -> None:
    x, residual, weight = some(4, 48, dtype=torch.bfloat16), some(4, 48, dtype=torch.bfloat16, seed=1), some(48, seed=2)
    q, s = rooftop.rms_norm_quantize(x, weight, residual=residual)
    assert torch.equal(s, x + residual) and q.dtype == "bfloat16"
    y = rooftop.rms_norm((x.float() + residual.float()), 48, weight)
    assert float((q.dequantize(torch.float32) - y).abs().max()) <= float(y.abs().max()) / 127 * 0.51


def test_packed_halves_are_those_of_swiglu() -> None:
    x = some(3, 64)
    assert torch.equal(rooftop.swiglu_quantize(x).codes, rooftop.swiglu_quantize(x[:, :32], x[:, 32:]).codes)


def test_a_rotation_is_its_own_inverse_and_spreads_an_outlier() -> None:
    x = some(4, 512)
    x[:, 7] = 100.0
    for size in (16, 32, 64, 128, 256):
        assert torch.allclose(rooftop.hadamard(rooftop.hadamard(x, size), size), x, atol=1e-4)
    plain = (rooftop.quantize(x, "int4").dequantize() - x).square().mean()
    turned = (rooftop.hadamard(rooftop.hadamard_quantize(x, 128, "int4").dequantize(), 128) - x).square().mean()
    assert float(turned) < 0.3 * float(plain)


@pytest.mark.parametrize("format", ["e4m3", "int8", "mxfp8", "mxfp6", "mxfp4", "int4"])
def test_both_are_those_of_the_matrix_and_of_its_transpose(format: str) -> None:
    x = some(48, 80)
    group = None if format.startswith("mx") else 16
    q, t = rooftop.quantize_both(x, format, group=group)
    how: dict[str, Any] = {} if group is None else {"granularity": "group", "group": 16}
    for found, want in ((q, rooftop.quantize(x, format, **how)), (t, rooftop.quantize(x.T, format, **how))):
        assert torch.equal(found.codes.view(torch.uint8), want.codes.view(torch.uint8))
        assert torch.equal(found.scale.view(torch.uint8), want.scale.view(torch.uint8))
        assert torch.equal(found.dequantize(), want.dequantize())


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: rooftop.softmax_quantize(x, group=24), ValueError, "group is 24"),
        (lambda x: rooftop.softmax_quantize(x, "nvfp4"), ValueError, "as `over`"),
        (lambda x: rooftop.softmax_quantize(x.int()), TypeError, "x is torch.int32"),
        (lambda x: rooftop.softmax_quantize(x[0, 0]), ValueError, "no dimensions"),
        (lambda x: rooftop.swiglu_quantize(x, x[:2]), ValueError, "shape"),
        (lambda x: rooftop.swiglu_quantize(x, rounding="up"), ValueError, "rounding is 'up'"),
        (lambda x: rooftop.rms_norm_quantize(x, x[0, :3]), ValueError, "weight is"),
        (lambda x: rooftop.rms_norm_quantize(x, eps=-1), ValueError, "eps is -1"),
        (lambda x: rooftop.hadamard(x, 24), ValueError, "size is 24"),
        (lambda x: rooftop.hadamard_quantize(x, 128), ValueError, "multiple of size"),
        (lambda x: rooftop.quantize_both(x[0]), ValueError, "it must have two"),
        (lambda x: rooftop.quantize_both(x, group=256), ValueError, "group is 256"),
        (lambda x: rooftop.softmax_quantize(x, "mxfp4", scale_dtype="f32"), ValueError, "scales of e8m0"),
        (lambda x: rooftop.softmax_quantize(x, seed="a"), TypeError, "seed"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[torch.Tensor], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(some(4, 64))


def fitted(make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], steps: int = 200) -> float:
    """The mean square that is left after so many steps of a linear regression."""
    x, truth = some(256, 32), some(32, 8, seed=1)
    w = torch.nn.Parameter(torch.zeros(32, 8))
    optimizer = make([w])
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (x @ w - x @ truth).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_eight_bit_states_train_as_those_of_float32_do() -> None:
    want = fitted(lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.0))
    found = fitted(lambda p: AdamW8bit(p, lr=0.05, weight_decay=0.0))
    assert found < max(4 * want, 1e-3) and fitted(lambda p: AdamW8bit(p, lr=0.05, weight_decay=0.0), 2) > 1.0


def test_the_first_step_is_that_of_adamw_and_the_states_are_its() -> None:
    w, g = some(700), some(700, seed=1)
    p = torch.nn.Parameter(w.clone())
    p.grad = g.clone()
    q = torch.nn.Parameter(w.clone())
    q.grad = g.clone()
    mine, theirs = AdamW8bit([p], lr=0.01), torch.optim.AdamW([q], lr=0.01)
    mine.step()
    theirs.step()
    assert torch.allclose(p, q, atol=1e-6)
    state = mine.state[p]
    assert torch.allclose(state["first"].dequantize(), theirs.state[q]["exp_avg"], rtol=0.13, atol=1e-4)
    assert torch.allclose(state["second"].dequantize().square(), theirs.state[q]["exp_avg_sq"], rtol=0.28, atol=1e-6)


def test_states_that_do_not_belong_to_the_parameter_are_refused() -> None:
    p = some(300)
    first, second = adamw_8bit_states(some(299))
    with pytest.raises(ValueError, match="first is e4m3 of"):
        rooftop.adamw_8bit(p, p, first, second, 1)
    with pytest.raises(TypeError, match="first is a Tensor"):
        rooftop.adamw_8bit(p, p, p, p, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step is 0"):
        rooftop.adamw_8bit(p, p, *adamw_8bit_states(p), 0)
    with pytest.raises(RuntimeError, match="requires a gradient"):
        rooftop.adamw_8bit(p.requires_grad_(), p.detach(), *adamw_8bit_states(p), 1)


def test_what_is_quantised_goes_through_torch_compile_whole() -> None:
    x, w = some(6, 64), some(64, seed=1)
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: rooftop.quantize(x, "int4", granularity="group", group=16),
        lambda x: rooftop.rms_norm_quantize(x, w, format="mxfp8"),
        lambda x: rooftop.quantize_both(x, "int8", group=16),
        lambda x: rooftop.quant.fake_quantize(x, "e4m3"),
    ]
    for call in calls:
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for got, want in zip(*(torch.utils._pytree.tree_leaves(f(x)) for f in (compiled, call)), strict=True):
            assert got is want is None or torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("format", ["int8", "e5m2", "mxfp6", "mxfp8", "nvfp4"])
def test_what_is_quantised_goes_through_a_safetensors_file(format: str, tmp_path: Path) -> None:
    q = rooftop.quantize(some(5, 48), format)
    save_file(q.tensors(), tmp_path / "q.safetensors", q.facts())
    found = Quantized.of(*load_file(tmp_path / "q.safetensors"))
    assert torch.equal(found.dequantize(), q.dequantize()) and found.scale.dtype == q.scale.dtype


def test_rows_of_no_columns() -> None:
    ways: list[dict[str, Any]] = [{}, {"group": 32}, {"format": "e4m3"}]
    for how in ways:
        for q in (rooftop.rms_norm_quantize(torch.ones(2, 3, 0), **how), rooftop.softmax_quantize(torch.ones(2, 3, 0), **how)):
            assert q.scale.numel() == 0 and q.dequantize().shape == (2, 3, 0)
