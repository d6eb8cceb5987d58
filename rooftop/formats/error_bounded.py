"""Values to whole numbers and back, defined to the bit: every operation is one IEEE operation, rounded to nearest, none fused with another.

Floats (float64 in float64, all others in float32):

    E = the largest number of the arithmetic's type that is <= eb, at most 2^126 (2^1022);  step = 2 E;  inverse = 1 / step
    k = rint(x * inverse);  back(k) = the element type's number nearest to k * step;  where |x - back(k)| > E: k moves by 1 towards x
    stored as k where |x - back(k)| <= E, |k| < 2^30 (2^62) and x is +0 or a normal number; else x is an exception, stored as it is

The comparison is exact. The difference is rounded, but rounding is monotone: where it comes out below E, the true one is below E. Where it
comes out as E it is exact by Sterbenz' lemma, as x and back(k) then lie within a factor of two of each other; |k| = 1 alone is on the edge,
and k = 1 is not taken there.

Integers: E = floor(eb), step = 2 E + 1, k = floor((x + E) / step), back(k) = k * step held within the type's range: always within E."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rooftop.formats.elements import Element, to_floats


@dataclass(frozen=True)
class Step:
    """The numbers of the arithmetic for one bound."""

    e: Any
    step: Any
    inverse: Any
    limit: Any
    code: Any  # the signed type of k


def step_of(eb: float, e: Element) -> Step:
    """Of a float type."""
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        if e.wide:
            bound = np.float64(min(eb, 2.0**1022))
            return Step(bound, bound * 2, np.float64(1) / (bound * 2), np.float64(2.0**62), np.int64)
        held = np.float32(min(eb, 2.0**126))
        if float(held) > eb:
            held = np.nextafter(held, np.float32(0))
        return Step(held, held * np.float32(2), np.float32(1) / (held * np.float32(2)), np.float32(2.0**30), np.int32)


def back(k: np.ndarray, s: Step, e: Element) -> np.ndarray:
    """The value that a float k stands for, in the arithmetic's type."""
    product = k * s.step
    if e.name in ("f64", "f32"):
        return product
    return product.astype(e.numpy).astype(np.float32)


def quantize(bits: np.ndarray, eb: float, e: Element) -> tuple[np.ndarray, np.ndarray]:
    """The codes k, as unsigned numbers of 32 or 64 bits, and where exceptions are. There k is 0."""
    if e.kind != "float":
        return _quantize_integers(bits, eb, e), np.zeros(bits.shape, bool)
    s = step_of(eb, e)
    x = to_floats(bits, e, e.wide)
    with np.errstate(all="ignore"):
        k = np.rint(x * s.inverse)
        d = x - back(k, s, e)
        if (far := np.abs(d) > s.e).any():
            k = np.where(far, k + np.copysign(np.ones_like(d), d), k)
            d = np.where(far, x - back(k, s, e), d)
        size, steps = np.abs(d), np.abs(k)
        size_bits = bits & e.bits.type((1 << (8 * e.bytes - 1)) - 1)
        good = ((size < s.e) | ((size == s.e) & (steps != 1))) & (steps < s.limit) & ((size_bits >= e.bits.type(e.normal)) | (bits == 0))
        codes = np.where(good, k, 0).astype(s.code)
    return codes.view(np.uint64 if e.wide else np.uint32), ~good


def dequantize(codes: np.ndarray, eb: float, e: Element) -> np.ndarray:
    """The bits of back(k)."""
    if e.kind != "float":
        return _dequantise_integers(codes, eb, e)
    s = step_of(eb, e)
    with np.errstate(all="ignore"):
        k = codes.view(s.code).astype(np.float64 if e.wide else np.float32)
        found: np.ndarray = (k * s.step).astype(e.numpy, copy=False).view(e.bits)
    return found


def wide_codes(bits: np.ndarray, e: Element) -> np.ndarray:
    """Integers' bits as signed or unsigned numbers of 32 or 64 bits, held as unsigned ones: sign extended where the type is signed."""
    signed = bits.view(f"<i{e.bytes}") if e.kind == "int" else bits
    return signed.astype(np.int64 if e.wide else np.int32).view(np.uint64 if e.wide else np.uint32)


def _integer_step(eb: float, e: Element) -> int:
    return 2 * min(int(eb), (1 << (8 * e.bytes - 2)) - 1) + 1


def _numbers(bits: np.ndarray, e: Element) -> np.ndarray:
    """i64; of u64 less 2^63, so that order is kept."""
    if e.name == "u64":
        return (bits ^ np.uint64(1 << 63)).view(np.int64)
    return (bits.view(f"<i{e.bytes}") if e.kind == "int" else bits).astype(np.int64)


def _range(e: Element) -> tuple[int, int]:
    n = 8 * e.bytes
    return (0, (1 << n) - 1) if e.kind == "uint" and n < 64 else (-(1 << (n - 1)), (1 << (n - 1)) - 1)


def _quantize_integers(bits: np.ndarray, eb: float, e: Element) -> np.ndarray:
    step = _integer_step(eb, e)
    x = _numbers(bits, e)
    k, rest = np.divmod(x, step)
    k += rest > step // 2
    return k.view(np.uint64) if e.wide else k.astype(np.int32).view(np.uint32) if e.bytes < 4 else (k & 0xFFFFFFFF).astype(np.uint32)


def _dequantise_integers(codes: np.ndarray, eb: float, e: Element) -> np.ndarray:
    step, (least, most) = _integer_step(eb, e), _range(e)
    k = codes.view(np.int64) if e.wide else codes.astype(np.int64) if e.name == "u32" else codes.view(np.int32).astype(np.int64)
    inside = np.clip(k, -(-least // step), most // step)
    with np.errstate(over="ignore"):
        x = np.where(k > most // step, most, np.where(k < -(-least // step), least, inside * step))
    return (x.view(np.uint64) ^ np.uint64(1 << 63)) if e.name == "u64" else x.astype(np.uint64).astype(e.bits)


def ordered(bits: np.ndarray, e: Element) -> np.ndarray:
    """Bits of floats as whole numbers in the order of the floats, of 32 or 64 bits; integers as they are. For lossless differences."""
    if e.kind != "float":
        return wide_codes(bits, e)
    top = e.bits.type(1 << (8 * e.bytes - 1))
    keyed = np.where(bits & top, ~bits, bits | top)
    return keyed.astype(np.uint64 if e.wide else np.uint32)


def unordered(codes: np.ndarray, e: Element) -> np.ndarray:
    """The bits that `ordered` came from."""
    bits = codes.astype(e.bits)
    if e.kind != "float":
        return bits
    top = e.bits.type(1 << (8 * e.bytes - 1))
    return np.where(bits & top, bits ^ top, ~bits)
