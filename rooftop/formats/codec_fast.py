"""The codecs `fast` and `shuffle` on the CPU: chunks of 4096 whole numbers as differences, bit planes of 32 numbers at a time, a width a
block.

docs/codecs.md has a chunk word by word. The CUDA C++ kernels `compress_blocks` and `decompress_blocks` write and read the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from rooftop.formats.array_chunks import Part
from rooftop.formats.container import FormatError, Header
from rooftop.formats.error_bounded import dequantize, ordered, quantize, unordered

BLOCK, ROWS = 32, 128  # values of a block, blocks of a chunk
MASKS = {16: 0x0000FFFF, 8: 0x00FF00FF, 4: 0x0F0F0F0F, 2: 0x33333333, 1: 0x55555555}


def transposed(a: np.ndarray) -> np.ndarray:
    """u32 [32, m], in place: bit p of row i becomes bit i of row p."""
    for j, mask in MASKS.items():
        v = a.reshape(16 // j, 2, j, a.shape[1])
        low, high = v[:, 0], v[:, 1]
        t = ((low >> np.uint32(j)) ^ high) & np.uint32(mask)
        high ^= t
        low ^= t << np.uint32(j)
    return a


def bit_lengths(v: np.ndarray) -> np.ndarray:
    """u8: how many bits each number has."""
    if v.dtype == np.uint64:
        high = bit_lengths((v >> np.uint64(32)).astype(np.uint32))
        return np.where(high, high + 32, bit_lengths(v.astype(np.uint32))).astype(np.uint8)
    return np.frexp(v.astype(np.float64))[1].astype(np.uint8)


def differences(v: np.ndarray, tile: tuple[int, int, int], predictor: int) -> np.ndarray:
    """Of [n, Z * Y * X] along the `predictor` innermost dimensions, modulo 2^32 or 2^64; what lies outside of a chunk is 0. Along the other
    dimensions only the first of each line (1), of each plane (2): else it would be as wide as the chunk's whole range."""
    u = v.reshape(-1, *tile)
    for axis in (3, 2, 1)[:predictor]:
        d = u.copy()
        at: list[Any] = [slice(None)] * 4
        before = list(at)
        at[axis], before[axis] = slice(1, None), slice(None, -1)
        d[tuple(at)] -= u[tuple(before)]
        u = d
    if predictor == 1:
        first = u[..., 0].copy()
        first[:, :, 1:] -= u[:, :, :-1, 0]
        u[:, 0, :, 0] = first[:, 0]
        u[:, 1:, :, 0] = first[:, 1:] - first[:, :-1]
    elif predictor == 2:
        u[:, 1:, 0, 0] -= u[:, :-1, 0, 0].copy()
    return u.reshape(v.shape)


def sums(v: np.ndarray, tile: tuple[int, int, int], predictor: int) -> np.ndarray:
    """The reverse of `differences`."""
    u = v.reshape(-1, *tile).copy()
    if predictor == 1:
        u[..., 0] = np.cumsum(np.cumsum(u[..., 0], 1, dtype=v.dtype), 2, dtype=v.dtype)
    elif predictor == 2:
        u[:, :, 0, 0] = np.cumsum(u[:, :, 0, 0], 1, dtype=v.dtype)
    for axis in (3, 2, 1)[:predictor]:
        u = np.cumsum(u, axis, dtype=v.dtype)
    return u.reshape(v.shape)


def zigzag(d: np.ndarray) -> np.ndarray:
    one, top = d.dtype.type(1), d.dtype.type(8 * d.itemsize - 1)
    return (d << one) ^ (d.dtype.type(0) - (d >> top))


def unzigzag(z: np.ndarray) -> np.ndarray:
    one = z.dtype.type(1)
    return (z >> one) ^ (z.dtype.type(0) - (z & one))


def _filled(q: np.ndarray, exceptions: np.ndarray) -> np.ndarray:
    """Exceptions take the code of the nearest value to their left in their block that is none, and the chunk's base where there is none."""
    hit = np.flatnonzero(exceptions.any(1))
    rows, bad = q[hit].reshape(-1, BLOCK), exceptions[hit].reshape(-1, BLOCK)
    place = np.where(bad, -1, np.arange(BLOCK))
    nearest = np.maximum.accumulate(place, 1)
    taken = np.take_along_axis(rows, np.maximum(nearest, 0), 1)
    base = np.repeat(np.where(exceptions[hit, 0], 0, q[hit, 0]).astype(q.dtype), ROWS)[:, None]
    q = q.copy()
    q[hit] = np.where(nearest < 0, base, taken).reshape(len(hit), -1)
    return q


