"""What a head may predict, by name, and how a prediction is judged: within HIT of the result it is a hit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rooftop.core.prediction_names import COUNTS, SPEEDUP
from rooftop.lab.report.facts import TargetFacts
from rooftop.lab.report.joined import Measured
from rooftop.lab.report.model import Prediction

HIT = 0.15  # a prediction within this of the result is a hit
# -- judging ---------------------------------------------------------------------------------------------------------


def stood(head: Mapping[str, float], now: Measured | None) -> dict[str, float]:
    """What was predicted when the record was made; of counts, which need no record, and where there is none, what the head says."""
    recorded = now.predict if now else {}
    if not recorded:
        return dict(head)
    return {**recorded, **{n: v for n, v in head.items() if n in COUNTS and n not in recorded}}


def restated(head: Mapping[str, float], now: Measured | None) -> bool:
    """Whether the head now predicts otherwise than it did when this was measured."""
    return bool(now and now.predict) and stood(head, now) != dict(head)


def judge(
    head: Mapping[str, float], now: Measured | None, before: Measured | None, facts: Sequence[TargetFacts], counts: Mapping[str, float],
    first: bool
) -> tuple[Prediction, ...]:
    """Each prediction against its result. `counts`: those of the simulator, by the names of COUNTS; `first`: there is no rung before."""
    found = []
    for name, value in stood(head, now).items():
        if name == SPEEDUP and first:
            continue
        result = speedup(now, before) if name == SPEEDUP else counts.get(name) if name in COUNTS else _fact(name, now, facts)
        if result is None:
            verdict = "not counted" if name in COUNTS else "not measured"
        elif (
            (abs(result / value - 1) <= HIT if value else result == 0)
            and not (name == SPEEDUP and _has_wrong_sign(value, result, now, before))
        ):
            verdict = "hit"
        else:
            verdict = "too high" if value > result else "too low"
        found.append(Prediction(name, float(value), result, verdict))
    return tuple(found)


def speedup(now: Measured | None, before: Measured | None) -> float | None:
    """Kernel time of the rung before over that of this one: of paired samples where the two were timed side by side. None unless both
    stand."""
    if not now or not before or now.stale or before.stale or not now.kernel or not before.kernel:
        return None
    if now.run == before.run and (paired := next((v for v in now.versus if v.name == before.subject), None)):
        return paired.speed
    return before.seconds / now.seconds


def _has_wrong_sign(predicted: float, measured: float, now: Measured | None, before: Measured | None) -> bool:
    """Whether a gain was predicted and a loss came, or the other way about, beyond the noise: the interval of the paired samples,
    else those of the two medians, must lie on the other side of 1."""
    if (predicted - 1) * (measured - 1) >= 0 or not now or not before or not now.kernel or not before.kernel:
        return False
    paired = next((v.interval for v in now.versus if now.run == before.run and v.name == before.subject), None)
    low, high = paired or (before.kernel.low / now.kernel.high, before.kernel.high / now.kernel.low)
    return high < 1 if measured < 1 else low > 1


def _fact(name: str, now: Measured | None, facts: Sequence[TargetFacts]) -> float | None:
    """A predicted fact by its name: a counter of the record, or a fact of the newest target's binary."""
    if now and not now.stale and name in now.counters:
        return now.counters[name]
    for target in sorted(facts, key=lambda t: -t.arch):
        for k in target.kernels:
            known = {"registers": k.registers, "spills": k.spills, "shared": k.shared, "occupancy": k.occupancy, **k.counts}
            if name in known:
                return float(known[name])
    return None
