"""Codes of every format: exhaustively against an independent definition, and what stochastic rounding promises."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

import rooftop
from rooftop.formats import random_bits
from rooftop.formats.number_formats import ELEMENTS, load_scale, store_scale
from rooftop.quant import FORMATS, decode, encode, pack, unpack

FLOATS = [f for f in ELEMENTS.values() if f.exponent]


def slow_value(code: int, name: str) -> float:
    """The value of a code, from the words of the standards alone."""
    f = ELEMENTS[name]
    if not f.exponent:
        return float((code - 2**f.bits if f.signed and code >= 2 ** (f.bits - 1) else code) - f.zero)
    sign = -1.0 if code >> (f.bits - 1) else 1.0
    e, m = code >> f.mantissa & (2**f.exponent - 1), code & (2**f.mantissa - 1)
    if f.name == "e4m3" and e == 15 and m == 7:
        return math.nan
    if f.name == "e5m2" and e == 31:
        return math.nan if m else sign * math.inf
    return sign * (m * 2.0 ** (1 - f.bias - f.mantissa) if e == 0 else (1 + m / 2**f.mantissa) * 2.0 ** (e - f.bias))


@cache
def finite(name: str) -> dict[int, float]:
    """Codes of finite values, of ints those of the symmetric range."""
    f = ELEMENTS[name]
    values = {c: slow_value(c, name) for c in range(2**f.bits)}
    return {c: v for c, v in values.items() if math.isfinite(v) and (f.exponent or abs(v) <= f.max)}


@cache
def ordered(name: str) -> list[float]:
    return sorted(set(finite(name).values()))


def slow_nearest(v: float, name: str) -> int:
    """The code nearest to v by exact comparison of distances; of two the one whose value is an even multiple."""
    f, codes = ELEMENTS[name], finite(name)
    if math.isnan(v):
        return 0x7F if f.nan else (f.zero if not f.exponent else 0)
    if math.isinf(v) and f.inf:
        return 0x7C if v > 0 else 0xFC
    held = max(-f.max, min(f.max, v))
    negative = math.copysign(1, v) < 0
    grid = ordered(name)
    at = bisect_left(grid, held)
    around = set(grid[max(0, at - 1) : at + 2])
    near = min(abs(Fraction(held) - Fraction(x)) for x in around)
    found = [c for c, x in codes.items() if x in around and abs(Fraction(held) - Fraction(x)) == near]
    if f.exponent:  # both zeros are as near: the sign decides
        found = [c for c in found if (c >> (f.bits - 1) == 1) == negative]
        return found[0] if len(found) == 1 else next(c for c in found if c % 2 == 0)
    return found[0] if len(found) == 1 else next(c for c in found if codes[c] % 2 == 0)


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_code_has_the_value_of_the_standard_and_comes_back(name: str) -> None:
    f = ELEMENTS[name]
    codes = torch.arange(2**f.bits, dtype=torch.uint8)
    got = decode(codes, name).tolist()
    for c, v in enumerate(got):
        want = slow_value(c, name)
        assert (math.isnan(v) and math.isnan(want)) or (v == want and math.copysign(1, v) == math.copysign(1, want)), (name, c, v, want)
    kept = torch.tensor(sorted(finite(name)), dtype=torch.uint8)
    for rounding in ("nearest", "zero", "stochastic"):
        for bits in (0, 1, 32768, 65535):
            assert torch.equal(encode(decode(kept, name), name, rounding, torch.full(kept.shape, bits)), kept), (name, rounding, bits)


def wanted(v: torch.Tensor, name: str, rounding: str, random: int) -> torch.Tensor:
    """Codes of float64 values by their place between the values of the standard alone: no bits, no scaling."""
    f, codes = ELEMENTS[name], finite(name)
    sizes = sorted({abs(x) for x in codes.values()})
    grid = torch.tensor(sizes, dtype=torch.float64)
    size = v.abs().clamp(max=f.max).nan_to_num(0.0)
    low = (torch.searchsorted(grid, size, right=True) - 1).clamp(max=len(sizes) - 2)
    part = (size - grid[low]) / (grid[low + 1] - grid[low])  # exact: the gap is a power of two
    negative = v.signbit()
    if rounding == "nearest":
        up = (part > 0.5) | ((part == 0.5) & (low % 2 == 1))
    elif rounding == "zero":
        up = part == 1
    elif f.exponent:
        subnormal = size < f.normal
        fine = torch.where(subnormal, (part * 2.0 ** (23 - f.mantissa)).round() / 2.0 ** (23 - f.mantissa), part)
        up = torch.floor(fine * 65536 + 0.5) + random >= 65536
    else:  # of ints towards plus infinity
        steps = (part * 65536).round()
        up = torch.where(negative, 65536 - steps + random < 65536, steps + random >= 65536)
        up = torch.where(negative & (steps == 0), False, up)
    at = low + up
    signed = torch.full((2, len(sizes)), -1, dtype=torch.int64)
    for code, x in codes.items():
        signed[int(math.copysign(1, x) < 0), sizes.index(abs(x))] = code
    if not f.exponent:
        signed[1, 0] = f.zero
    found = signed[negative.long(), at]
    if f.inf:
        found = torch.where(v.isinf(), torch.where(negative, 0xFC, 0x7C), found)
    return torch.where(v.isnan(), 0x7F if f.nan else 0 if f.exponent else f.zero, found).to(torch.uint8)


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_bfloat16_over_every_kind_of_scale_has_the_code_that_its_place_says(name: str) -> None:
    """All 65536 inputs, over scales that put them at every place of the format, by every rounding."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    for scale in (1.0, 3.0, 1 / 3, 0.0123, 2.0**-100, 1.7e30):
        v = every / scale
        for rounding, random in (("nearest", 0), ("zero", 0), ("stochastic", 0), ("stochastic", 1), ("stochastic", 40000), ("stochastic", 65535)):
            got = encode(v, name, rounding, torch.full((65536,), random))
            want = wanted(v.double(), name, rounding, random)
            wrong = (got != want).nonzero().flatten().tolist()
            assert not wrong, (name, scale, rounding, random, len(wrong), [(float(v[i]), int(got[i]), int(want[i])) for i in wrong[:3]])
    near = torch.randperm(65536, generator=torch.Generator().manual_seed(0))[:300]  # the definition in exact fractions agrees
    assert wanted(every[near].double(), name, "nearest", 0).tolist() == [slow_nearest(float(x), name) for x in every[near].tolist()]


