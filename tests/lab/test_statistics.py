"""Statistics against known truths: binomial coverage, simulated coverage, verdicts on samples whose ratio is known."""

from __future__ import annotations

import math
import random

import pytest

from rooftop.lab.timing import statistics
from rooftop.lab.timing.statistics import compare, estimate, median, median_ranks, paired_ratio, quantile, spread


def test_median_of_odd_even_and_none() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_quantile_is_linear_between_neighbours() -> None:
    values = [10.0, 20.0, 30.0, 40.0, 50.0]
    assert quantile(values, 0.25) == 20.0
    assert quantile(values, 0.1) == pytest.approx(14.0)
    assert quantile(values, 1.0) == 50.0
    assert spread(values) == pytest.approx((40.0 - 20.0) / 30.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile(values, 1.5)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 11, 12, 25, 100, 501])
def test_ranks_give_the_binomial_coverage_and_no_wider(n: int) -> None:
    rank, coverage = median_ranks(n)

    def enclosed(r: int) -> float:
        return sum(math.comb(n, i) for i in range(r, n - r + 1)) / 2**n

    assert coverage == pytest.approx(enclosed(rank))
    if n >= statistics.FEWEST:
        assert coverage >= 0.95
        assert enclosed(rank + 1) < 0.95  # the next narrower pair would not do
    else:
        assert rank == 1 and coverage < 0.95


def test_published_ranks() -> None:
    # Ranks of 95 % intervals as tables of the sign test list them: n = 10 -> 2nd and 9th, n = 20 -> 6th and 15th.
    assert median_ranks(10)[0] == 2
    assert median_ranks(20)[0] == 6


@pytest.mark.parametrize("n", [6, 11, 40, 200])
def test_simulated_coverage_on_skewed_samples(n: int) -> None:
    """Timings as they are: a wall, a tail, and now and then an outlier. The true median is known; 95 % of intervals must hold it."""
    rng = random.Random(20251120 + n)

    def sample() -> float:
        body = 1.0 + 0.01 * rng.expovariate(1.0)
        return body * 3 if rng.random() < 0.02 else body

    # Median of the mixture: P(body <= m) * 0.98 = 0.5, as every outlier lies above it.
    truth = 1.0 - 0.01 * math.log(1 - 0.5 / 0.98)
    trials = 1500
    held = 0
    for _ in range(trials):
        e = estimate([sample() for _ in range(n)])
        held += e.low <= truth <= e.high
    nominal = median_ranks(n)[1]
    slack = 4 * math.sqrt(nominal * (1 - nominal) / trials)
    assert abs(held / trials - nominal) < slack


def test_pairs_cancel_drift_that_medians_keep() -> None:
    rng = random.Random(7)
    drift = [1.0 + 0.1 * i / 60 for i in range(60)]  # 10 % slower over the run, as a card that heats up
    a = [d * (1 + rng.gauss(0, 0.001)) for d in drift]
    b = [d * 1.03 * (1 + rng.gauss(0, 0.001)) for d in drift]
    paired = paired_ratio(b, a)
    assert paired.low < 1.03 < paired.high
    assert paired.error < 0.001
    assert estimate(b).error > 10 * paired.error
    with pytest.raises(ValueError, match="as many"):
        paired_ratio(a, b[:-1])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([1.0], [0.0])


def noisy(rng: random.Random, centre: float, sigma: float, n: int) -> list[float]:
    return [centre * math.exp(rng.gauss(0, sigma)) for _ in range(n)]


@pytest.mark.parametrize(
    ("truth", "sigma", "noise", "verdict"),
    [
        (0.90, 0.005, 0.002, "faster"),
        (1.03, 0.005, 0.002, "slower"),
        (1.00, 0.003, 0.003, "same"),
        (1.00, 0.003, 0.02, "unresolved"),  # within noise, but the A/A run spread over 1 %
        (1.00, 0.20, 0.003, "unresolved"),  # the candidate itself is too noisy to tell
        (1.015, 0.003, 0.03, "unresolved"),  # a real difference that the noise covers
        (1.10, 0.005, 0.03, "slower"),  # beyond even a large noise
    ],
)
def test_verdicts(truth: float, sigma: float, noise: float, verdict: str) -> None:
    """Over forty draws: an interval of 95 % is wrong now and then, and a verdict built on it no more often."""
    hits = 0
    for seed in range(40):
        rng = random.Random(seed)
        a = noisy(rng, 1.0, 0.0005, 40)
        b = [x * y for x, y in zip(a, noisy(rng, truth, sigma, 40), strict=True)]
        hits += compare(b, a, noise).verdict == verdict
    assert hits >= 36


def test_too_few_samples_are_unresolved() -> None:
    assert compare([2.0] * 5, [1.0] * 5, 0.0).verdict == "unresolved"
    assert compare([2.0] * 6, [1.0] * 6, 0.0).verdict == "slower"
    with pytest.raises(ValueError, match="negative"):
        compare([1.0] * 6, [1.0] * 6, -0.1)


def test_identical_candidates_are_rarely_told_apart() -> None:
    rng = random.Random(11)
    wrong = 0
    for _ in range(300):
        a, again, b = (noisy(rng, 1.0, 0.004, 30) for _ in range(3))
        noise = paired_ratio(again, a).off_one
        wrong += compare(b, a, noise).verdict in ("faster", "slower")
    assert wrong <= 15  # the verdict needs the whole interval beyond the noise: well under 5 %
