"""A predictor of the codec `ratio`: each chunk is refined level by level, a value predicted by cubic interpolation of those that are known.

    level s = 32, 16, ..., 1 (strides): the values at odd multiples of s along one dimension, then along two, then along three, are
    predicted from those known,
    p = (9 (b + c) - (a + d)) / 16 of the four neighbours at -3s, -s, s, 3s;  (b + c) / 2 where one of the outer two is missing;  b + (b -
    a) / 2 where c is; the mean of that along each of the dimensions in which they are odd
    at the three finest levels, where it pays: p + sum_j w_j (r_j - p) of up to 24 known neighbours around, for each set of odd dimensions
    its own weights w, fitted to the chunk by least squares and stored as float16; near the chunk's faces, where a neighbour is missing, p
    alone
    k = rint((x - p) / step),  r = p + k step in the array's type;  step = 2 e, e = eb / min(1.5^level, 4):
    coarse values are predicted from, so they are kept nearer

All of it in float64, one IEEE operation at a time. |x - r| < eb is verified for every value; the others, and NaN, infinities, -0.0 and
denormals, are stored exactly. What is predicted from is r, as the decoder has it. Sources: Zhao et al. 2021 (SZ3, arXiv 2105.12730), Liu et
al. 2022 (QoZ: the coarse levels), Liu et al. 2024 (HPEZ, means over dimensions), Liu et al. 2024 (cuSZ-i, arXiv 2312.05492)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod

import numpy as np

from rooftop.formats import least_squares
from rooftop.formats.container import Header
from rooftop.formats.elements import to_floats
from rooftop.formats.ratio_symbols import EXACT, FARTHEST, pack_low, plain_values, rounded, to_symbols

LARGEST = 64  # stride of the values that nothing is predicted from
AXES = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
# finest levels that weights are fitted for; strides to the farthest neighbour along a dimension; neighbours at most
FITTED, REACH, TAPS = 3, 3, 24

Sets = dict[tuple[int, tuple[int, ...]], np.ndarray]  # weights of (level, axes)


def levels(shape: tuple[int, int, int]) -> Iterator[tuple[int, int, tuple[int, ...], tuple[slice, slice, slice]]]:
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


def inside(
    shape: tuple[int, ...], s: int, axes: tuple[int, ...]
) -> tuple[tuple[tuple[int, int, int], ...], tuple[slice, slice, slice], list[tuple[slice, slice, slice]]] | None:
    """The neighbours, the values that have all of them (as a part of their box), and where each neighbour of these lies; None where there
    are none."""
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
    places = [
        tuple(slice(f + o * s, f + o * s + 2 * s * (c - 1) + 1, 2 * s) for f, o, c in zip(first, d, count, strict=True)) for d in offsets
    ]
    return offsets, (inner[0], inner[1], inner[2]), places  # type: ignore[return-value]


def _refined(r: np.ndarray, p: np.ndarray, s: int, axes: tuple[int, ...], weights: np.ndarray) -> np.ndarray:
    """`p`, moved towards the neighbours by their weights."""
    found = inside(r.shape, s, axes)
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
    found = inside(r.shape, s, axes)
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
        gram, right = least_squares.products(m, target)
        gram[np.diag_indices(len(gram))] += 1e-9 * sum(np.diag(gram).tolist()) / len(gram) + len(target) * eb * eb / 3000
        weights = least_squares.solve(gram, right)
        if weights is None:
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


def groups(shape: tuple[int, int, int]) -> list[int]:
    """Where groups of symbols end that have frequencies of their own: those of coarse levels, those of level 1, each set of level 0."""
    ends, at = [0, 0], 0
    for level, _, _, box in levels(shape):
        at += prod(len(range(*b.indices(n))) for b, n in zip(box, shape, strict=True))
        if level == 0:
            ends.append(at)
        else:
            ends[1] = at
            ends[0] = at if level > 1 else ends[0]
    return sorted({end for end in ends if end})


def encode(bits: np.ndarray, h: Header, fitted: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray, Sets | np.ndarray]:
    """Symbols, the bits that follow them, exact values, weights (where `fitted`): of one chunk [z, y, x]."""
    e, shape = h.element, (bits.shape[0], bits.shape[1], bits.shape[2])
    x = to_floats(bits, e)
    plain = plain_values(bits, e)
    r = np.where(plain, x, 0.0)  # only what is known already is read
    codes, exact = [], [bits[_anchors()].reshape(-1)]
    sets: Sets = {}
    with np.errstate(all="ignore"):
        for level, s, axes, box in levels(shape):
            p, step, v = _predicted(r, s, axes, box), _step(h.eb, level), x[box]
            if fitted and level < FITTED and (weights := _fit(r, p, np.where(plain[box], v, np.nan), s, axes, h.eb)) is not None:
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


def anchor_count(shape: tuple[int, int, int]) -> int:
    return prod(-(-m // LARGEST) for m in shape)


def decode(
    k: np.ndarray, marked: np.ndarray, exact_values: np.ndarray, sets: Sets, shape: tuple[int, int, int], h: Header
) -> tuple[np.ndarray, bool]:
    """The bits [z, y, x] of a chunk: its numbers `k` in the order of the levels, which of them are exact values, and these, the anchors
    before. And whether all that was predicted is finite, as all that an encoder writes is."""
    e, anchors = h.element, anchor_count(shape)
    out, r, finite = np.zeros(shape, e.bits), np.zeros(shape), True
    out[_anchors()] = exact_values[:anchors].reshape([-(-m // LARGEST) for m in shape])
    first = out[_anchors()]
    with np.errstate(all="ignore"):
        r[_anchors()] = np.where(plain_values(first, e), to_floats(first, e), 0.0)
        at, used = 0, anchors
        for level, s, axes, box in levels(shape):
            p = _predicted(r, s, axes, box)
            if (weights := sets.get((level, axes))) is not None:
                p = _refined(r, p, s, axes, weights)
            stored = rounded(p + k[at : at + p.size].reshape(p.shape) * _step(h.eb, level), e).view(e.bits)
            bad = marked[at : at + p.size].reshape(p.shape)
            at += p.size
            finite = finite and bool(np.isfinite(to_floats(stored, e)[~bad]).all())
            if exact := int(bad.sum()):
                stored[bad] = exact_values[used : used + exact]
                used += exact
            got = to_floats(stored, e)
            r[box] = np.where(bad & ~plain_values(stored, e), p, got)
            out[box] = stored
    return out, finite
