"""What quantising, codes, `Quantized` and the 8-bit optimizer refuse, and in which words."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rooftop
from rooftop.quant import FORMATS, AdamW8bit, Format, Quantized, adamw_8bit_states, decode, encode, format_of, pack, unpack

NAN, INF = float("nan"), float("inf")


def some(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("dim", "format"), [(-1, "int8"), (0, "int8"), (-1, "int4"), (1, "e4m3")])
def test_a_group_larger_than_the_dimension_is_the_dimension(dim: int, format: str) -> None:
    x = some(4, 6, 64)
    far, whole = (rooftop.quantize(x, format, granularity="group", group=g, dim=dim) for g in (10**9, x.shape[dim]))
    assert torch.equal(far.codes.view(torch.uint8), whole.codes.view(torch.uint8)) and torch.equal(far.scale, whole.scale)
    assert far.facts() == whole.facts() and torch.equal(far.dequantize(), whole.dequantize())


def test_a_block_larger_than_the_matrix_is_the_matrix() -> None:
    x = some(3, 5, 64)
    far, whole = (rooftop.quantize(x, granularity="block", block=b) for b in ((10**9, 10**9), (5, 64)))
    assert torch.equal(far.codes, whole.codes) and torch.equal(far.scale, whole.scale) and far.scale.shape == (3, 1, 1)


@pytest.mark.parametrize("block", [5, None, "ab", (4, 4.0)])
def test_a_block_that_is_not_two_numbers_is_refused(block: Any) -> None:
    with pytest.raises(TypeError, match=r"quantize: block is .* two whole numbers"):
        rooftop.quantize(some(4, 64), granularity="block", block=block)


PRODUCERS: tuple[Callable[..., Any], ...] = (
    lambda x, over: rooftop.quantize(x, "nvfp4", over=over),
    lambda x, over: rooftop.quantize_both(x, "nvfp4", over=over)[0],
    lambda x, over: rooftop.softmax_quantize(x, "nvfp4", over=over),
)


@pytest.mark.parametrize("make", PRODUCERS)
def test_the_scale_of_a_tensor_is_a_number_or_a_tensor(make: Callable[..., Any]) -> None:
    x = some(16, 32)
    a, b = make(x, 1e-3), make(x, torch.tensor(1e-3))
    assert torch.equal(a.codes, b.codes) and torch.equal(a.dequantize(), b.dequantize())
    for value in (0.0, -1.0, NAN, INF, 1e-60, 1e60):
        with pytest.raises(ValueError, match="it must be finite and above 0"):
            make(x, value)
        with pytest.raises(ValueError, match="it must be finite and above 0"):
            make(x, torch.tensor([value]))
    for wrong in ("1", True, [1.0]):
        with pytest.raises(TypeError, match="it must be a number or a tensor"):
            make(x, wrong)
    with pytest.raises(ValueError, match="it must be one float32 element"):
        make(x, torch.ones(1, dtype=torch.float64))


def test_only_nvfp4_takes_a_scale_of_the_tensor() -> None:
    for format in ("int8", "mxfp4"):
        with pytest.raises(ValueError, match="over is for nvfp4"):
            rooftop.quantize(some(4, 32), format, over=1.0)


BYTES = torch.tensor([0, 1, 2, 3], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pack(BYTES, 2), ValueError, "bits is 2; accepted are 4, 6, 8"), (lambda: pack(BYTES, 3), ValueError, "bits is 3"),
        (lambda: unpack(BYTES, 2, 16), ValueError, "bits is 2"), (lambda: unpack(BYTES, 3, 8), ValueError, "bits is 3"),
        (lambda: pack(BYTES + 14, 4), ValueError, "codes are 14 to 17; codes of 4 bits are 0 to 15"),
        (lambda: pack(torch.tensor([-1]), 6), ValueError, "codes are -1"), (lambda: pack(torch.tensor([300]), 8), ValueError, "300"),
        (lambda: pack(BYTES.float(), 4), TypeError, "tensor of integers"), (lambda: pack(BYTES.bool(), 4), TypeError, "torch.bool"),
        (lambda: pack(BYTES[0], 4), ValueError, "no dimensions"), (lambda: unpack(BYTES.int(), 4, 8), TypeError, "torch.int32"),
        (lambda: unpack(BYTES, 4, -1), ValueError, "count is -1"), (lambda: unpack(BYTES, 4, True), TypeError, "count is True"),
        (lambda: encode(some(4), "int5"), ValueError, "element is 'int5'; accepted are int8"),
        (lambda: encode(some(4).double(), "int8"), TypeError, "torch.float64"), (lambda: encode([1.0], "int8"), TypeError, "a list"),
        (lambda: encode(some(4), "int8", "up"), ValueError, "rounding is 'up'"),
        (lambda: encode(some(4), "int8", "stochastic"), ValueError, "takes 16 random bits"),
        (lambda: encode(some(4), "int8", "dither", some(4)), TypeError, "random is a tensor of torch.float32"),
        (lambda: encode(some(4), "e4m3", zero=1), ValueError, "zero is given for e4m3"), (lambda: encode(some(4), "int8", zero=0.5), TypeError, "a float"),
        (lambda: decode(BYTES, "fp9"), ValueError, "element is 'fp9'"), (lambda: decode(BYTES.float(), "int8"), TypeError, "torch.float32"),
        (lambda: decode(BYTES + 14, "int4"), ValueError, "codes of 4 bits"),
        (lambda: format_of(Format("int5", "int", 5, 15, -15, element="int5")), ValueError, "its name is 'int5'"),
        (lambda: rooftop.quantize(some(4, 8), Format("int5", "int", 5, 15, -15, element="int5")), ValueError, "its name is 'int5'"),
        (lambda: rooftop.quantize(some(4, 8), dataclasses.replace(FORMATS["int8"], max=100)), ValueError, "known name with other facts"),
    ],
)
def test_codes_and_formats_that_are_not_there_are_refused(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_codes_of_any_integer_dtype_are_packed_alike() -> None:
    assert torch.equal(pack(BYTES.long(), 4), pack(BYTES, 4)) and pack(BYTES.long(), 8).dtype == torch.uint8


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"codes": torch.zeros(48, 5, dtype=torch.int8)}, r"codes are \(48, 5\)"), ({"codes": torch.zeros(5, 48, dtype=torch.bool)}, "torch.bool"),
        ({"codes": torch.zeros(240, dtype=torch.int8)}, r"takes \(5, 48\)"), ({"codes": None}, "codes is a NoneType"),
        ({"scale": torch.ones(3, 5)}, r"scale has shape \(3, 5\)"), ({"scale": torch.ones(15)}, r"takes \(5, 3\)"),
        ({"scale": torch.ones(5, 3, dtype=torch.bool)}, "scale is torch.bool"), ({"shape": [5, 48]}, "shape is"), ({"shape": (5, 48.0)}, "shape is"),
        ({"split": (0, 1, 1)}, "split is"), ({"rows": "1"}, "rows is '1'"), ({"columns": True}, "columns is True"), ({"seed": 0.5}, "seed is 0.5"),
        ({"dtype": torch.float32}, "dtype is torch.float32"), ({"format": 8}, "format is 8"),
    ],
)
def test_a_quantized_that_does_not_fit_together_is_refused(change: dict[str, Any], match: str) -> None:
    q = rooftop.quantize(some(5, 48), granularity="group", group=16)
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(q, **change).verify()


@pytest.mark.parametrize("facts", ["{", "3", "[]", json.dumps({"format": "int8"})])
def test_facts_that_are_none_are_refused(facts: str) -> None:
    with pytest.raises(ValueError, match="facts"):
        Quantized.of(rooftop.quantize(some(5, 48)).tensors(), {"rooftop.quantized": facts})


@pytest.mark.parametrize("shape", [(5,), (1,), (1, 1), (4, 1, 6), (2, 3, 4, 5), (0, 4), (4, 0), (2, 3, 0)])
def test_what_quantize_gives_is_never_refused(shape: tuple[int, ...]) -> None:
    x = some(*shape)
    for granularity in ("tensor", "row", "column", "block", "group"):
        if granularity == "block" and len(shape) < 2:
            continue
        for dim in range(len(shape)) if granularity == "group" else (0,):
            for format in ("int8", "e4m3", "e2m3", "uint4"):
                for group in (1, 2, 100):
                    q = rooftop.quantize(x, format, granularity=granularity, group=group, dim=dim, block=(group, 3))
                    assert rooftop.dequantize(q).shape == x.shape
    for format in ("mxfp4", "nvfp4"):
        for dim in range(len(shape)):
            assert rooftop.quantize(x, format, dim=dim).dequantize().shape == x.shape


def test_two_quantized_can_be_compared() -> None:
    q = rooftop.quantize(some(5, 48))
    assert q == q and q != copy.deepcopy(q) and len({q, copy.copy(q)}) == 2


def step(p: torch.Tensor, g: torch.Tensor, **how: Any) -> None:
    first, second = adamw_8bit_states(p)
    rooftop.adamw_8bit(p, g, first, second, 1, **how)


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"betas": (0.9,)}, ValueError, "betas is"), ({"betas": (0.9, 0.99, 0.999)}, ValueError, "betas is"), ({"betas": 0.9}, ValueError, "betas is"),
        ({"betas": (0.9, 1.0)}, ValueError, "below 1"), ({"lr": NAN}, ValueError, "lr is nan"), ({"eps": NAN}, ValueError, "eps is nan"),
        ({"lr": INF}, ValueError, "lr is inf"), ({"weight_decay": NAN}, ValueError, "weight_decay is nan"), ({"eps": "1"}, TypeError, "eps is '1'"),
    ],
)
def test_numbers_of_adamw_out_of_range_are_refused(how: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        AdamW8bit([torch.nn.Parameter(some(8))], **how)
    with pytest.raises(error, match=match):
        step(some(8), some(8), **how)


def test_gradients_and_states_that_adamw_does_not_take_are_refused() -> None:
    with pytest.raises(TypeError, match="grad is a tensor in the layout sparse_coo; it must be a dense tensor"):
        step(some(4, 4), some(4, 4).to_sparse())
    p = some(300)
    first, second = adamw_8bit_states(p)
    for other in (first, copy.copy(first), dataclasses.replace(second, scale=first.scale)):
        with pytest.raises(ValueError, match="first and second are one state"):
            rooftop.adamw_8bit(p, some(300), first, other, 1)


@pytest.mark.parametrize("steps", [0, 1])
def test_the_state_of_torchs_adamw_is_refused(steps: int) -> None:
    p = torch.nn.Parameter(some(8))
    theirs = torch.optim.AdamW([p])
    for _ in range(steps):
        p.grad = some(8)
        theirs.step()
    mine = AdamW8bit([p])
    with pytest.raises(ValueError, match="that of an AdamW8bit"):
        mine.load_state_dict(theirs.state_dict())
    state = mine.state_dict()
    with pytest.raises(ValueError, match="first and second of an AdamW8bit"):
        mine.load_state_dict({**state, "state": {0: {"step": 1, "exp_avg": some(8), "exp_avg_sq": some(8)}}})
    mine.load_state_dict(state)


def test_a_value_that_rounds_past_its_dtype_is_infinite_and_a_scale_is_held() -> None:
    x = torch.full((1, 4), 65504.0, dtype=torch.float16)
    assert bool(rooftop.quantize(x, scale_dtype="bf16").dequantize().isinf().all())
    assert float(rooftop.quantize(torch.full((1, 4), 3e38), scale_dtype="f16").scale) == 65504.0
