"""The codec `ratio` on the CPU: each value is predicted, by interpolation (ratio_interpolation.py) or from those before it
(ratio_causal.py), whichever makes the chunk smaller; the differences are quantised and coded by rANS. Slower than `fast`, and smaller on
smooth fields.
docs/codecs.md has a chunk word by word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rooftop.formats import rans
from rooftop.formats import ratio_causal as causal
from rooftop.formats import ratio_interpolation as interpolation
from rooftop.formats.codec_fast import _put
from rooftop.formats.container import FormatError, Header
from rooftop.formats.ratio_interpolation import AXES, Sets
from rooftop.formats.ratio_symbols import LAST, entropy_of, from_symbols, low_counts, unpack_low

STREAM = 65536  # symbols of a stream
BATCH = 1 << 23  # values at a time
ENOUGH = 0.7  # bits a value that interpolation takes, below which the other predictor is not tried

# symbols, bits that follow them, exact values; weights, or what causal.py stores
Made = tuple[np.ndarray, np.ndarray, np.ndarray, Sets | np.ndarray]


def _table(counts: np.ndarray, range_: bool) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies [256], and as they are stored: from the lowest symbol to the highest, with these two before them where `range_`."""
    used = np.flatnonzero(counts)
    low, high = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
    f = rans.normalised(counts)
    return f, np.concatenate((np.array([low | high << 8] if range_ else [], np.uint16), f[low : high + 1]))


def _cut(ends: list[int]) -> list[tuple[int, int, int]]:
    """(group, begin, end) of the streams: of at most STREAM symbols of one group each."""
    return [
        (g, i, min(i + STREAM, end)) for g,
        (begin, end) in enumerate(zip([0, *ends], ends, strict=False)) for i in range(begin, end, STREAM)
    ]


def encode(chunks: list[np.ndarray], h: Header, fitted: bool = True) -> list[np.ndarray]:
    """The words of chunks [z, y, x]. `fitted`: False leaves out what weights are fitted for, by interpolation alone, as a GPU does."""
    made: list[Made] = _smaller(chunks, h) if fitted else [interpolation.encode(bits, h, False) for bits in chunks]
    cuts, tables, stored, apart = [], [], [], []
    for bits, (symbols, _, _, sets) in zip(chunks, made, strict=True):
        ends = interpolation.groups((bits.shape[0], bits.shape[1], bits.shape[2])) if isinstance(sets, dict) else [len(symbols)]
        one = _table(np.bincount(symbols, minlength=256), False)
        each = [np.bincount(symbols[i:j], minlength=256) for i, j in zip([0, *ends], ends, strict=False)]
        several = [_table(c, True) for c in each]
        saved = entropy_of(np.bincount(symbols, minlength=256)) - sum(map(entropy_of, each))
        more = 16 * (sum(len(t) for _, t in several) - len(one[1])) + 33 * 32 * (len(_cut(ends)) - len(_cut([len(symbols)])))
        apart.append(len(ends) > 1 and saved > more << 16)
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
    made: list[Made] = [interpolation.encode(bits, h) for bits in chunks]
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
    return entropy_of(np.bincount(symbols, minlength=256)) / 65536 + 8 * (packed.nbytes + exact.nbytes + sum(part.nbytes for part in _stored(sets)))


def least_words(counts: np.ndarray, h: Header) -> np.ndarray:
    """Of a coded chunk of so many values: the front, and of each stream its length and states. At most every second value is an anchor, in
    no stream."""
    return 3 + 33 * -(-(counts // 2) // STREAM)


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
            values, finite = interpolation.decode(k, marked, c.exact, c.sets, shape, h)
            _refuse(not finite, c.chunk, "a value is not finite")
            found.append(values)
        else:
            alike.setdefault(shape, []).append((i, c, k, marked))
            found.append(np.empty(0, h.element.bits))
    for shape, some in alike.items():
        numbers, marks = (np.stack([one[part] for one in some], 1) for part in (2, 3))
        made, finite_of = causal.decode(
            shape, numbers, marks, [c.exact for _, c, _, _ in some], [c.sets for _, c, _, _ in some], h.eb, h.element
        )
        for j, (i, c, *_) in enumerate(some):
            _refuse(not finite_of[j], c.chunk, "a value is not finite")
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
    anchors = 0 if by_cause else interpolation.anchor_count(shape)
    total = n - anchors
    low, high, apart = int(words[0]) >> 8 & 0xFF, int(words[0]) >> 16 & 0xFF, bool(words[0] & np.uint32(4))
    mixed = by_cause and int(words[0]) & 6 != 0
    _refuse(int(words[0]) & 0xFF0000F1 != 1 or mixed or high < low or high > LAST or (apart and high), chunk, "it is neither coded nor raw")
    _refuse(len(words) < 3, chunk, "it is too short")
    sets: Sets | np.ndarray
    sets, at = _head(words, shape, chunk) if by_cause else _weights(words, shape, chunk) if int(words[0]) & 2 else ({}, 3)
    ends = interpolation.groups(shape) if apart else [total]
    cuts = _cut(ends)
    streams = len(cuts)
    tables, at = _tables(
        words, at, None if apart else (low, high), [end - begin for begin, end in zip([0, *ends], ends, strict=False)], chunk
    )
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
    )


def _tables(words: np.ndarray, at: int, range_: tuple[int, int] | None, counts: list[int], chunk: int) -> tuple[np.ndarray, int]:
    """Frequencies [groups, 256], and the word after them; `range_`: the lowest and highest symbol, None where it stands before each
    group's."""
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
    _refuse(
        not (np.isfinite(head[:2].view(np.float64)).all() and np.isfinite(head[2:].view(np.float32)).all()), chunk, "a weight is not finite"
    )
    return head, 3 + count


def _weights(words: np.ndarray, shape: tuple[int, int, int], chunk: int) -> tuple[Sets, int]:
    """The weights of a chunk, and where what follows them begins."""
    _refuse(len(words) < 4, chunk, "it is too short")
    mask, counts = int(words[3]), {}
    for level, s, axes, _ in interpolation.levels(shape):
        bit = 7 * level + AXES.index(axes)
        if level < interpolation.FITTED and mask >> bit & 1 and (found := interpolation.inside(shape, s, axes)) is not None:
            counts[bit] = (level, axes, len(found[0]))
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


def _numbers(c: _Coded, symbols: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """The k of a chunk's symbols, once its exact values and low bits are as many as these ask for."""
    count = low_counts(symbols)
    anchors = interpolation.anchor_count(shape) if isinstance(c.sets, dict) else 0
    _refuse(len(c.exact) - int((symbols == 0).sum()) != anchors, c.chunk, "it has another number of exact values than it marks")
    _refuse(len(c.packed) != -(-int(count.sum()) // 8), c.chunk, "it has another number of low bits than its symbols ask for")
    return from_symbols(symbols, unpack_low(c.packed, count)).astype(np.float64)