def encode(bits: np.ndarray, part: Part, h: Header) -> tuple[np.ndarray, np.ndarray]:
    """The words of the chunks `bits` [n, 4096], one chunk after the other, and how many words each has."""
    e, n = h.element, len(bits)
    if h.codec == "fast":
        q, exceptions = quantize(bits, h.eb, e)
    else:
        q, exceptions = ordered(bits, e), None
    valid = part.valid()
    if exceptions is not None and valid is not None:
        exceptions &= valid
    if exceptions is not None and not exceptions.any():
        exceptions = None
    if exceptions is not None:
        q = _filled(q, exceptions)
    base = q[:, 0] if exceptions is None else np.where(exceptions[:, 0], 0, q[:, 0]).astype(q.dtype)
    v = q - base[:, None]
    best_codes, widths, cost, predictor = v, np.zeros((n, ROWS), np.uint8), np.full(n, 1 << 30), np.zeros(n, np.uint32)
    for p in range(h.rank + 1):  # the fewest payload words win, of equals the most dimensions
        r = differences(v, h.tile, p)
        if valid is not None:
            r[~valid] = 0
        z = zigzag(r)
        w = bit_lengths(z.reshape(n, ROWS, BLOCK).max(2))
        total = w.sum(1, dtype=np.int64)
        better = total <= cost
        if better.all():
            best_codes, widths = z, w
        else:
            best_codes, widths = best_codes.copy(), widths.copy()
            best_codes[better], widths[better] = z[better], w[better]
        cost, predictor = np.where(better, total, cost), np.where(better, p, predictor).astype(np.uint32)

    per = 2 if e.wide else 1
    counts = part.counts()
    least = widths.min(1)
    planes = bit_lengths((widths.max(1) - least).astype(np.uint32)).astype(np.int64)
    sizes = 1 + per + 4 * planes + cost
    if exceptions is not None:
        flagged: np.ndarray = np.asarray(exceptions.reshape(n, ROWS, BLOCK).any(2))
        found = exceptions.sum(1)
        sizes = sizes + np.where(found > 0, 4 + flagged.sum(1) + -(-found * e.bytes // 4), 0)
    raw_sizes = 1 + -(-counts * e.bytes // 4)
    raw = sizes >= raw_sizes
    sizes = np.where(raw, raw_sizes, sizes)
    starts = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), np.uint32)

    coded = np.flatnonzero(~raw)
    at = starts[coded]
    found_any: np.ndarray = np.zeros(n, bool) if exceptions is None else np.asarray(found > 0)
    out[at] = (
        1 | predictor[coded] << 4 | least[coded].astype(np.uint32) << 8 | planes[coded].astype(np.uint32) << 16
        | found_any[coded].astype(np.uint32) << 24
    )
    out[at + 1] = base[coded].astype(np.uint32)
    if per == 2:
        out[at + 2] = (base[coded] >> base.dtype.type(32)).astype(np.uint32)
    at = at + 1 + per
    above = widths[coded] - least[coded][:, None]
    for j in range(int(planes[coded].max(initial=0))):
        some = planes[coded] > j
        words = np.packbits(np.asarray(above[some] >> j & 1, np.uint8), axis=1, bitorder="little").view("<u4")
        out[at[some][:, None] + np.arange(4)] = words
        at = at + 4 * some
    if exceptions is not None:
        with_some = found_any[coded]
        out[at[with_some][:, None] + np.arange(4)] = np.packbits(flagged[coded][with_some], axis=1, bitorder="little").view("<u4")
        masks = np.packbits(exceptions[coded].reshape(-1, ROWS, BLOCK), axis=2, bitorder="little").view("<u4")[..., 0]
        at = at + 4 * with_some
        mine = flagged[coded]
        out[_runs(at, mine.sum(1))] = masks[mine]
        at = at + mine.sum(1)
    taken = widths[coded].reshape(-1)
    rows = best_codes[coded].reshape(-1, BLOCK)
    planes_of = transposed(np.ascontiguousarray(rows.astype(np.uint32).T)).T
    if per == 2:
        planes_of = np.concatenate((planes_of, transposed(np.ascontiguousarray((rows >> np.uint64(32)).astype(np.uint32).T)).T), 1)
    out[_runs(at, cost[coded])] = planes_of[np.arange(BLOCK * per) < taken[:, None]]
    at = at + cost[coded]
    if exceptions is not None:
        for i in np.flatnonzero(found_any[coded]):
            c = coded[i]
            _put(out, int(at[i]), bits[c][exceptions[c]])
    for c in np.flatnonzero(raw):
        _put(out, int(starts[c]) + 1, bits[c] if valid is None else bits[c][valid[c]])
    return out, sizes.astype(np.uint32)


def _runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """starts[0], starts[0] + 1, ... lengths[0] of them, then those of starts[1], ..."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]) if len(ends) else 0)


def _put(out: np.ndarray, at: int, values: np.ndarray) -> None:
    """Elements, one after the other, the last word filled up with zeros."""
    out[at : at + -(-values.nbytes // 4)].view(np.uint8)[: values.nbytes] = values.view(np.uint8)


def least_words(counts: np.ndarray, h: Header) -> np.ndarray:
    """Of a coded chunk of so many values: the front and the base."""
    return np.full(len(counts), 3 if h.element.wide else 2)


def decode(words: np.ndarray, starts: np.ndarray, part: Part, h: Header) -> np.ndarray:
    """The bits [n, 4096] of the chunks that begin at `starts` (i64 [n + 1], with the end) in `words`. Raises FormatError where a chunk is
    damaged; reads nothing outside of the chunks, whatever they hold."""
    e, n, per = h.element, part.last - part.first, 2 if h.element.wide else 1
    out = np.zeros((n, ROWS * BLOCK), e.bits)
    valid, counts = part.valid(), part.counts()
    lengths = np.diff(starts)
    front = words[starts[:-1]]

    def refuse(bad: np.ndarray, chunks: np.ndarray, what: str) -> None:
        if bad.any():
            raise FormatError(f"damaged chunk {part.first + int(chunks[np.flatnonzero(bad)[0]])}: {what}")

    raw = np.flatnonzero(front == 0)
    refuse(lengths[raw] != 1 + -(-counts[raw] * e.bytes // 4), raw, "its length is not that of its values")
    for c in raw:
        held = words[starts[c] + 1 : starts[c + 1]].view(np.uint8)
        size = int(counts[c]) * e.bytes
        refuse(np.array([held[size:].any()]), np.array([c]), "what fills up its last word is not 0")
        out[c, slice(None) if valid is None else valid[c]] = held[:size].view(e.bits)

    coded = np.flatnonzero(front)
    if not len(coded):
        return out
    front = front[coded]
    predictor, least, planes, some = (front >> 4) & 3, (front >> 8) & 0x7F, ((front >> 16) & 7).astype(np.int64), ((front >> 24) & 1).astype(np.int64)
    refuse((front & np.uint32(0xFEF880CE)) != 0, coded, "a reserved bit is set")
    refuse((front & 1) != 1, coded, "it is neither coded nor raw")
    refuse(predictor > h.rank, coded, f"its predictor has more dimensions than {h.rank}")
    refuse((some == 1) & (h.codec != "fast"), coded, "a lossless chunk has exceptions")
    refuse(lengths[coded] < 1 + per + 4 * planes + 4 * some, coded, "it is too short")
    at = starts[coded] + 1
    base = words[at].astype(np.uint64 if per == 2 else np.uint32)
    if per == 2:
        base |= words[at + 1].astype(np.uint64) << np.uint64(32)
    at = at + per
    widths = np.broadcast_to(least[:, None], (len(coded), ROWS)).astype(np.int64)
    for j in range(int(planes.max())):
        here = planes > j
        held = words[at[here][:, None] + np.arange(4)]
        widths[here] += np.unpackbits(held.view(np.uint8), axis=1, bitorder="little").astype(np.int64) << j
        at = at + 4 * here
    refuse(np.asarray((widths > BLOCK * per).any(1)), coded, f"a block is wider than {BLOCK * per} bits")
    payload = widths.sum(1)
    size = at - starts[coded] + payload
    if some.any():
        has = np.flatnonzero(some)
        flagged = np.zeros((len(coded), ROWS), bool)
        flagged[has] = np.unpackbits(words[at[has][:, None] + np.arange(4)].view(np.uint8), axis=1, bitorder="little").astype(bool)
        at = at + 4 * some
        marks = flagged.sum(1)
        size = size + 4 * some + marks
        refuse(lengths[coded] < size, coded, "it is too short")
        masks = np.zeros((len(coded), ROWS), np.uint32)
        masks[flagged] = words[_runs(at, marks)]
        exceptions = np.unpackbits(masks.view(np.uint8).reshape(len(coded), -1), axis=1, bitorder="little").astype(bool)
        refuse((flagged & (masks == 0)).any(1) | ((some == 1) & (marks == 0)), coded, "a block without exceptions is marked")
        refuse(
            np.zeros(len(coded), bool) if valid is None else (exceptions & ~valid[coded]).any(1), coded,
            "an exception lies outside of the array"
        )
        found = exceptions.sum(1)
        at = at + marks
        size = size + -(-found * e.bytes // 4)
    refuse(lengths[coded] != size, coded, "its length is not that of its blocks")
    planes_of = np.zeros((len(coded) * ROWS, BLOCK * per), np.uint32)
    planes_of[np.arange(BLOCK * per) < widths.reshape(-1, 1)] = words[_runs(at, payload)]
    at = at + payload
    codes = transposed(np.ascontiguousarray(planes_of[:, :BLOCK].T)).T.astype(base.dtype)
    if per == 2:
        codes |= transposed(np.ascontiguousarray(planes_of[:, BLOCK:].T)).T.astype(np.uint64) << np.uint64(32)
    v = unzigzag(codes.reshape(len(coded), -1))
    if valid is not None:
        refuse((v[:, :] * ~valid[coded]).any(1), coded, "a number outside of the array is not 0")
    for p in np.unique(predictor):
        here = predictor == p
        v[here] = sums(v[here], h.tile, int(p))
    v += base[:, None]
    values = dequantize(v, h.eb, e) if h.codec == "fast" else unordered(v, e)
    if some.any():
        for i in np.flatnonzero(some):
            size_i = int(found[i]) * e.bytes
            held = words[at[i] : starts[coded[i] + 1]].view(np.uint8)
            refuse(np.array([held[size_i:].any()]), coded[i : i + 1], "what fills up its last word is not 0")
            values[i, exceptions[i]] = held[:size_i].view(e.bits)
    out[coded] = values
    return out
