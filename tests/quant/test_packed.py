"""Packed weights: where each bit lies, every code there and back, and what is refused."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

import rooftop
from rooftop.formats.number_formats import decode
from rooftop.formats.packed import WEIGHTS, PackedWeight, arrange, pack_codes, pack_weight, planes, rearranged
from rooftop.quant import Quantized, nearest

F32 = torch.float32


def codes(n: int, k: int, bits: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 1 << bits, (n, k), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@pytest.mark.parametrize("bits", [8, 6, 4, 2])
def test_each_bit_lies_where_the_description_says(bits: int) -> None:
    """By the formula of rooftop/formats/packed.py, one code at a time."""
    n, k = 32, 256
    c = codes(n, k, bits)
    packed = arrange(c, bits)
    assert packed.shape == (2, 2, 256 * bits)
    found = torch.zeros_like(c)
    at = low = 0
    for b in planes(bits):
        words = packed[..., at : at + 256 * b].contiguous().view(torch.int32).view(2, 2, b // 2, 32, 4)
        for row in range(0, n, 3):
            for column in range(k):
                s, r, g = row // 16, row // 8 % 2, row % 8
                block, chunk = column // 128, column % 128 // (256 // b)
                inside = column % (256 // b)
                step, h, t, second = inside // 16, inside // 8 % 2, inside // 2 % 4, inside % 2
                q = 4 * step + 2 * h + r
                word = int(words[s, block, chunk, 4 * g + t, q // (16 // b)]) & 0xFFFFFFFF
                found[row, column] |= ((word >> (b * (q % (16 // b)) + 16 * second)) & ((1 << b) - 1)) << low
        at, low = at + 256 * b, low + b
    assert torch.equal(found[::3], c[::3])


@pytest.mark.parametrize("bits", [8, 6, 4, 2])
@pytest.mark.parametrize("shape", [(1, 1), (16, 128), (37, 300), (5, 129)])
def test_codes_come_back(bits: int, shape: tuple[int, int]) -> None:
    c = codes(*shape, bits)
    assert torch.equal(rearranged(arrange(c, bits), bits, *shape), c)


@pytest.mark.parametrize("format", WEIGHTS)
def test_every_code_has_its_value(format: str) -> None:
    f = WEIGHTS[format]
    every = torch.arange(1 << f.bits, dtype=torch.uint8)
    want = decode(every, f.element) if f.exponent else every.to(F32) - (1 << (f.bits - 1))
    every = every[want.isfinite()]
    w = pack_codes(every.expand(3, -1).contiguous(), torch.tensor([1.0, 0.5, 2.0]), format=format)
    assert torch.equal(w.dequantize(F32), torch.tensor([[1.0], [0.5], [2.0]]) * want[want.isfinite()])


@pytest.mark.parametrize("format", ["int8", "uint8", "int4", "uint4", "e4m3", "e5m2", "e3m2", "e2m1", "mxfp8", "mxfp6", "mxfp4"])
@pytest.mark.parametrize("zero_points", [False, True])
def test_what_quantize_makes_keeps_its_values(format: str, zero_points: bool) -> None:
    if zero_points and "int" not in format:
        pytest.skip("floats have no zero points")
    x = torch.randn(37, 192, generator=torch.Generator().manual_seed(1)).bfloat16()
    for how in ({"granularity": "row"}, {"granularity": "group", "group": 64}):
        q = rooftop.quantize(x, format, symmetric=not zero_points, **({} if format.startswith("mx") else how))
        assert torch.equal(pack_weight(q).dequantize(F32), q.dequantize(F32))


def test_storage() -> None:
    w = pack_weight(rooftop.quantize(torch.randn(40, 256), "uint4", granularity="group", group=64, symmetric=False))
    file = io.BytesIO()
    torch.save(w, file)
    file.seek(0)
    leaves, tree = torch.utils._pytree.tree_flatten(w)
    for other in (torch.load(file, weights_only=True), PackedWeight.of(w.tensors(), w.facts()), torch.utils._pytree.tree_unflatten(leaves, tree), w.to("cpu")):
        assert isinstance(other, PackedWeight) and torch.equal(other.dequantize(), w.dequantize())
    assert w.nbytes == w.codes.numel() + w.scale.numel() * 4 + w.zero.numel()  # type: ignore[union-attr]


ONES = torch.ones(4, 2)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"group": 48}, ValueError, "group is 48"),
        ({"group": 96}, ValueError, "group is 96"),
        ({"scale": torch.ones(4, 3)}, ValueError, "group is 0"),
        ({"scale": torch.ones(4, 2) * float("nan")}, ValueError, "NaN or infinity"),
        ({"scale": torch.ones(4, 2) * float("inf")}, ValueError, "NaN or infinity"),
        ({"scale": torch.ones(5, 2)}, ValueError, r"scale is \(5, 2\)"),
        ({"scale": torch.ones(4, 2).double()}, TypeError, "float64"),
        ({"codes": torch.full((4, 128), 16, dtype=torch.uint8)}, ValueError, "0 to 15; given 16"),
        ({"codes": torch.ones(4, 128)}, TypeError, "float32"),
        ({"codes": torch.ones(128, dtype=torch.uint8)}, ValueError, r"must be \[N, K\]"),
        ({"zero": torch.full((4, 2), 16)}, ValueError, "0 to 15; given 16"),
        ({"zero": torch.full((4, 2), -1)}, ValueError, "0 to 15; given -1"),
        ({"zero": torch.full((4, 2), float("nan"))}, ValueError, "zero points of int4"),
        ({"zero": torch.ones(4, 3)}, ValueError, r"zero is \(4, 3\)"),
        ({"zero": ONES.half()}, TypeError, "float16"),
        ({"format": "int3"}, ValueError, "accepted are int8"),
        ({"format": "e2m1", "zero": ONES}, ValueError, "e2m1 has none"),
        ({"format": "e4m3", "codes": torch.full((4, 128), 0x7F, dtype=torch.uint8)}, ValueError, "hold NaN or infinity"),
        ({"format": "e5m2", "codes": torch.full((4, 128), 0xFC, dtype=torch.uint8)}, ValueError, "hold NaN or infinity"),
        ({"scale": ONES.to("meta")}, ValueError, "one device"),
        ({"zero": torch.ones(4, 2).reshape(2, 4)}, ValueError, r"zero is \(2, 4\); it must be as scale, \(4, 2\)"),
        ({"zero": 1}, TypeError, "zero is a int"),
        ({"zero": torch.ones(4, 2, dtype=torch.bool)}, TypeError, "torch.bool"),
        ({"scale": ONES.to(torch.float8_e8m0fnu), "zero": ONES.to(torch.float8_e8m0fnu)}, TypeError, "of an integer dtype$"),
        ({"codes": torch.ones(4, 128, dtype=torch.int8)}, TypeError, "codes are torch.int8; accepted for int4 is torch.uint8"),
        ({"codes": torch.ones(4, 128).to(torch.float8_e4m3fn)}, TypeError, "accepted for int4 is torch.uint8"),
        ({"format": "e5m2", "codes": torch.ones(4, 128).to(torch.float8_e4m3fn)}, TypeError, "accepted for e5m2 are torch.uint8 and torch.float8_e5m2"),
        ({"format": "fp8", "codes": torch.ones(4, 128).to(torch.float8_e4m3fnuz)}, TypeError, "accepted for e4m3 are"),
        ({"dtype": torch.int8}, TypeError, "dtype is torch.int8; accepted are None, torch.float32, torch.float16, torch.bfloat16"),
        ({"dtype": "float16"}, TypeError, "dtype is 'float16'"),
    ],
)
def test_bad_codes_are_refused(given: dict[str, Any], error: type[Exception], text: str) -> None:
    plain: dict[str, Any] = {"codes": codes(4, 128, 4), "scale": ONES, "zero": None, "format": "int4"}
    plain |= given
    with pytest.raises(error, match=text):
        pack_codes(plain.pop("codes"), plain.pop("scale"), plain.pop("zero"), **plain)


@pytest.mark.parametrize(("format", "kind"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_codes_in_torchs_own_dtype(format: str, kind: torch.dtype) -> None:
    given = torch.randn(4, 128).to(kind)
    assert torch.equal(pack_codes(given, ONES, format=format).dequantize(F32), given.float())


def test_scales_keep_to_the_range_of_their_dtype() -> None:
    x = torch.randn(32, 128, generator=torch.Generator().manual_seed(1))
    for kind in (torch.float16, torch.bfloat16, F32):
        assert pack_weight(rooftop.quantize(x, granularity="row"), scale_dtype=kind).scale.dtype == kind
    for factor, text in ((1e-9, "become 0 or infinite"), (1e9, r"torch.float16 holds 6.104e-05 to 6.55e\+04")):
        with pytest.raises(ValueError, match=text):
            pack_weight(rooftop.quantize(x * factor, granularity="row"), scale_dtype=torch.float16)
    for kind in (torch.float64, torch.int8, "float16"):
        with pytest.raises(TypeError, match=r"scale_dtype is .*; accepted are None, torch.float32, torch.float16, torch.bfloat16"):
            pack_weight(rooftop.quantize(x), scale_dtype=kind)
    q = rooftop.quantize(x, "mxfp8")
    assert torch.equal(pack_weight(q, scale_dtype=torch.bfloat16).dequantize(F32), q.dequantize(F32))
    bytes_ = Quantized.of({**q.tensors(), "scale": q.scale.view(torch.uint8)}, q.facts())
    assert torch.equal(pack_weight(bytes_).dequantize(F32), q.dequantize(F32))


def test_what_is_no_weight_is_refused() -> None:
    x = torch.randn(32, 128)
    for q, text in (
        (rooftop.quantize(x, "nvfp4"), "nvfp4"),
        (rooftop.quantize(x, granularity="column"), "shared by 32 rows and 1 columns"),
        (rooftop.quantize(x, granularity="block"), "shared by"),
        (rooftop.quantize(x, rounding="dither", subtract=True), "dither"),
        (rooftop.quantize(x.view(2, 16, 128)), "two dimensions"),
        (rooftop.quantize(x, granularity="group", group=24), "group is 24"),
    ):
        with pytest.raises(ValueError, match=text):
            pack_weight(q)
    with pytest.raises(TypeError, match="Quantized"):
        pack_weight(x)  # type: ignore[arg-type]
    w = pack_weight(rooftop.quantize(x))
    for change, text in ((w.codes[:1], "codes are"), (w.codes.to(torch.int16), "int16"), (w.codes[..., :-1], "codes are")):
        with pytest.raises(ValueError, match=text):
            PackedWeight.of({**w.tensors(), "codes": change}, w.facts())
    with pytest.raises(ValueError, match="scale is"):
        PackedWeight.of({**w.tensors(), "scale": w.scale[:, :, :8]}, w.facts())
    with pytest.raises(ValueError, match="lack scale"):
        PackedWeight.of({"codes": w.codes}, w.facts())
    for facts in ("{}", "[1]", "no"):
        with pytest.raises(ValueError, match="facts of a packed weight"):
            PackedWeight.of(w.tensors(), facts)


def test_the_product() -> None:
    x, weight, bias = torch.randn(3, 5, 128), torch.randn(40, 128), torch.randn(40)
    w = pack_weight(rooftop.quantize(weight, "int4", granularity="group", group=32))
    x.requires_grad_(True)
    bias.requires_grad_(True)
    out = rooftop.quantized_matmul(x, w, bias)
    assert torch.allclose(out, torch.nn.functional.linear(x, w.dequantize(F32), bias), atol=1e-5)
    out.sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, w.dequantize(F32).sum(0).expand_as(x), atol=1e-4)
    assert bias.grad is not None and torch.allclose(bias.grad, torch.full((40,), 15.0))
    assert rooftop.quantized_matmul(x[0, :0], w).shape == (0, 40)
    assert rooftop.quantized_matmul(x[0, 0], w).shape == (40,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("format", "group", "zero"), [("int4", 32, False), ("int4", 0, False), ("int2", 32, True), ("fp4", 32, False), ("fp8", 0, False)])
@pytest.mark.parametrize("activations", ["int8", "fp8"])
def test_activations_of_eight_bits_with_a_packed_weight(activations: str, format: str, group: int, zero: bool, dtype: torch.dtype) -> None:
    """The product of the values that the codes stand for: those of x fit 16 bits exactly, so nothing but the sum is rounded."""
    g = torch.Generator().manual_seed(7)
    x, bias = torch.randn(2, 3, 96, generator=g).to(dtype), torch.randn(40, generator=g).to(dtype)
    w = nearest(torch.randn(40, 96, generator=g), format, group=group, zero_points=zero)
    rows = rooftop.quantize(x.reshape(-1, 96), activations, granularity="row")
    values = rows.codes.double() * rows.scale.double().reshape(-1, 1)
    want = (values @ w.dequantize(torch.float32).double().t() + bias.double()).reshape(2, 3, 40)
    torch.testing.assert_close(rooftop.quantized_matmul(x, w, bias, activations=activations), want.to(dtype), rtol=2.0**-7 if dtype != torch.float32 else 1e-5,
                               atol=1e-4)
    assert rooftop.quantized_matmul(x[:, :0], w, activations=activations).shape == (2, 0, 40)
    moved = bias.clone().requires_grad_()
    rooftop.quantized_matmul(x, w, moved, activations=activations).sum().backward()
    assert moved.grad is not None and bool((moved.grad == 6).all())


@pytest.mark.parametrize("activations", ["int8", "fp8"])
def test_the_product_of_eight_bits_on_both_sides(activations: str) -> None:
    x, weight, bias = torch.randn(2, 7, 96), torch.randn(40, 96), torch.randn(40)
    q = rooftop.quantize(weight, activations, granularity="row")
    out = rooftop.quantized_matmul(x, q, bias, activations=activations)
    rows = rooftop.quantize(x.reshape(-1, 96), activations, granularity="row").dequantize()
    assert torch.allclose(out.view(-1, 40), rows @ q.dequantize().t() + bias, atol=1e-3)
    assert rooftop.quantized_matmul(x[:, :0], q, activations=activations).shape == (2, 0, 40)


def test_bad_products_are_refused() -> None:
    x, weight = torch.randn(4, 128), torch.randn(40, 128)
    q = rooftop.quantize(weight)
    w = pack_weight(q)
    call = rooftop.quantized_matmul
    for error, text, run in (
        (TypeError, "must be a tensor", lambda: call(None, w)),
        (TypeError, "accepted are", lambda: call(x.double(), w)),
        (TypeError, "PackedWeight", lambda: call(x, weight)),
        (TypeError, "PackedWeight", lambda: call(x, q)),
        (TypeError, "PackedWeight .* or a Quantized", lambda: call(x, weight, activations="int8")),
        (ValueError, "activations is 'int4'", lambda: call(x, q, activations="int4")),
        (ValueError, "takes a symmetric e4m3", lambda: call(x, q, activations="fp8")),
        (ValueError, "takes a symmetric int8", lambda: call(x, rooftop.quantize(weight, granularity="tensor"), activations="int8")),
        (ValueError, r"must be \[..., 128\]", lambda: call(x[:, :64], w)),
        (ValueError, r"bias is \(3,\)", lambda: call(x, w, torch.zeros(3))),
        (TypeError, "bias is torch.float16", lambda: call(x, w, torch.zeros(40).half())),
        (ValueError, "one device", lambda: call(x.to("meta"), w)),
        (ValueError, "packed weights", lambda: call(x, q, activations="int8", implementation="triton")),
    ):
        with pytest.raises(error, match=text):
            run()
    assert isinstance(q, Quantized)
