"""The codec `ratio` on the CPU: each chunk is refined level by level, a value predicted by cubic interpolation of those that are known, the differences quantised
and coded by rANS. Slower than `fast` and several times smaller on smooth fields.

    level s = 32, 16, ..., 1 (strides), then the dimensions Z, Y, X: along one dimension the values at odd multiples of s are predicted from those at even ones,
    p = (9 (b + c) - (a + d)) / 16 of the four neighbours at -3s, -s, s, 3s;  (b + c) / 2 where one of the outer two is missing;  b where c is
    k = rint((x - p) / step),  r = p + k step in the array's type;  step = 2 e, e = eb / min(1.5^level, 4): coarse values are predicted from, so they are kept nearer

All of it in float64, one IEEE operation at a time. |x - r| < eb is verified for every value; the others, and NaN, infinities, -0.0 and denormals, are stored
exactly. What is predicted from is r, as the decoder has it. Sources: Zhao et al. 2021 (SZ3, arXiv 2105.12730), Liu et al. 2022 (QoZ, the coarse levels' bounds),
Liu et al. 2024 (cuSZ-i, arXiv 2312.05492)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rooftop.codecs import rans
from rooftop.codecs.blocks import _put
from rooftop.codecs.container import FormatError, Header
from rooftop.codecs.elements import Element, to_floats

LARGEST = 64  # stride of the values that nothing is predicted from
STREAM = 65536  # symbols of a stream
BATCH = 1 << 20


def _levels(shape: tuple[int, int, int]) -> Iterator[tuple[int, int, int, tuple[slice, slice, slice]]]:
    """(level, stride, axis, the values predicted), coarse before fine."""
    for level in range(LARGEST.bit_length() - 2, -1, -1):
        s = 1 << level
        for axis in range(3):
            if shape[axis] <= s:
                continue
            box = [slice(0, None, s if other < axis else 2 * s) for other in range(3)]
            box[axis] = slice(s, None, 2 * s)
            yield level, s, axis, (box[0], box[1], box[2])


def _predicted(r: np.ndarray, s: int, axis: int, box: tuple[slice, slice, slice]) -> np.ndarray:
    """From the known values of `r` [z, y, x], at `box`."""
    n = r.shape[axis]
    count = len(range(s, n, 2 * s))
    known = list(box)
    known[axis] = slice(0, None, 2 * s)
    k = np.moveaxis(r[tuple(known)], axis, 0)  # known values at 0, 2s, 4s, ...: b is number i, c number i + 1
    m = len(k)
    p = k[:count].copy()
    both = min(count, m - 1)
    with np.errstate(all="ignore"):
        p[:both] = (k[:both] + k[1 : both + 1]) * 0.5
        if m >= 4:
            inner = slice(1, m - 2)
            p[inner] = ((k[1 : m - 2] + k[2 : m - 1]) * 9.0 - (k[: m - 3] + k[3:])) * 0.0625
    p = np.where(np.isfinite(p), p, 0.0)
    return np.moveaxis(p, 0, axis)


def _rounded(v: np.ndarray, e: Element) -> np.ndarray:
    with np.errstate(all="ignore"):
        return v.astype(e.numpy)


def _anchors(shape: tuple[int, int, int]) -> tuple[slice, slice, slice]:
    return (slice(0, None, LARGEST),) * 3


def _step(eb: float, level: int) -> float:
    return 2.0 * (eb / min(1.5**level, 4.0))


def _plain(bits: np.ndarray, e: Element) -> np.ndarray:
    """+0 and normal, finite numbers."""
    size = bits & e.bits.type((1 << (8 * e.bytes - 1)) - 1)
    with np.errstate(all="ignore"):
        return ((size >= e.bits.type(e.normal)) | (bits == 0)) & np.isfinite(to_floats(bits, e))


def encode_chunk(bits: np.ndarray, h: Header) -> np.ndarray:
    """The words of one chunk [z, y, x]."""
    e, shape = h.element, bits.shape
    x = to_floats(bits, e)
    plain = _plain(bits, e)
    r = np.where(plain, x, 0.0)  # only what is known already is read
    symbols, exact = [], [bits[_anchors(shape)].reshape(-1)]
    with np.errstate(all="ignore"):
        for level, s, axis, box in _levels(shape):
            p, step, v = _predicted(r, s, axis, box), _step(h.eb, level), x[box]
            k = np.rint((v - p) / step)
            stored = _rounded(p + k * step, e)
            got = stored.astype(np.float64)
            good = plain[box] & (np.abs(v - got) < h.eb) & (np.abs(k) <= 127) & _plain(stored.view(e.bits), e)
            r[box] = np.where(good, got, np.where(plain[box], v, p))
            symbols.append(np.where(good, k + 128, 0).astype(np.uint8).reshape(-1))
            exact.append(bits[box][~good])
    coded = np.concatenate(symbols) if symbols else np.empty(0, np.uint8)
    values = np.concatenate(exact)
    words = _coded(coded, values)
    if len(words) >= 1 + -(-bits.nbytes // 4):
        words = np.zeros(1 + -(-bits.nbytes // 4), np.uint32)
        _put(words, 1, np.ascontiguousarray(bits).reshape(-1))
    return words


def _coded(symbols: np.ndarray, values: np.ndarray) -> np.ndarray:
    """1, table, streams, exact values."""
    counts = np.bincount(symbols, minlength=256)
    used = np.flatnonzero(counts)
    low, high = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
    f = rans.normalised(counts)
    streams = -(-len(symbols) // STREAM)
    steps = -(-min(len(symbols), STREAM) // rans.LANES)
    padded = np.zeros((streams, steps * rans.LANES), np.uint8)
    padded.reshape(-1)[: len(symbols)] = symbols
    active = (np.arange(padded.size) < len(symbols)).reshape(streams, steps, rans.LANES)
    states, halves, off = rans.encode(padded.reshape(streams, steps, rans.LANES), active, f) if streams else (
        np.empty((0, 32), np.uint32), np.empty(0, np.uint16), np.empty(0, np.int64)
    )  # fmt: skip
    parts = [np.array([1 | low << 8 | high << 16, len(values)], np.uint32), f[low : high + 1], off.astype(np.uint32), states.reshape(-1), halves, values]
    out = np.zeros(sum(-(-p.nbytes // 4) for p in parts), np.uint32)
    at = 0
    for part in parts:
        _put(out, at, part)
        at += -(-part.nbytes // 4)
    return out


def decode_chunk(words: np.ndarray, shape: tuple[int, int, int], h: Header, chunk: int) -> np.ndarray:
    """The bits [z, y, x]. Raises FormatError where the chunk is damaged."""
    e, n = h.element, int(np.prod(shape))

    def refuse(bad: Any, what: str) -> None:
        if bad:
            raise FormatError(f"damaged chunk {chunk}: {what}")

    if words[0] == 0:
        refuse(len(words) != 1 + -(-n * e.bytes // 4), "its length is not that of its values")
        return words[1:].view(np.uint8)[: n * e.bytes].view(e.bits).reshape(shape).copy()
    anchors = int(np.prod([-(-m // LARGEST) for m in shape]))
    total = n - anchors
    streams, steps = -(-total // STREAM), -(-min(total, STREAM) // rans.LANES)
    low, high = int(words[0]) >> 8 & 0xFF, int(words[0]) >> 16 & 0xFF
    refuse(int(words[0]) & 0xFF0000FF != 1 or high < low, "it is neither coded nor raw")
    table_words = (high - low + 2) // 2
    refuse(len(words) < 2 + table_words + 33 * streams, "it is too short")
    f = np.zeros(256, np.uint16)
    f[low : high + 1] = words[2 : 2 + table_words].view(np.uint16)[: high - low + 1]
    refuse(int(f.sum(dtype=np.int64)) != (rans.TOTAL if total else 0), "its frequencies do not add up to 4096")
    at = 2 + table_words
    off = words[at : at + streams].astype(np.int64)
    at += streams
    states = words[at : at + 32 * streams].reshape(streams, 32)
    at += 32 * streams
    halves, exact = -(-int(off.sum()) // 2), int(words[1])
    refuse(len(words) != at + halves + -(-exact * e.bytes // 4) or exact < anchors, "its length is not that of its streams")
    active = (np.arange(streams * steps * rans.LANES) < total).reshape(streams, steps, rans.LANES)
    try:
        found = rans.decode(states, words[at : at + halves].view(np.uint16)[: int(off.sum())], off, steps, active, f) if streams else np.empty(0, np.uint8)
    except rans.Damaged as error:
        raise FormatError(f"damaged chunk {chunk}: {error}") from None
    symbols = found.reshape(-1)[:total]
    refuse(exact != anchors + int((symbols == 0).sum()), "it has another number of exact values than it marks")
    values = words[at + halves :].view(np.uint8)[: exact * e.bytes].view(e.bits)
    out, r = np.zeros(shape, e.bits), np.zeros(shape)
    out[_anchors(shape)] = values[:anchors].reshape([-(-m // LARGEST) for m in shape])
    first = out[_anchors(shape)]
    with np.errstate(all="ignore"):
        r[_anchors(shape)] = np.where(_plain(first, e), to_floats(first, e), 0.0)
        at, used = 0, anchors
        for level, s, axis, box in _levels(shape):
            p = _predicted(r, s, axis, box)
            code = symbols[at : at + p.size].reshape(p.shape)
            at += p.size
            stored = _rounded(p + (code.astype(np.float64) - 128.0) * _step(h.eb, level), e).view(e.bits)
            bad = code == 0
            if count := int(bad.sum()):
                stored[bad] = values[used : used + count]
                used += count
            got = to_floats(stored, e)
            r[box] = np.where(bad & ~_plain(stored, e), p, got)
            out[box] = stored
    return out
