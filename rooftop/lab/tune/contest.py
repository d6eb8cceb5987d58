"""Who wins a field of configs: timed in rounds, the heuristic's config among them.

Rounds of few samples first drop what is clearly slower; the rest is measured to the usual precision, and the fastest is then measured once
more beside the heuristic alone, so that the best of many lucky draws is not what is kept. A config is kept only where the timer's verdict
on it is `faster`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rooftop.lab.timing.statistics import SAME_WITHIN
from rooftop.lab.timing.timer import Candidate, Measurement, Timer

ROUNDS = ((6, 1.15, 2), (12, 1.04, 8))  # samples; dropped if slower than this many times the fastest; no such round for so few
SAMPLES = (11, 401)  # of the last fields, as in bench
CASE_S = 4.0  # seconds of sampling of a last field
Verdict = Literal["faster", "heuristic", "unresolved"]


@dataclass(frozen=True)
class Outcome:
    """`verdict` heuristic: none is faster; unresolved: one may be, by more than 1 %, but the noise hides it. `ratio`: of the pick's time to
    the heuristic's."""

    verdict: Verdict
    pick: str | None
    ratio: float | None
    last: Measurement
    seconds: Mapping[str, float]  # of a call, each as measured last
    dropped: Mapping[str, float]  # by the short rounds: times the fastest


def pick(m: Measurement) -> tuple[str | None, Verdict]:
    """The config that is kept of a field whose first is the heuristic's: the fastest of those that are faster beyond the noise."""
    faster = [n for n, c in m.versus.items() if c.verdict == "faster"]
    if faster:
        return min(faster, key=lambda n: m.versus[n].ratio), "faster"
    hidden = any(c.verdict == "unresolved" and c.low < 1 - SAME_WITHIN for c in m.versus.values())
    return None, "unresolved" if hidden else "heuristic"


def contest(timer: Timer, candidates: Sequence[Candidate], *, size: int, floor_s: float = 0.0, budget_s: float = CASE_S) -> Outcome:
    """Times a field on the kernel clock, the heuristic's config first in it. `size`: bytes a call touches.

    Raises ImpossibleTime as the timer does, ValueError for a field of one."""
    if len(candidates) < 2:
        raise ValueError(f"{len(candidates)} configs; at least the heuristic's and another are needed")

    def measure(entered: Sequence[Candidate], share: float, samples: tuple[int, int]) -> Measurement:
        m = timer.measure(entered, "kernel", bytes_per_call=size, floor_seconds=floor_s, budget_s=budget_s * share, samples=samples)
        seconds.update({n: t.median for n, t in m.timings.items()})
        return m

    base, left = candidates[0], list(candidates)
    seconds: dict[str, float] = {}
    dropped: dict[str, float] = {}
    m: Measurement | None = None
    for samples, line, enough in ROUNDS:
        if len(left) > enough:
            m = short = measure(left, 0.25, (samples, samples))
            best = min(short.timings.values(), key=lambda t: t.median).name
            ratios = {c.name: short.compare(c.name, best) for c in left if c is not base}
            out = {n: r.ratio for n, r in ratios.items() if r.ratio > line and r.verdict == "slower"}
            dropped |= out
            left = [c for c in left if c.name not in out]
    if len(left) == 1 and m is not None:
        return Outcome("heuristic", None, None, m, seconds, dropped)
    m = measure(left, 1.0, SAMPLES)
    chosen, verdict = pick(m)
    if chosen is not None and len(left) > 2:
        m = measure([base, next(c for c in left if c.name == chosen)], 0.5, SAMPLES)
        chosen, verdict = pick(m)
    return Outcome(verdict, chosen, m.versus[chosen].ratio if chosen else None, m, seconds, dropped)
