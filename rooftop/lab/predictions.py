"""What a head may predict, by name, and how a prediction is judged: within HIT of the result it is a hit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from rooftop.lab.report_facts import TargetFacts
from rooftop.lab.report_model import Measured, Prediction

HIT = 0.15  # a prediction within this of the result is a hit
SPEEDUP = "speedup"
COUNTS: Mapping[str, str] = {  # what the simulator counts of a rung: name -> what it is
    "sectors_read": "32-byte sectors that a global read of a warp touches, on average",
    "sectors_written": "32-byte sectors that a global write of a warp touches, on average",
    "reads": "bytes of the global sectors read, as a multiple of what the op must read",
    "writes": "bytes of the global sectors written, as a multiple of what the op must write",
    "wavefronts": "wavefronts that a shared-memory access of a warp takes, on average",
    "conflicts": "wavefronts of shared memory as a multiple of the fewest, at the line where that is worst; 1: no bank conflict",
    "wavefronts_per_fma": "wavefronts of shared memory for each FMA of a warp",
    "intensity": "floating-point operations, an FMA as two, for each byte of the global sectors touched",
}
FACTS = ("registers", "spills", "shared", "occupancy")  # of the binary: a thread's registers and bytes, a block's bytes, percent
_INSTRUCTION = re.compile(r"[A-Z][A-Z0-9]*(\.[A-Z0-9]+)*")  # how often the binary has it
_COUNTER = re.compile(r"[a-z0-9]+__\w+(\.\w+)*")  # of the hardware, as a record has it


def refused(name: str) -> str | None:
    """None, or what is wrong with the name of a prediction."""
    known = (SPEEDUP, *COUNTS, *FACTS)
    if name in known or _INSTRUCTION.fullmatch(name) or _COUNTER.fullmatch(name):
        return None
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}, and SASS instructions such as \"LDG.128\""
    return f"nothing is measured by that name; {hint}"


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
    head: Mapping[str, float], now: Measured | None, before: Measured | None, facts: Sequence[TargetFacts], counts: Mapping[str, float], first: bool
) -> tuple[Prediction, ...]:
    """Each prediction against its result. `counts`: those of the simulator, by the names of COUNTS; `first`: there is no rung before."""
    found = []
    for name, value in stood(head, now).items():
        if name == SPEEDUP and first:
            continue
        result = speedup(now, before) if name == SPEEDUP else counts.get(name) if name in COUNTS else _fact(name, now, facts)
        if result is None:
            verdict = "not counted" if name in COUNTS else "not measured"
        elif (abs(result / value - 1) <= HIT if value else result == 0) and not (name == SPEEDUP and _opposite(value, result, now, before)):
            verdict = "hit"
        else:
            verdict = "too high" if value > result else "too low"
        found.append(Prediction(name, float(value), result, verdict))
    return tuple(found)


def speedup(now: Measured | None, before: Measured | None) -> float | None:
    """Kernel time of the rung before over that of this one: of paired samples where the two were timed side by side. None unless both stand."""
    if not now or not before or now.stale or before.stale or not now.kernel or not before.kernel:
        return None
    if now.run == before.run and (paired := next((v for v in now.versus if v.name == before.subject), None)):
        return paired.speed
    return before.seconds / now.seconds


def _opposite(predicted: float, measured: float, now: Measured | None, before: Measured | None) -> bool:
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