@pytest.mark.parametrize("name", ELEMENTS)
def test_ties_go_to_the_even_code_and_zero_cuts_off(name: str) -> None:
    values = sorted(set(finite(name).values()))
    for a, b in pairwise(values):
        tie = (a + b) / 2
        v = torch.tensor([tie, math.nextafter(tie, -math.inf), math.nextafter(tie, math.inf)], dtype=torch.float64).float()
        near = decode(encode(v[:1], name), name).item()
        assert near in (a, b) and int(encode(v[:1], name).item()) == slow_nearest(float(v[0]), name)
        inner = a if a >= 0 else b
        assert decode(encode(v[:1], name, "zero"), name).item() == inner


@pytest.mark.parametrize("name", ELEMENTS)
def test_stochastic_rounding_takes_only_the_two_neighbours_with_the_probability_of_the_fraction(name: str) -> None:
    f = ELEMENTS[name]
    values = sorted(set(finite(name).values()))
    draws = 1 << 16
    random = random_bits.halves(1234, 4 * draws)
    assert 32500 < float(random.float().mean()) < 33000
    chi = 0.0
    pairs = [(values[i], values[i + 1]) for i in (0, len(values) // 2, len(values) // 2 + 1, len(values) - 2)]
    for k, ((a, b), fraction) in enumerate(zip(pairs, (0.25, 0.7, 1 / 3, 0.03125), strict=True)):
        v = torch.tensor(a + (b - a) * fraction, dtype=torch.float64).float()
        up = (float(v) - a) / (b - a)
        got = decode(encode(v.expand(draws), name, "stochastic", random[k * draws : (k + 1) * draws]), name)
        assert set(got.unique().tolist()) <= {a, b}, (name, a, b, got.unique())
        n = int((got == b).sum())
        chi += (n - draws * up) ** 2 / (draws * up * (1 - up))
        assert abs(float(got.double().mean()) - float(v)) < 5 * (b - a) * math.sqrt(up * (1 - up) / draws)
    assert chi < 23.5, f"{name}: chi-square of 4 fractions {chi:.1f}; 23.5 has a probability of 1e-4"
    every = torch.full((f.bits,), float(f.max))
    assert (decode(encode(every, name, "stochastic", torch.full((f.bits,), 65535)), name) == f.max).all()


def test_stochastic_rounding_of_every_random_number_is_exact() -> None:
    """All 65536 random numbers: up exactly as often as the fraction says, to its 16 bits."""
    for name in ELEMENTS:
        for fraction in (0.0, 1 / 65536, 0.5, 0.75, 65535 / 65536):
            v = torch.tensor(1.0 + fraction * (0.125 if name == "e4m3" else 1.0)) if name in ("e4m3", "int8", "int4") else None
            if v is not None:
                got = encode(v.expand(65536), name, "stochastic", torch.arange(65536))
                assert int((got != encode(torch.tensor([1.0]), name)[0]).sum()) == round(fraction * 65536), (name, fraction)


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7, 8, 31, 64])
def test_packing_is_the_string_of_bits_that_the_text_says(bits: int, n: int) -> None:
    codes = torch.randint(0, 2**bits, (3, n), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))
    packed = pack(codes, bits)
    assert packed.shape == (3, -(-n * bits // 8)) and torch.equal(unpack(packed, bits, n), codes)
    for row in range(3):
        string = sum(int(c) << (bits * i) for i, c in enumerate(codes[row].tolist()))
        assert bytes(packed[row].tolist()) == string.to_bytes(packed.shape[1], "little")


def test_packing_refuses_bytes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="7 codes of 4 bits take 4"):
        unpack(torch.zeros(2, 5, dtype=torch.uint8), 4, 7)


def test_fp8_is_torchs_fp8() -> None:
    g = torch.Generator().manual_seed(0)
    v = torch.randn(200_000, generator=g) * torch.exp2(torch.randint(-20, 12, (200_000,), generator=g).float())
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        most = ELEMENTS[name].max
        assert torch.equal(encode(v, name), v.clamp(-most, most).to(dtype).view(torch.uint8))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "e8m0", "e4m3"])
