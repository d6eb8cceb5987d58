"""The codec `planes` on the CPU: of each value the 8 bits that have most to tell (of floats the exponent) are coded by rANS, the rest is
kept as it is.

docs/codecs.md has a chunk word by word. The CUDA C++ kernels `compress_planes` and `decompress_planes` write and read the same bits."""

from __future__ import annotations

import numpy as np

from rooftop.formats import rans
from rooftop.formats.array_chunks import Part, parts
from rooftop.formats.codec_fast import _put, _runs
from rooftop.formats.container import SYMBOLS, FormatError, Header
from rooftop.formats.elements import Element

STEPS = SYMBOLS // rans.LANES
BATCH = 1 << 21  # values at a time
SHIFTS = {"f64": 52, "f32": 23, "f16": 7, "bf16": 7, "f8e4m3": 0, "f8e5m2": 0}


def shift(e: Element) -> int:
    """The lowest of the 8 bits that are coded: of floats the exponent's (its lowest 8, or with mantissa bits below it), of integers the
    highest byte."""
    return SHIFTS.get(e.name, 8 * (e.bytes - 1))


def rest_planes(e: Element) -> tuple[tuple[int, int], ...]:
    """The kept bits as (lowest bit, bytes) of each plane: 1 byte, 2 + 1 or 4 + 2 + 1."""
    return {1: (), 2: ((0, 1),), 4: ((0, 2), (16, 1)), 8: ((0, 4), (32, 2), (48, 1))}[e.bytes]


def _symbols(bits: np.ndarray, e: Element) -> np.ndarray:
    return (bits >> e.bits.type(shift(e))).astype(np.uint8)


def _rest(bits: np.ndarray, e: Element) -> np.ndarray:
    s = e.bits.type(shift(e))
    low = bits & e.bits.type((1 << int(s)) - 1)
    return low if int(s) + 8 == 8 * e.bytes else low | bits >> (s + e.bits.type(8)) << s


def _whole(symbols: np.ndarray, rest: np.ndarray, e: Element) -> np.ndarray:
    s = shift(e)
    low = rest & e.bits.type((1 << s) - 1)
    found = low | symbols.astype(e.bits) << e.bits.type(s)
    return found if s + 8 == 8 * e.bytes else found | rest >> e.bits.type(s) << e.bits.type(s + 8)


def _steps(values: np.ndarray) -> np.ndarray:
    """[n, 8192] in the order of values -> [n, step, lane]: lane l of steps 4 g to 4 g + 3 has values 128 g + 4 l and the three that
    follow."""
    return values.reshape(len(values), -1, rans.LANES, 4).swapaxes(2, 3).reshape(len(values), STEPS, rans.LANES)


def _values(steps: np.ndarray) -> np.ndarray:
    return steps.reshape(len(steps), -1, 4, rans.LANES).swapaxes(2, 3).reshape(len(steps), SYMBOLS)


def table(grid: np.ndarray, h: Header) -> bytes:
    """The frequencies of the whole array's symbols: the codec's parameters."""
    counts = np.zeros(256, np.int64)
    flat = grid.reshape(-1)
    for i in range(0, len(flat), 1 << 24):
        counts += np.bincount(_symbols(flat[i : i + (1 << 24)], h.element), minlength=256)
    return rans.normalised(counts).astype("<u2").tobytes()


def frequencies_of(parameters: bytes, h: Header) -> np.ndarray:
    """Raises FormatError for a table that is none."""
    if len(parameters) != 512:
        raise FormatError(f"damaged parameters: {len(parameters)} bytes; 'planes' has a table of 512")
    f = np.frombuffer(parameters, "<u2")
    if int(f.sum(dtype=np.int64)) != (rans.TOTAL if h.numel else 0):
        raise FormatError(f"damaged parameters: the frequencies add up to {int(f.sum(dtype=np.int64))}, not {rans.TOTAL}")
    return f


