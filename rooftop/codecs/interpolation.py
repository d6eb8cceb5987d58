"""The codec `ratio` on the CPU: each chunk is refined level by level, a value predicted by cubic interpolation of those that are known, the differences
quantised and coded by rANS. Slower than `fast`, and smaller on smooth fields.

    level s = 32, 16, ..., 1 (strides): the values at odd multiples of s along one dimension, then along two, then along three, are predicted from those known,
    p = (9 (b + c) - (a + d)) / 16 of the four neighbours at -3s, -s, s, 3s;  (b + c) / 2 where one of the outer two is missing;  b + (b - a) / 2 where c is;
    the mean of that along each of the dimensions in which they are odd
    at the three finest levels, where it pays: p + sum_j w_j (r_j - p) of up to 24 known neighbours around, for each set of odd dimensions its own weights w,
    fitted to the chunk by least squares and stored as float16; near the chunk's faces, where a neighbour is missing, p alone
    k = rint((x - p) / step),  r = p + k step in the array's type;  step = 2 e, e = eb / min(1.5^level, 4):
    coarse values are predicted from, so they are kept nearer

All of it in float64, one IEEE operation at a time. |x - r| < eb is verified for every value; the others, and NaN, infinities, -0.0 and denormals, are stored
exactly. What is predicted from is r, as the decoder has it. Sources: Zhao et al. 2021 (SZ3, arXiv 2105.12730), Liu et al. 2022 (QoZ: the coarse levels),
Liu et al. 2024 (HPEZ, means over dimensions), Liu et al. 2024 (cuSZ-i, arXiv 2312.05492)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from rooftop.codecs import causal, rans
from rooftop.codecs.blocks import _put
from rooftop.codecs.container import FormatError, Header
from rooftop.codecs.elements import to_floats
from rooftop.codecs.symbols import (
    EXACT,
    FARTHEST,
    LAST,
    entropy_of,
    from_symbols,
    low_counts,
    pack_low,
    plain_values,
    rounded,
    to_symbols,
    unpack_low,
)  # fmt: skip

LARGEST = 64  # stride of the values that nothing is predicted from
STREAM = 65536  # symbols of a stream
BATCH = 1 << 23  # values at a time
AXES = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
FITTED, REACH, TAPS = 3, 3, 24  # finest levels that weights are fitted for; strides to the farthest neighbour along a dimension; neighbours at most

ENOUGH = 0.7  # bits a value

Sets = dict[tuple[int, tuple[int, ...]], np.ndarray]  # weights of (level, axes)
Made = tuple[np.ndarray, np.ndarray, np.ndarray, Sets | np.ndarray]  # symbols, bits that follow them, exact values; weights, or what causal.py stores


def _levels(shape: tuple[int, int, int]) -> Iterator[tuple[int, int, tuple[int, ...], tuple[slice, slice, slice]]]:
    """(level, stride, the axes along which the values are odd, the values), coarse before fine, few axes before many."""
    for level in range(LARGEST.bit_length() - 2, -1, -1):
        s = 1 << level
        for axes in AXES:
            if all(shape[axis] > s for axis in axes):
                box = [slice(s if axis in axes else 0, None, 2 * s) for axis in range(3)]
                yield level, s, axes, (box[0], box[1], box[2])


def _along(r: np.ndarray, s: int, axis: int, box: tuple[slice, slice, slice]) -> np.ndarray:
    """From the known values of `r` [z, y, x] along one axis, at `box`."""
    count = len(range(s, r.shape[axis], 2 * s))
    known = list(box)
    known[axis] = slice(0, None, 2 * s)
    k = np.moveaxis(r[tuple(known)], axis, 0)  # known values at 0, 2s, 4s, ...: b is number i, c number i + 1
    m = len(k)
    p = k[:count].copy()
    both = min(count, m - 1)
    p[:both] = (k[:both] + k[1 : both + 1]) * 0.5
    if m >= 4:
        p[1 : m - 2] = ((k[1 : m - 2] + k[2 : m - 1]) * 9.0 - (k[: m - 3] + k[3:])) * 0.0625
    if count == m >= 2:
        p[m - 1] = k[m - 1] + (k[m - 1] - k[m - 2]) * 0.5
    return np.moveaxis(p, 0, axis)


def _predicted(r: np.ndarray, s: int, axes: tuple[int, ...], box: tuple[slice, slice, slice]) -> np.ndarray:
    """The mean of what the axes predict; 0 where it is not finite."""
    with np.errstate(all="ignore"):
        p = _along(r, s, axes[0], box)
        for axis in axes[1:]:
            p = p + _along(r, s, axis, box)
        p = p * (1.0 / len(axes))
    return np.where(np.isfinite(p), p, 0.0)


@cache
def _neighbours(axes: tuple[int, ...], long: tuple[bool, ...]) -> tuple[tuple[int, int, int], ...]:
    """Offsets, in strides, of the nearest values known when those odd along `axes` are predicted; only along dimensions that are `long`."""
    order = {(): -1, **{a: i for i, a in enumerate(AXES)}}
    found = []
    for d in product(*(range(-REACH, REACH + 1) if far else (0,) for far in long)):
        odd = tuple(axis for axis in range(3) if (axis in axes) != (d[axis] % 2 == 1))
        if order[odd] < order[axes]:
            found.append((sum(map(abs, d)), d))
    return tuple((d[0], d[1], d[2]) for _, d in sorted(found)[:TAPS])


def _inside(
    shape: tuple[int, ...], s: int, axes: tuple[int, ...]
) -> tuple[tuple[tuple[int, int, int], ...], tuple[slice, slice, slice], list[tuple[slice, slice, slice]]] | None:
    """The neighbours, the values that have all of them (as a part of their box), and where each neighbour of these lies; None where there are none."""
    offsets = _neighbours(axes, tuple(n > 2 * (REACH + 1) * s for n in shape))
    inner, first, count = [], [], []
    for axis, n in enumerate(shape):
        start = s if axis in axes else 0
        low = max(0, -min((d[axis] for d in offsets), default=0)) * s
        high = max(0, max((d[axis] for d in offsets), default=0)) * s
        a = max(0, -(-(low - start) // (2 * s)))
        b = (n - 1 - high - start) // (2 * s) + 1
        if not offsets or b <= a:
            return None
        inner.append(slice(a, b))
        first.append(start + 2 * s * a)
        count.append(b - a)
    places = [tuple(slice(f + o * s, f + o * s + 2 * s * (c - 1) + 1, 2 * s) for f, o, c in zip(first, d, count, strict=True)) for d in offsets]
    return offsets, (inner[0], inner[1], inner[2]), places  # type: ignore[return-value]


def _refined(r: np.ndarray, p: np.ndarray, s: int, axes: tuple[int, ...], weights: np.ndarray) -> np.ndarray:
    """`p`, moved towards the neighbours by their weights."""
    found = _inside(r.shape, s, axes)
    if found is None:
        return p
    _, inner, places = found
    base = p[inner]
    q = base.copy()
    with np.errstate(all="ignore"):
        for place, w in zip(places, weights.astype(np.float64), strict=False):
            q += (r[place] - base) * w
    p = p.copy()
    p[inner] = np.where(np.isfinite(q), q, base)
    return p


def _fit(r: np.ndarray, p: np.ndarray, v: np.ndarray, s: int, axes: tuple[int, ...], eb: float) -> np.ndarray | None:
    """Weights by least squares, float16; None where they would not save their own bits."""
    found = _inside(r.shape, s, axes)
    if found is None:
        return None
    offsets, inner, places = found
    base, want = p[inner], v[inner]
    with np.errstate(all="ignore"):
        target = (want - base).reshape(-1)
        m = np.stack([(r[place] - base).reshape(-1) for place in places], 1)
        good = np.isfinite(target) & np.isfinite(m).all(1)
        target, m = target[good], m[good]
        if len(target) < 64 * len(offsets) or not len(target):
            return None
        scale = float(np.abs(target).max())
        if not 0 < scale < 1e150 or float(np.abs(m).max(initial=0)) > 1e150:
            return None
        gram = np.einsum("ij,ik->jk", m, m)  # not by BLAS, whose threads cost more than they save
        gram[np.diag_indices(len(gram))] += 1e-9 * np.trace(gram) / len(gram) + len(target) * eb * eb / 3000
        try:
            weights = np.linalg.solve(gram, np.einsum("ij,i->j", m, target))
        except np.linalg.LinAlgError:
            return None
        half = weights.astype(np.float16)
        if not np.isfinite(half).all():
            return None
        before = float(np.abs(target).mean())
        after = float(np.abs(target - np.einsum("ij,j->i", m, half.astype(np.float64))).mean())
    saved = len(target) * np.log2((before + 0.5 * eb) / (after + 0.5 * eb))
    return half if saved > 16 * len(half) + 64 else None


def _anchors() -> tuple[slice, slice, slice]:
    return (slice(0, None, LARGEST),) * 3


def _step(eb: float, level: int) -> float:
    return 2.0 * (eb / min(1.5**level, 4.0))


def _groups(shape: tuple[int, int, int]) -> list[int]:
    """Where groups of symbols end that have frequencies of their own: those of coarse levels, those of level 1, each set of level 0."""
    ends, at = [0, 0], 0
    for level, _, _, box in _levels(shape):
        at += prod(len(range(*b.indices(n))) for b, n in zip(box, shape, strict=True))
        if level == 0:
            ends.append(at)
        else:
            ends[1] = at
            ends[0] = at if level > 1 else ends[0]
    return sorted({end for end in ends if end})


def _table(counts: np.ndarray, range_: bool) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies [256], and as they are stored: from the lowest symbol to the highest, with these two before them where `range_`."""
    used = np.flatnonzero(counts)
    low, high = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
    f = rans.normalised(counts)
    return f, np.concatenate((np.array([low | high << 8] if range_ else [], np.uint16), f[low : high + 1]))


