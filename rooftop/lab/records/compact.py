"""What a record keeps of what is known when it is made. `compact` is applied to every record as it is written, and to those of files
without a head, which hold all of it (form 1, until November 2026); what is compact stays as it is.

Whether a record is stale is not touched: its digest stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from rooftop.lab.records.form import Record

READINGS = ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
FIGURES = ("max", "rms", "allowed_max", "allowed_rms")  # of an error, and what is allowed
SHARES = ("max_share", "rms_share")
_CLOCK = ("name", "calls", "replays")  # of a clock: the subject once more, and how a sample was put together
_PAIR = ("ratio", "low", "high", "verdict")  # of a pair; noise and number of samples are its clock's


@cache
def timed(op: str, case: str) -> bool:
    """Whether the op times this case; True also where the tree has no such op or case."""
    from rooftop.core import registry
    from rooftop.core.names import RegistryError

    try:
        return "bench" in registry.op(op).case(case).tags
    except (RegistryError, LookupError, ValueError):
        return True


def compact(record: Mapping[str, Any], is_timed: Callable[[str, str], bool] = timed) -> Record:
    """The record as it is written. `is_timed` says of an op and a case whether it is one that is timed."""
    found = {k: v for k, v in record.items() if k != "rate"}  # worked out from `work` and the kernel clock
    if isinstance(found.get("sensors"), Mapping):
        found["sensors"] = readings(found["sensors"])
        if not found["sensors"]:
            del found["sensors"]
    if found["kind"] in ("bench", "clock") and isinstance(found.get("clocks"), Mapping):
        found["clocks"] = {name: _clock(c) for name, c in found["clocks"].items()}
    if found["kind"] == "bench":
        for key in ("versus", "sustained_versus"):
            if isinstance(found.get(key), Mapping):
                found[key] = pairs(str(found.get("subject")), found[key])
        if isinstance(found.get("error"), Mapping):
            found["error"] = judged(found["error"], not str(found.get("subject")).startswith("peer:"))
    if found["kind"] == "check":
        found.pop("path", None)  # the bench record of the case has it
        if isinstance(found.get("error"), Mapping):
            found["error"] = judged(found["error"], is_timed(str(found.get("op")), str(found.get("case"))))
    if found["kind"] == "ceiling":
        found.setdefault("subject", "memory")
    if found["kind"] == "sanitize":
        found = {k: v for k, v in found.items() if v != "" or k not in ("first", "message")}
    return found


def _clock(clock: Any) -> Any:
    """Without how busy the card was where it was not to be, and without an empty reason."""
    if not isinstance(clock, Mapping):
        return clock
    left = {*_CLOCK, *(("busy",) if clock.get("duty", "normal") == "normal" else ()), *(("why",) if not clock.get("why") else ())}
    return {k: v for k, v in clock.items() if k not in left}


def readings(sensors: Mapping[str, Any]) -> Record:
    """Clocks, power and temperature before and after as pairs, and what held the clocks back, from two whole readings."""
    before, after = sensors.get("before"), sensors.get("after")
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return {k: v for k, v in sensors.items() if k not in ("before", "after")}
    found: Record = {n: [before[n], after[n]] for n in READINGS if n in before and n in after}
    slowed = sorted({str(r) for one in (before, after) for r in one.get("reasons") or () if r != "idle"})
    return found | ({"slowed": slowed} if slowed else {})


def pairs(subject: str, versus: Mapping[str, Any]) -> Record:
    """Of the pairs of a field those with peers and with plain copies, and a rung's with the rung before it. A peer's: with the copies."""
    ladder, _, rung = subject.rpartition("/")
    earlier = [other for other in versus if ladder and other.rpartition("/")[0] == ladder and other.rpartition("/")[2] < rung]
    kept = {max(earlier)} if earlier else set()
    kept |= {
        other for other in versus if other.startswith(("ceiling:", "part:"))
        or (other.startswith("peer:") and not subject.startswith("peer:"))
    }
    return {
        k: {n: v for n, v in pair.items() if n in _PAIR} if isinstance(pair, Mapping) else pair for k, pair in versus.items() if k in kept
    }


def judged(error: Mapping[str, Any], figures: bool) -> Record:
    """Of an error whether it is right and the worst share of what is allowed; what was measured and allowed too with `figures`, or where it
    is wrong."""
    shares = [error[k] for k in SHARES if k in error]
    found: Record = {k: error[k] for k in ("ok", "share") if k in error} | ({"share": max(shares)} if shares else {})
    return found | ({k: error[k] for k in FIGURES if k in error} if figures or not error.get("ok") else {})
