"""Medians, their intervals and verdicts for timings. Pure Python; nothing here knows what was timed.

The interval of a median comes from order statistics: of n independent samples, the number below the true median is binomial with
probability one half, so the i-th smallest and i-th largest sample enclose it with a chance that depends on n and i alone. It needs no
normal distribution, which timings have not (they have a wall on the left and a tail on the right).

Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., Wiley 2003, section 7.1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["faster", "slower", "same", "unresolved"]

CONFIDENCE = 0.95
SAME_WITHIN = 0.01  # a ratio is called "same" only where both it and the A/A run lie within this of 1
FEWEST = 6  # samples below which no pair of order statistics encloses the median with 95 %


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones. Raises ValueError for no values."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """The value under which ``share`` (0 to 1) of the values lie, linear between neighbours. Raises ValueError for no values."""
    if not values:
        raise ValueError("a quantile of no values was asked for; at least one is needed")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share}; it must lie between 0 and 1")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def spread(values: Sequence[float]) -> float:
    """Distance between the quartiles over the median: how far single samples scatter (1 is 100 %)."""
    middle = median(values)
    return (quantile(values, 0.75) - quantile(values, 0.25)) / middle if middle else 0.0


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, float]:
    """``(rank, coverage)``: the rank-th smallest and rank-th largest of ``n`` samples enclose the true median with chance ``coverage``.

    The rank is the largest whose coverage is at least ``confidence``. Under six samples none reaches 95 %: the rank is then 1 and the
    coverage says what the extremes give."""
    if n < 1:
        raise ValueError(f"{n} samples; at least one is needed")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1")
    whole = 2**n
    outside = 1  # sets of samples in which fewer than `rank` fall below the median: sum of binomials
    rank = 1
    while 2 * (rank + 1) <= n + 1:
        wider = outside + math.comb(n, rank)
        if 1 - 2 * wider / whole < confidence:
            break
        outside, rank = wider, rank + 1
    return rank, max(0.0, 1 - 2 * outside / whole)


@dataclass(frozen=True)
class Estimate:
    """A median with its interval. ``coverage`` is the chance that an interval made so holds the true median."""

    median: float
    low: float
    high: float
    n: int
    coverage: float

    @property
    def error(self) -> float:
        """Half the interval over the median: the relative error that a stop rule compares with its target."""
        return (self.high - self.low) / (2 * self.median) if self.median else math.inf

    @property
    def off_one(self) -> float:
        """For a ratio: how far from 1 the interval reaches."""
        return max(abs(self.low - 1), abs(self.high - 1))


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The median of ``values`` with its order-statistics interval. Raises ValueError for no values."""
    middle = median(values)
    rank, coverage = median_ranks(len(values), confidence)
    ordered = sorted(values)
    return Estimate(middle, ordered[rank - 1], ordered[-rank], len(ordered), coverage)


def paired_ratio(times: Sequence[float], base: Sequence[float]) -> Estimate:
    """The median of ``times[i] / base[i]``, sample by sample, with its interval; below 1 means less time than the base.

    Pairs taken side by side share the clock, heat and power of their moment, so drift cancels where a ratio of two medians keeps it.
    Raises ValueError where the two differ in length or a base time is not positive."""
    if len(times) != len(base):
        raise ValueError(f"{len(times)} samples against {len(base)}; pairs need as many of each")
    if any(not b > 0 for b in base):
        raise ValueError("a base time is not positive; no ratio can be taken")
    return estimate([t / b for t, b in zip(times, base, strict=True)])


@dataclass(frozen=True)
class Comparison:
    """One candidate against another. ``ratio`` is time over the base's time: below 1 is faster. ``noise`` is how far from 1 the
    interval of an A/A run of the same session reached."""

    ratio: float
    low: float
    high: float
    n: int
    noise: float
    verdict: Verdict

    def json(self) -> dict[str, Any]:
        return asdict(self)


def compare(times: Sequence[float], base: Sequence[float], noise: float) -> Comparison:
    """The verdict on paired samples, given the A/A noise (relative, 0.01 is 1 %).

    - faster or slower: the whole interval of the ratio lies beyond the noise;
    - same: it does not, the noise is under 1 %, and the whole interval lies within 1 % of 1;
    - unresolved: anything else (too noisy, or too few samples to tell)."""
    if noise < 0:
        raise ValueError(f"noise is {noise}; it must not be negative")
    r = paired_ratio(times, base)
    verdict: Verdict = "unresolved"
    if r.n >= FEWEST:
        if r.high < 1 - noise:
            verdict = "faster"
        elif r.low > 1 + noise:
            verdict = "slower"
        elif noise < SAME_WITHIN and r.off_one <= SAME_WITHIN:
            verdict = "same"
    return Comparison(r.median, r.low, r.high, r.n, noise, verdict)