def _cut(ends: list[int]) -> list[tuple[int, int, int]]:
    """(group, begin, end) of the streams: of at most STREAM symbols of one group each."""
    return [(g, i, min(i + STREAM, end)) for g, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)) for i in range(begin, end, STREAM)]


def encode(chunks: list[np.ndarray], h: Header) -> list[np.ndarray]:
    """The words of chunks [z, y, x]."""
    made = _smaller(chunks, h)
    cuts, tables, stored, apart = [], [], [], []
    for bits, (symbols, _, _, sets) in zip(chunks, made, strict=True):
        ends = _groups((bits.shape[0], bits.shape[1], bits.shape[2])) if isinstance(sets, dict) else [len(symbols)]
        one = _table(np.bincount(symbols, minlength=256), False)
        each = [np.bincount(symbols[i:j], minlength=256) for i, j in zip([0, *ends], ends, strict=False)]
        several = [_table(c, True) for c in each]
        saved = entropy_of(np.bincount(symbols, minlength=256)) - sum(map(entropy_of, each)) - 16 * (sum(len(t) for _, t in several) - len(one[1]))
        apart.append(len(ends) > 1 and saved > 33 * 32 * (len(_cut(ends)) - len(_cut([len(symbols)]))))
        cuts.append(_cut(ends if apart[-1] else [len(symbols)]))
        mine = several if apart[-1] else [one]
        tables += [mine[g][0] for g, *_ in cuts[-1]]
        stored.append(np.concatenate([t for _, t in mine]))
    steps = max((-(-(end - begin) // rans.LANES) for cut in cuts for _, begin, end in cut), default=0)
    shape = (len(tables), steps, rans.LANES)
    padded, active = np.zeros((len(tables), steps * rans.LANES), np.uint8), np.zeros((len(tables), steps * rans.LANES), bool)
    at = 0
    for (symbols, *_), cut in zip(made, cuts, strict=True):
        for _, begin, end in cut:
            padded[at, : end - begin], active[at, : end - begin] = symbols[begin:end], True
            at += 1
    states, halves, off = rans.encode(padded.reshape(shape), active.reshape(shape), np.array(tables, np.uint16).reshape(-1, 256))
    ends_of = np.concatenate((np.zeros(1, np.int64), np.cumsum(off)))
    found, at = [], 0
    for i, (bits, (symbols, packed, exact, sets)) in enumerate(zip(chunks, made, strict=True)):
        mine_at = slice(at, at + len(cuts[i]))
        at += len(cuts[i])
        used = np.flatnonzero(np.bincount(symbols, minlength=256))
        low, high = (int(used[0]), int(used[-1])) if len(used) and not apart[i] else (0, 0)
        how = 8 if not isinstance(sets, dict) else 2 if sets else 0
        front = np.array([1 | how | (4 if apart[i] else 0) | low << 8 | high << 16, len(exact), len(packed)], np.uint32)
        coded = halves[ends_of[mine_at.start] : ends_of[at]]
        parts = [front, *_stored(sets), stored[i], off[mine_at].astype(np.uint32), states[mine_at].reshape(-1), coded, packed, exact]
        if sum(-(-p.nbytes // 4) for p in parts) >= 1 + -(-bits.nbytes // 4):
            parts = [np.zeros(1, np.uint32), np.ascontiguousarray(bits).reshape(-1)]
        found.append(_joined(parts))
    return found


def _stored(sets: Sets | np.ndarray) -> list[np.ndarray]:
    """Which sets have weights, bit 7 level + place among AXES, and the weights; of the causal predictor all that it stores."""
    if not isinstance(sets, dict):
        return [sets]
    if not sets:
        return []
    mask = sum(1 << (7 * level + AXES.index(axes)) for level, axes in sets)
    order = sorted(sets, key=lambda one: 7 * one[0] + AXES.index(one[1]))
    return [np.array([mask], np.uint32), np.concatenate([sets[one] for one in order])]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Each from a whole word on."""
    out = np.zeros(sum(-(-p.nbytes // 4) for p in parts), np.uint32)
    at = 0
    for part in parts:
        _put(out, at, part)
        at += -(-part.nbytes // 4)
    return out


def _smaller(chunks: list[np.ndarray], h: Header) -> list[Made]:
    """Each by the predictor that makes it smaller; where interpolation needs hardly a bit a value, by that."""
    made: list[Made] = [_interpolated(bits, h) for bits in chunks]
    alike: dict[tuple[int, ...], list[int]] = {}
    for i, bits in enumerate(chunks):
        if _bits(made[i]) > ENOUGH * bits.size:
            alike.setdefault(bits.shape, []).append(i)
    for mine in alike.values():
        other = causal.encode([chunks[i] for i in mine], h.eb, h.element)
        for i, one in zip(mine, other or [], strict=False):
            made[i] = min(made[i], one, key=_bits)
    return made


def _bits(one: Made) -> float:
    symbols, packed, exact, sets = one
    return entropy_of(np.bincount(symbols, minlength=256)) + 8 * (packed.nbytes + exact.nbytes + sum(part.nbytes for part in _stored(sets)))


def _interpolated(bits: np.ndarray, h: Header) -> Made:
    """Symbols, the bits that follow them, exact values, weights: of one chunk [z, y, x]."""
    e, shape = h.element, (bits.shape[0], bits.shape[1], bits.shape[2])
    x = to_floats(bits, e)
    plain = plain_values(bits, e)
    r = np.where(plain, x, 0.0)  # only what is known already is read
    codes, exact = [], [bits[_anchors()].reshape(-1)]
    sets: Sets = {}
    with np.errstate(all="ignore"):
        for level, s, axes, box in _levels(shape):
            p, step, v = _predicted(r, s, axes, box), _step(h.eb, level), x[box]
            if level < FITTED and (weights := _fit(r, p, np.where(plain[box], v, np.nan), s, axes, h.eb)) is not None:
                sets[level, axes] = weights
                p = _refined(r, p, s, axes, weights)
            k = np.rint((v - p) / step)
            stored = rounded(p + k * step, e)
            got = stored.astype(np.float64)
            good = plain[box] & (np.abs(v - got) < h.eb) & (np.abs(k) < FARTHEST) & plain_values(stored.view(e.bits), e)
            r[box] = np.where(good, got, np.where(plain[box], v, p))
            codes.append(np.where(good, k, EXACT).astype(np.int64).reshape(-1))
            exact.append(bits[box][~good])
    k = np.concatenate(codes) if codes else np.empty(0, np.int64)
    symbols, low, count = to_symbols(np.where(k == EXACT, 0, k))
    return np.where(k == EXACT, 0, symbols).astype(np.uint8), pack_low(low, count), np.concatenate(exact), sets


def decode(words: list[np.ndarray], shapes: list[tuple[int, int, int]], h: Header, first: int) -> list[np.ndarray]:
    """The bits of chunks `first`, `first` + 1, ... Raises FormatError where one is damaged."""
    read = [_parsed(w, shape, h, first + i) for i, (w, shape) in enumerate(zip(words, shapes, strict=True))]
    coded = [c for c in read if isinstance(c, _Coded)]
    counts = np.array([end - begin for c in coded for _, begin, end in c.cuts], np.int64)
    steps = -(-int(counts.max(initial=0)) // rans.LANES)
    active = (np.arange(steps * rans.LANES) < counts[:, None]).reshape(len(counts), steps, rans.LANES)
    symbols = np.zeros(active.shape, np.uint8)
    if len(counts):
        tables = np.concatenate([c.frequencies[[g for g, *_ in c.cuts]] for c in coded])
        states, halves, off = (np.concatenate([getattr(c, n) for c in coded]) for n in ("states", "halves", "off"))
        try:
            symbols = rans.decode(states, halves, off, steps, active, tables)
        except rans.Damaged as error:
            owner = np.repeat([c.chunk for c in coded], [len(c.off) for c in coded])
            raise FormatError(f"damaged chunk {owner[error.stream]}: {error}") from None
    flat = symbols.reshape(len(counts), steps * rans.LANES)
    found, at, alike = [], 0, {}  # type: ignore[var-annotated]
    for i, (c, shape) in enumerate(zip(read, shapes, strict=True)):
        if not isinstance(c, _Coded):
            found.append(c)
            continue
        mine = np.concatenate([flat[at + j, : counts[at + j]] for j in range(len(c.cuts))] or [np.empty(0, np.uint8)])
        at += len(c.off)
        k, marked = _numbers(c, mine, shape), mine == 0
        if isinstance(c.sets, dict):
            found.append(_values(c, k, marked, shape, h))
        else:
            alike.setdefault(shape, []).append((i, c, k, marked))
            found.append(np.empty(0, h.element.bits))
    for shape, some in alike.items():
        numbers, marks = (np.stack([one[part] for one in some], 1) for part in (2, 3))
        made = causal.decode(shape, numbers, marks, [c.exact for _, c, _, _ in some], [c.sets for _, c, _, _ in some], h.eb, h.element)
        for j, (i, *_) in enumerate(some):
            found[i] = made[:, j].reshape(shape)
    return found


@dataclass(frozen=True)
class _Coded:
    """A chunk's parts."""

    chunk: int
    cuts: list[tuple[int, int, int]]  # group, first symbol, end of each stream
    frequencies: np.ndarray  # [groups, 256]
    off: np.ndarray
    states: np.ndarray
    halves: np.ndarray
    packed: np.ndarray
    exact: np.ndarray
    sets: Sets | np.ndarray


def _refuse(bad: Any, chunk: int, what: str) -> None:
    if bad:
        raise FormatError(f"damaged chunk {chunk}: {what}")


def _parsed(words: np.ndarray, shape: tuple[int, int, int], h: Header, chunk: int) -> _Coded | np.ndarray:
    """The parts of a chunk, or the bits of one that is kept as it is."""
    e, n = h.element, int(np.prod(shape))
    if words[0] == 0:
        _refuse(len(words) != 1 + -(-n * e.bytes // 4), chunk, "its length is not that of its values")
        _refuse(words[1:].view(np.uint8)[n * e.bytes :].any(), chunk, "what fills up its last word is not 0")
        return words[1:].view(np.uint8)[: n * e.bytes].view(e.bits).reshape(shape)
    by_cause = bool(words[0] & np.uint32(8))
    anchors = 0 if by_cause else _anchor_count(shape)
    total = n - anchors
    low, high, apart = int(words[0]) >> 8 & 0xFF, int(words[0]) >> 16 & 0xFF, bool(words[0] & np.uint32(4))
    mixed = by_cause and int(words[0]) & 6 != 0
    _refuse(int(words[0]) & 0xFF0000F1 != 1 or mixed or high < low or high > LAST or (apart and high), chunk, "it is neither coded nor raw")
    _refuse(len(words) < 3, chunk, "it is too short")
    sets: Sets | np.ndarray
    sets, at = _head(words, shape, chunk) if by_cause else _weights(words, shape, chunk) if int(words[0]) & 2 else ({}, 3)
    ends = _groups(shape) if apart else [total]
    cuts = _cut(ends)
    streams = len(cuts)
    tables, at = _tables(words, at, None if apart else (low, high), [end - begin for begin, end in zip([0, *ends], ends, strict=False)], chunk)
    _refuse(len(words) < at + 33 * streams, chunk, "it is too short")
    off = words[at : at + streams].astype(np.int64)
    states = words[at + streams : at + 33 * streams].reshape(streams, rans.LANES)
    at += 33 * streams
    halves, exact, packed = int(off.sum()), int(words[1]), int(words[2])
    a, b = at + -(-halves // 2), at + -(-halves // 2) + -(-packed // 4)
    _refuse(len(words) != b + -(-exact * e.bytes // 4) or exact < anchors, chunk, "its length is not that of its streams")
    return _Coded(
        chunk, cuts, tables, off, states, words[at:a].view(np.uint16)[:halves], words[a:b].view(np.uint8)[:packed],
        words[b:].view(np.uint8)[: exact * e.bytes].view(e.bits), sets,
    )  # fmt: skip


def _tables(words: np.ndarray, at: int, range_: tuple[int, int] | None, counts: list[int], chunk: int) -> tuple[np.ndarray, int]:
    """Frequencies [groups, 256], and the word after them; `range_`: the lowest and highest symbol, None where it stands before each group's."""
    f = np.zeros((len(counts), 256), np.uint16)
    held, i = words[at:].view(np.uint16), 0
    for group, count in enumerate(counts):
        low, high = range_ or (0, 0)
        if range_ is None:
            _refuse(i >= len(held), chunk, "it is too short")
            low, high = int(held[i]) & 0xFF, int(held[i]) >> 8
            _refuse(high < low or high > LAST, chunk, "a range of symbols is not one")
            i += 1
        _refuse(i + high - low + 1 > len(held), chunk, "it is too short")
        f[group, low : high + 1] = held[i : i + high - low + 1]
        i += high - low + 1
        _refuse(int(f[group].sum(dtype=np.int64)) != (rans.TOTAL if count else 0), chunk, "its frequencies do not add up to 4096")
    _refuse(i % 2 == 1 and (i >= len(held) or held[i] != 0), chunk, "what fills up its last word is not 0")
    return f, at + (i + 1) // 2


def _head(words: np.ndarray, shape: tuple[int, int, int], chunk: int) -> tuple[np.ndarray, int]:
    """Base and weights of the causal predictor, and where what follows them begins."""
    count = causal.words_of(shape)
    _refuse(count == 0, chunk, "its shape has no causal predictor")
    _refuse(len(words) < 3 + count, chunk, "it is too short")
    head = words[3 : 3 + count].copy()
    _refuse(not (np.isfinite(head[:2].view(np.float64)).all() and np.isfinite(head[2:].view(np.float32)).all()), chunk, "a weight is not finite")
    return head, 3 + count


def _weights(words: np.ndarray, shape: tuple[int, int, int], chunk: int) -> tuple[Sets, int]:
    """The weights of a chunk, and where what follows them begins."""
    _refuse(len(words) < 4, chunk, "it is too short")
    mask, counts = int(words[3]), {}
    for level, s, axes, _ in _levels(shape):
        if level < FITTED and mask >> (7 * level + AXES.index(axes)) & 1 and (found := _inside(shape, s, axes)) is not None:
            counts[7 * level + AXES.index(axes)] = (level, axes, len(found[0]))
    _refuse(mask == 0 or mask != sum(1 << bit for bit in counts), chunk, "it has weights for values that it has not")
    total = sum(n for *_, n in counts.values())
    end = 4 + (total + 1) // 2
    _refuse(len(words) < end, chunk, "it is too short")
    held = words[4:end].view(np.float16)
    _refuse(bool(held[total:].view(np.uint16).any()) or not np.isfinite(held).all(), chunk, "a weight is not finite")
    sets: Sets = {}
    at = 0
    for _, (level, axes, n) in sorted(counts.items()):
        sets[level, axes] = held[at : at + n]
        at += n
    return sets, end


def _anchor_count(shape: tuple[int, int, int]) -> int:
    return prod(-(-m // LARGEST) for m in shape)


def _numbers(c: _Coded, symbols: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """The k of a chunk's symbols, once its exact values and low bits are as many as these ask for."""
    count = low_counts(symbols)
    anchors = _anchor_count(shape) if isinstance(c.sets, dict) else 0
    _refuse(len(c.exact) - int((symbols == 0).sum()) != anchors, c.chunk, "it has another number of exact values than it marks")
    _refuse(len(c.packed) != -(-int(count.sum()) // 8), c.chunk, "it has another number of low bits than its symbols ask for")
    return from_symbols(symbols, unpack_low(c.packed, count)).astype(np.float64)


def _values(c: _Coded, k: np.ndarray, marked: np.ndarray, shape: tuple[int, int, int], h: Header) -> np.ndarray:
    """The bits [z, y, x] of a chunk whose numbers are known, and which of them are exact values."""
    assert isinstance(c.sets, dict)
    e, anchors = h.element, _anchor_count(shape)
    out, r = np.zeros(shape, e.bits), np.zeros(shape)
    out[_anchors()] = c.exact[:anchors].reshape([-(-m // LARGEST) for m in shape])
    first = out[_anchors()]
    with np.errstate(all="ignore"):
        r[_anchors()] = np.where(plain_values(first, e), to_floats(first, e), 0.0)
        at, used = 0, anchors
        for level, s, axes, box in _levels(shape):
            p = _predicted(r, s, axes, box)
            if (weights := c.sets.get((level, axes))) is not None:
                p = _refined(r, p, s, axes, weights)
            stored = rounded(p + k[at : at + p.size].reshape(p.shape) * _step(h.eb, level), e).view(e.bits)
            bad = marked[at : at + p.size].reshape(p.shape)
            at += p.size
            if exact := int(bad.sum()):
                stored[bad] = c.exact[used : used + exact]
                used += exact
            got = to_floats(stored, e)
            r[box] = np.where(bad & ~plain_values(stored, e), p, got)
            out[box] = stored
    return out
