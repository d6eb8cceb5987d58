"""The other predictor of the codec `ratio`: each value from those before it, which are nearer than those of a coarser grid. Best at tight
bounds, where the finest details of a field decide; chunks of two or three dimensions.

    p = base + sum_j w_j (r_j - base) over the neighbours that come before, z first, then y, then x: within 2 of each dimension (3 of an
    image), 62 (24); where some lie outside of the chunk those within 1 that lie inside, with weights for each such place alone
    k = rint((x - p) / step),  r = p + k step in the array's type;  step = 2 eb;  r = p of what is stored exactly

Weights are fitted to the chunk by least squares, as if each neighbour had the error of a quantised value, and stored as float32. All of it
in float64, one IEEE operation at a time, neighbours in one order. Values alike in z (r (r + 2) + 1) + y (r + 1) + x, r that reach, do not
depend on each
other: they are taken at once. Source: linear prediction of noisy samples reaches the rate of the field's spectrum within a quarter of a bit
(Jayant & Noll 1984, DPCM)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from rooftop.formats import least_squares
from rooftop.formats.elements import Element, to_floats
from rooftop.formats.ratio_symbols import EXACT, FARTHEST, pack_low, plain_values, rounded, to_symbols

REACH = {2: 3, 3: 2}  # strides to the farthest neighbour, by dimensions
FITTED = 16384  # values at most that weights are fitted to

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """How a chunk is walked through. Values are numbered in row-major order."""

    # of each kind of place: how far before the value its neighbours lie; the first has all of them around it, if any has
    kinds: tuple[np.ndarray, ...]
    places: tuple[np.ndarray, ...]  # of each kind: the values of it
    begins: tuple[int, ...]  # of each kind: where its weights begin
    near: np.ndarray  # how far before lie the neighbours of all kinds but the first
    columns: np.ndarray  # [kinds, near]: where the weight of each stands, the number of weights where it has none
    steps: tuple[tuple[np.ndarray, np.ndarray | None], ...]  # values, one after the other; their kinds, None where it is the first

    @property
    def weights(self) -> int:
        return sum(map(len, self.kinds))


@cache
def plan_of(shape: Shape) -> Plan | None:
    """None where there is but one dimension, or one is too short."""
    rank = 3 if shape[0] > 1 else 2
    r = REACH[rank]
    if min(shape[3 - rank :]) < 2 * r + 2:
        return None
    z, y, x = (a.reshape(-1) for a in np.meshgrid(*map(np.arange, shape), indexing="ij"))
    inside = ((z >= r) | (rank == 2)) & (y >= r) & (y < shape[1] - r) & (x >= r) & (x < shape[2] - r)
    side = [np.minimum(z, 1), *((v > 0) + (v == n - 1).astype(np.int64) for v, n in ((y, shape[1]), (x, shape[2])))]
    kind = np.where(inside, -1, (side[0] * 3 + side[1]) * 3 + side[2])
    kinds, places, number = [], [], np.zeros(len(kind), np.int64)
    for i, code in enumerate(np.unique(kind)):
        if code < 0:
            near = [d for d in product(range(-r if rank == 3 else 0, 1), *[range(-r, r + 1)] * 2) if d < (0, 0, 0)]
        else:
            low, middle, high = code // 9, code // 3 % 3, code % 3
            ends = [range(-1 if low else 0, 1), *(range(-1 if at else 0, 1 if at == 2 else 2) for at in (middle, high))]
            near = [d for d in product(*ends) if d < (0, 0, 0)]
        near.sort(key=lambda d: (sum(v * v for v in d), d))
        kinds.append(np.array([-((dz * shape[1] + dy) * shape[2] + dx) for dz, dy, dx in near], np.int64))
        places.append(np.flatnonzero(kind == code))
        number[places[-1]] = i
    begins = np.concatenate((np.zeros(1, np.int64), np.cumsum([len(k) for k in kinds])))
    around = max(kinds[1:], key=len)  # of the others one has all within 1, in the order that all have
    columns = np.full((len(kinds), len(around)), begins[-1])
    for i, taps in enumerate(kinds[1:], 1):
        columns[i, [int(np.flatnonzero(around == back)[0]) for back in taps]] = begins[i] + np.arange(len(taps))
    turn = z * (r * (r + 2) + 1) + y * (r + 1) + x
    order = np.lexsort((np.arange(len(kind)), number > 0, turn))
    cuts = np.flatnonzero((np.diff(turn[order]) != 0) | (np.diff(number[order] > 0) != 0)) + 1
    steps = tuple((part, number[part] if number[part[0]] else None) for part in np.split(order, cuts))
    return Plan(tuple(kinds), tuple(places), tuple(map(int, begins[:-1])), around, columns, steps)


def _filled(q: np.ndarray, good: np.ndarray) -> np.ndarray:
    """Values that are not good take that of the one before."""
    return q[np.maximum.accumulate(np.where(good, np.arange(len(q)), 0))]


def _fit(q: np.ndarray, good: np.ndarray, plan: Plan, eb: float) -> np.ndarray:
    """Weights, float32, for the good ones of the values `q`, less the base. Where there is no fit the nearest neighbour has weight 1."""
    found = np.zeros(plan.weights, np.float32)
    with np.errstate(all="ignore"):
        for taps, places, begin in zip(plan.kinds, plan.places, plan.begins, strict=True):
            if not len(taps):
                continue
            some = places[:: max(1, len(places) // FITTED)]
            some = some[good[some]]
            gram, right = least_squares.products(q[some[:, None] - taps], q[some])
            gram[np.diag_indices(len(gram))] += len(some) * eb * eb / 3 + 1e-13 * sum(np.diag(gram).tolist())
            weights = np.zeros(len(taps), np.float32)
            weights[0] = 1
            solved = least_squares.solve(gram, right)
            if solved is not None and np.isfinite(fitted := solved.astype(np.float32)).all():
                weights = fitted
            found[begin : begin + len(taps)] = weights
    return found


class _Walk:
    """The values of chunks, less their bases, [values, chunks], as far as they are known; before them zeros, so that any neighbour has a
    place."""

    def __init__(self, plan: Plan, values: int, base: np.ndarray, weights: np.ndarray) -> None:
        front = int(max(k.max(initial=0) for k in plan.kinds))
        held = np.zeros((front + values, len(base)))
        self.plan, self.base, self.r = plan, base, held[front:]
        # the last is that of neighbours that a value has not
        self.weights = np.concatenate((weights.astype(np.float64), np.zeros((1, len(base)))))
        self.all, self.near = ([held[front - back :] for back in taps] for taps in (plan.kinds[0], plan.near))

    def predicted(self, values: np.ndarray, kinds: np.ndarray | None) -> np.ndarray:
        """[values, chunks]; the base where the sum is not finite."""
        p = np.zeros((len(values), len(self.base)))
        if kinds is None:
            for r, w in zip(self.all, self.weights, strict=False):
                p += r[values] * w
        else:
            for j, r in enumerate(self.near):
                p += r[values] * self.weights[self.plan.columns[kinds, j]]
        p += self.base
        return np.where(np.isfinite(p), p, self.base)


def encode(chunks: list[np.ndarray], eb: float, e: Element) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] | None:
    """Of chunks of one shape: symbols, the bits that follow them, exact values, base (float64) and weights (float32) as words. None where
    there is no plan."""
    plan = plan_of((chunks[0].shape[0], chunks[0].shape[1], chunks[0].shape[2]))
    if plan is None:
        return None
    bits = np.stack([c.reshape(-1) for c in chunks], 1)
    plain = plain_values(bits, e)
    x = np.where(plain, to_floats(bits, e), 0.0)
    base = x[plain.argmax(0), np.arange(len(chunks))]
    step, k = 2.0 * eb, np.empty(x.shape, np.int64)
    with np.errstate(all="ignore"):
        q = np.where(plain, x - base, 0.0)
        near = plain & (np.abs(q) < eb * FARTHEST)  # beyond it there is no number for a value
        weights = np.stack([_fit(_filled(q[:, i], near[:, i]), near[:, i], plan, eb) for i in range(len(chunks))], 1)
        walk = _Walk(plan, len(x), base, weights)
        for values, kinds in plan.steps:
            p, v, known = walk.predicted(values, kinds), x[values], plain[values]
            n = np.rint((v - p) / step)
            stored = rounded(p + n * step, e)
            got = stored.astype(np.float64)
            good = known & (np.abs(v - got) < eb) & (np.abs(n) < FARTHEST) & plain_values(stored.view(e.bits), e)
            walk.r[values] = np.where(good, got, p) - base
            k[values] = np.where(good, n, EXACT).astype(np.int64)
    found = []
    for i in range(len(chunks)):
        exact = k[:, i] == EXACT
        symbols, low, count = to_symbols(np.where(exact, 0, k[:, i]))
        head = np.concatenate((base[i : i + 1].view(np.uint32), weights[:, i].copy().view(np.uint32)))
        found.append((np.where(exact, 0, symbols).astype(np.uint8), pack_low(low, count), bits[exact, i], head))
    return found


def words_of(shape: Shape) -> int:
    """Of base and weights; 0 where there is no plan."""
    plan = plan_of(shape)
    return 0 if plan is None else 2 + plan.weights


def decode(
    shape: Shape, k: np.ndarray, marked: np.ndarray, exact: list[np.ndarray], heads: list[np.ndarray], eb: float, e: Element
) -> tuple[np.ndarray, np.ndarray]:
    """The bits [values, chunks] of chunks of one shape: their numbers `k` [values, chunks], and which are exact values. And of which chunks
    all that was predicted is finite, as all that an encoder writes is."""
    plan = plan_of(shape)
    assert plan is not None
    out, step, finite = np.zeros(k.shape, e.bits), 2.0 * eb, np.ones(k.shape[1], bool)
    for i, values in enumerate(exact):
        out[marked[:, i], i] = values
    base = np.array([h[:2].view(np.float64)[0] for h in heads])
    walk = _Walk(plan, len(k), base, np.stack([h[2:].view(np.float32) for h in heads], 1))
    with np.errstate(all="ignore"):
        for values, kinds in plan.steps:
            p, bad = walk.predicted(values, kinds), marked[values]
            stored = np.where(bad, out[values], rounded(p + k[values] * step, e).view(e.bits))
            got = to_floats(stored, e)
            finite &= (bad | np.isfinite(got)).all(0)
            walk.r[values] = np.where(bad, p, got) - base
            out[values] = stored
    return out, finite