def encode(bits: np.ndarray, part: Part, h: Header, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The words of the chunks `bits` [n, 8192], and how many words each has."""
    e, n, valid, counts = h.element, len(bits), part.valid(), part.counts()
    active = None if valid is None else _steps(valid)
    states, words16, off = rans.encode(_steps(_symbols(bits, e)), active, frequencies)
    plane_words = [-(-counts * size // 4) for _, size in rest_planes(e)]
    sizes = 33 + (off + 1) // 2 + sum(plane_words, np.zeros(n, np.int64))
    raw_sizes = 1 + -(-counts * e.bytes // 4)
    raw = sizes >= raw_sizes
    sizes = np.where(raw, raw_sizes, sizes)
    starts = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), np.uint32)
    coded = np.flatnonzero(~raw)
    out[starts[coded]] = 1 | off[coded].astype(np.uint32) << 8
    out[starts[coded][:, None] + np.arange(1, 33)] = states[coded]
    ends = np.cumsum(off)
    at = starts + 33
    halves = out.view(np.uint16)
    keep = np.repeat(~raw, off)
    halves[_runs(2 * at[coded], off[coded])] = words16[keep]
    at = at + (off + 1) // 2
    rest = _rest(bits, e)
    for (low, size), more in zip(rest_planes(e), plane_words, strict=True):
        plane = (rest >> e.bits.type(low)).astype(f"<u{size}")
        held = out.view(plane.dtype)
        taken = plane[coded] if valid is None else plane[coded][valid[coded]]
        held[_runs(at[coded] * (4 // size), counts[coded])] = taken.reshape(-1)
        at = at + more
    for c in np.flatnonzero(raw):
        _put(out, int(starts[c]) + 1, bits[c] if valid is None else bits[c][valid[c]])
    assert len(ends) == n
    return out, sizes.astype(np.uint32)


def least_words(counts: np.ndarray, h: Header) -> np.ndarray:
    """Of a coded chunk of so many values: the front, the states, and what is not entropy coded."""
    return 33 + sum((-(-counts * size // 4) for _, size in rest_planes(h.element)), np.zeros(len(counts), np.int64))


def decode(words: np.ndarray, starts: np.ndarray, part: Part, h: Header, frequencies: np.ndarray) -> np.ndarray:
    """The bits [n, 8192] of chunks. Raises FormatError where one is damaged."""
    e, n, valid, counts = h.element, part.last - part.first, part.valid(), part.counts()
    out = np.zeros((n, SYMBOLS), e.bits)
    lengths, front = np.diff(starts), words[starts[:-1]]

    def refuse(bad: np.ndarray, chunks: np.ndarray, what: str) -> None:
        if bad.any():
            raise FormatError(f"damaged chunk {part.first + int(chunks[np.flatnonzero(bad)[0]])}: {what}")

    raw = np.flatnonzero(front == 0)
    refuse(lengths[raw] != 1 + -(-counts[raw] * e.bytes // 4), raw, "its length is not that of its values")
    for c in raw:
        held, size = words[starts[c] + 1 : starts[c + 1]].view(np.uint8), int(counts[c]) * e.bytes
        refuse(np.array([held[size:].any()]), np.array([c]), "what fills up its last word is not 0")
        out[c, slice(None) if valid is None else valid[c]] = held[:size].view(e.bits)
    coded = np.flatnonzero(front)
    if not len(coded):
        return out
    off = (front[coded] >> 8).astype(np.int64)
    refuse(front[coded] & 0xFF != 1, coded, "it is neither coded nor raw")
    plane_words = [-(-counts[coded] * size // 4) for _, size in rest_planes(e)]
    refuse(
        lengths[coded] != 33 + (off + 1) // 2 + sum(plane_words, np.zeros(len(coded), np.int64)), coded,
        "its length is not that of its planes"
    )
    states = words[starts[coded][:, None] + np.arange(1, 33)]
    at = starts[coded] + 33
    halves = words.view(np.uint16)
    odd = off % 2 == 1
    refuse(odd & (halves[np.where(odd, 2 * at + off, 0)] != 0), coded, "what fills up its words is not 0")
    active = None if valid is None else _steps(valid[coded])
    try:
        symbols = _values(rans.decode(states, halves[_runs(2 * at, off)], off, STEPS, active, frequencies))
    except rans.Damaged as error:
        raise FormatError(f"damaged chunk {part.first + int(coded[error.stream])}: {error}") from None
    at = at + (off + 1) // 2
    rest = np.zeros(symbols.shape, e.bits)
    for (low, size), more in zip(rest_planes(e), plane_words, strict=True):
        held = words.view(f"<u{size}")
        plane = held[_runs(at * (4 // size), counts[coded])].astype(e.bits) << e.bits.type(low)
        if valid is None:
            rest |= plane.reshape(rest.shape)
        else:
            rest[valid[coded]] |= plane
        at = at + more
    out[coded] = _whole(symbols, rest, e)
    return out


__all__ = ["BATCH", "decode", "encode", "frequencies_of", "parts", "table"]