def test_scales_are_never_zero_infinite_or_nan(kind: str) -> None:
    s = torch.tensor([0.0, 1e-45, 1e-38, 2.0**-14, 0.3, 1.0, 3.0, 448.0, 1e6, 3e38])
    got = load_scale(store_scale(s, kind), kind)
    assert bool((got.isfinite() & (got > 0)).all())
    assert bool((got[4:7] >= s[4:7] * 0.93).all() and (got[4:7] < s[4:7] * 2).all())
    if kind == "e8m0":
        assert bool((got[1:] >= s[1:].clamp(2.0**-127, 2.0**127)).all() and (got.log2() == got.log2().round()).all())


@pytest.mark.parametrize("size", [1e-3, 3e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("given", [{}, {"group": 32}, {"symmetric": False, "group": 32}, {"granularity": "column"}], ids=str)
@pytest.mark.parametrize("element", ["int8", "int4"])
def test_small_values_keep_their_codes_under_scales_of_float16(element: str, given: dict[str, Any], size: float) -> None:
    """Below 2^-14 such a scale is subnormal and rounded up: no value saturates, and none is further off than half a step."""
    x = (torch.randn(64, 128, generator=torch.Generator().manual_seed(0)) * size).half()
    q = rooftop.quantize(x, element, scale_dtype="f16", **given)
    wanted = rooftop.quantize(x, element, **given)  # float32 scales
    assert bool((q.scale.float() >= wanted.scale * 0.999).all() and (q.scale.float() <= wanted.scale * 1.001 + 2.0**-24).all())
    steps = (q.dequantize().double() - x.double()).abs() / q.scale.double().max()
    assert float(steps.max()) <= 0.51


def test_the_table_of_formats_says_what_its_codes_say() -> None:
    for name, f in FORMATS.items():
        values = finite(f.element)
        assert max(values.values()) == f.max and min(values.values()) == f.min, name
        assert min(v for v in values.values() if v > 0) == f.smallest
        if f.exponent:
            assert 2.0**f.top <= f.max < 2.0 ** (f.top + 1)
