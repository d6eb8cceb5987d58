"""What `rooftop.quantize` returns: sizes, storage, gradients, errors."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
import torch

import rooftop
from rooftop.quant import FORMATS, Quantized, fake_quantize

GRAINS = ("tensor", "row", "column", "group", "block")


def some(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("granularity", GRAINS)
def test_values_come_back_within_half_a_step(format: str, granularity: str) -> None:
    f = FORMATS[format]
    if f.group and granularity != "group":
        with pytest.raises(ValueError, match="has groups of"):
            rooftop.quantize(some(4, 64), format, granularity=granularity)
        return
    x = some(3, 21, 70, dtype=torch.float32)
    q = rooftop.quantize(x, format, granularity=granularity, group=32, block=(8, 40))
    y = q.dequantize()
    assert y.shape == x.shape and y.dtype == x.dtype
    step = 0.5 / f.max if not f.exponent else 2.0 ** -(f.mantissa + 1)
    saturates = 2.0 if f.kind == "mx" else 1.0
    assert float((x - y).abs().max()) <= saturates * float(x.abs().max()) * step * 1.01


def test_shapes_and_dtypes() -> None:
    x = some(6, 10, 64)
    assert rooftop.quantize(x).codes.dtype == torch.int8 and rooftop.quantize(x).scale.shape == (6, 10)
    assert rooftop.quantize(x, "fp8", granularity="tensor").scale.shape == ()
    assert rooftop.quantize(x, "mxfp8").scale.dtype == torch.float8_e8m0fnu
    q = rooftop.quantize(x, "int4", granularity="group", group=4, dim=1)
    assert q.codes.shape == (6, 10, 32) and q.scale.shape == (6, 3, 64)
    q = rooftop.quantize(x, "fp6_e3m2", granularity="block", block=(4, 32))
    assert q.codes.shape == (6, 10, 48) and q.scale.shape == (6, 3, 2)
    q = rooftop.quantize(x, "uint8", symmetric=False, granularity="column")
    assert q.zero is not None and q.zero.shape == (64,) and q.zero.dtype == torch.uint8


@pytest.mark.parametrize("format", ["int8", "uint4", "e4m3", "mxfp6", "nvfp4"])
def test_storage_round_trips(format: str) -> None:
    q = rooftop.quantize(some(5, 48), format, symmetric=format != "uint4")
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    leaves, tree = torch.utils._pytree.tree_flatten(q)
    for other in (torch.load(file, weights_only=True), Quantized.of(q.tensors(), q.facts()), torch.utils._pytree.tree_unflatten(leaves, tree)):
        assert isinstance(other, Quantized) and torch.equal(other.dequantize(), q.dequantize())


def test_wrong_buffers_are_refused() -> None:
    q = rooftop.quantize(some(5, 48), "int4")
    with pytest.raises(ValueError, match="takes 5 rows of 24 bytes"):
        Quantized.of({**q.tensors(), "codes": q.codes[:, :-1]}, q.facts())
    with pytest.raises(ValueError, match="scale has 4 elements"):
        Quantized.of({**q.tensors(), "scale": q.scale[:-1]}, q.facts())
    with pytest.raises(TypeError, match="must be a rooftop"):
        rooftop.dequantize(q.codes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("format", "change", "error"),
    [
        ("int8", {"scale": torch.ones(5, dtype=torch.float64)}, "scale is torch.float64; f32"), ("int8", {"scale_dtype": "f64"}, "scale_dtype is 'f64'"),
        ("mxfp8", {"scale_dtype": "f32"}, "accepted for mxfp8_e4m3 are e8m0"), ("int8", {"dtype": "float64"}, "dtype is 'float64'"),
        ("int8", {"rows": 0}, "rows 0"), ("int8", {"split": (2, 1)}, r"split \(2, 1\)"), ("nvfp4", {"over": None}, "nvfp4 has one"),
        ("nvfp4", {"over": torch.ones(2)}, "it must have one"), ("int8", {"over": torch.ones(1)}, "other formats none"),
        ("e4m3", {"zero": torch.zeros(5, dtype=torch.uint8)}, "zero points are"), ("int8", {"zero": torch.zeros(5)}, "zero is torch.float32"),
        ("int8", {"codes": torch.zeros(5, 48, dtype=torch.int8, device="meta")}, "on one device"), ("int8", {"codes": torch.zeros(5, 48)}, "codes are"),
        ("int8", {"shape": (5, 47)}, "takes 5 rows of 47 bytes"), ("e9m9", {}, "format is 'e9m9'"),
    ],
)
def test_what_does_not_fit_together_is_refused(format: str, change: dict[str, object], error: str) -> None:
    q = rooftop.quantize(some(5, 48), "int8" if format == "e9m9" else format)
    with pytest.raises(ValueError, match=error):
        rooftop.dequantize(dataclasses.replace(q, **({"format": format} if format == "e9m9" else change)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"format": "int3"}, "format is 'int3'"), ({"granularity": "rows"}, "granularity is 'rows'"), ({"rounding": "up"}, "rounding is 'up'"),
        ({"format": "fp8", "symmetric": False}, "no zero points"), ({"scale_dtype": "f64"}, "scale_dtype"),
        ({"granularity": "group", "group": 0}, "group is 0"), ({"granularity": "block", "block": (0, 4)}, "a block is"), ({"subtract": True}, "subtract=True"),
        ({"format": "mxfp4", "scale_dtype": "f32"}, "scales of e8m0"), ({"over": torch.ones(1)}, "over is for nvfp4"),
    ],
)
def test_bad_arguments_are_refused(how: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        rooftop.quantize(some(4, 8), **how)  # type: ignore[arg-type]


def test_stochastic_rounding_is_unbiased_over_seeds_and_keeps_its_seed() -> None:
    x = some(64, 64, dtype=torch.float32)
    draws = [rooftop.quantize(x, "int4", rounding="stochastic", seed=s).dequantize().double() for s in range(200)]
    assert torch.equal(draws[3], rooftop.quantize(x, "int4", rounding="stochastic", seed=3).dequantize().double())
    step = x.abs().amax(1, keepdim=True).double() / 7
    error = (torch.stack(draws).mean(0) - x.double()) / step  # of 4096 elements, each with a deviation of at most 0.5 / sqrt(200)
    assert float(error.abs().max()) < 0.2 and abs(float(error.mean())) < 5 * 0.5 / (200 * 4096) ** 0.5


def test_a_dither_that_is_taken_off_leaves_an_error_that_does_not_depend_on_the_value() -> None:
    x = torch.full((1, 4096), 0.3)
    x[0, 0] = 127.0  # a step of one
    for subtract, spread in ((True, 1 / 12), (False, 0.21)):
        error = (rooftop.quantize(x, "int8", rounding="dither", seed=5, subtract=subtract).dequantize() - x)[0, 1:].double()
        assert abs(float(error.mean())) < 0.03 and abs(float(error.var()) - spread) < 0.01


@pytest.mark.parametrize("format", ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"])
def test_of_floats_the_noise_is_that_of_the_gap(format: str) -> None:
    f = FORMATS[format]
    for code, sign in ((f.normal * 1.3, 1), (f.smallest * 0.3, -1), (f.max * 0.8, -1)):  # the second is subnormal
        x = torch.full((1, 4096), code * sign)
        x[0, 0] = f.max  # a scale of one
        gap = max(2.0 ** math.floor(math.log2(code)), f.normal) / 2**f.mantissa
        for subtract, spread in ((True, 1 / 12), (False, None)):
            q = rooftop.quantize(x, format, rounding="dither", seed=5, subtract=subtract)
            error = ((q.dequantize() - x)[0, 1:].double() / gap).abs() if spread is None else (q.dequantize() - x)[0, 1:].double() / gap
            assert spread is None or (abs(float(error.mean())) < 0.03 and abs(float(error.var()) - spread) < 0.01)
            assert float(error.abs().max()) <= (0.5001 if subtract else 1)
            assert torch.equal(q.codes.view(torch.uint8), rooftop.quantize(x, format, rounding="stochastic", seed=5).codes.view(torch.uint8))


def test_gradients_pass_straight_through() -> None:
    x = some(5, 48, dtype=torch.float32).requires_grad_()
    y = fake_quantize(x, "e2m1", granularity="group", group=16)
    assert torch.equal(y, rooftop.quantize(x, "e2m1", granularity="group", group=16).dequantize()) and not torch.equal(y, x)
    dy = some(5, 48, dtype=torch.float32)
    y.backward(dy)
    assert x.grad is not None and torch.equal(x.grad, dy)


def test_neither_nan_nor_infinity_has_a_say_in_the_scale() -> None:
    x = some(4, 64, dtype=torch.float32)
    y = x.clone()
    y[1, 5], y[2, 6], y[3, 7] = float("nan"), float("inf"), -float("inf")
    kept = x.clone()
    kept[1, 5] = kept[2, 6] = kept[3, 7] = 0
    for format in ("int8", "e4m3", "e5m2", "int4"):
        a, b = rooftop.quantize(y, format), rooftop.quantize(kept, format)
        assert torch.equal(a.scale, b.scale)
        d = a.dequantize()
        assert bool(d[1, 5].isnan()) == FORMATS[format].nan and (d[2, 6] > 0) and (d[3, 7] < 0) and bool(d[2, 6].isinf()) == FORMATS[format].inf


def test_nvfp4_without_a_scale_of_the_tensor_takes_that_of_its_largest_finite_element() -> None:
    """In two passes: `tensor_scale`, then the codes with it."""
    x = torch.randn(5, 96)
    x[1, 3], x[2, 7], x[4, 9], x[0, 0] = float("nan"), float("inf"), float("-inf"), -9.5
    for t in (x, x.bfloat16(), x.t(), x[:, 3:67]):
        found = rooftop.quantize(t, "nvfp4")
        largest = t.float()[t.isfinite()].abs().amax()
        assert torch.equal(found.over, (largest / 2688.0).reshape(1)) and torch.equal(found.over, rooftop.tensor_scale(t))
        again = rooftop.quantize(t, "nvfp4", over=rooftop.tensor_scale(t))
        assert torch.equal(found.codes, again.codes) and torch.equal(found.scale.view(torch.uint8), again.scale.view(torch.uint8))
    for t in (torch.zeros(3, 16), torch.full((2, 16), float("nan")), torch.zeros(0, 16)):
        assert rooftop.quantize(t, "nvfp4").over.item() == 2.0**-126
    assert rooftop.tensor_scale(torch.tensor([-3.0, 2.0]), 1.5).item() == 2.0
    for wrong, error in ((0, ValueError), (float("inf"), ValueError), ("6", TypeError), (float("nan"), ValueError)):
        with pytest.raises(error, match="tensor_scale: largest"):
            rooftop.tensor_scale(x, wrong)
    with pytest.raises(TypeError, match=r"tensor_scale: x is torch\.int32"):
        rooftop.tensor_scale(x.int())
